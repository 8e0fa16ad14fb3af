"""Solving for the versions of a split by the way that its size asks for, and for new inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from dask.utils import parse_bytes
from distributed import Client
from distributed.utils import get_ip

from congruence.kernels.arrays import Array
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import EXACT_ROWS, LEADING, MOST_EXACT_ROWS, local_factor
from congruence.kernels.engine.plan import Accuracy
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.engine.spectrum import Spectrum
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.trust.scorer import InputScores, input_scorer
from congruence.kernels.trust.support import FEWEST_ROWS
from congruence.tasks.dask.gpus import solves_on_cards, worker_devices
from congruence.tasks.data.split import Split
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.runtime.errors import ClusterError
from congruence.tasks.runtime.memory import available_memory
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.sentences.inputs import Rows, reasons
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.parts import SolverSettings
from congruence.tasks.solving.measurement import measure
from congruence.tasks.solving.measurement_store import MeasurementAddress
from congruence.tasks.solving.pass_runner import measure_blocks
from congruence.tasks.solving.tiled_cholesky import TiledCholesky

VERSIONS_AT_ONCE = 8  # what they have in common is read and made once for all of them; memory is of so many
HELD_BYTES_PER_ROW = 4096  # right-hand sides, solutions, residuals and predictions of a version or two


@dataclass(frozen=True)
class SolveWork:
    """What is solved: a reference split, the points at which the answer is wanted, and where it goes.

    Attributes:
        protocol: with its encoder and reference split.
        reference: the labelled rows that the system is made of.
        query: other rows at which CCE is wanted, by default the reference rows.
        kept: where each version's measurement goes, by its label.
    """

    protocol: EvaluationProtocol
    reference: EvaluatedRows = field(repr=False)
    query: EvaluatedRows | None = field(repr=False)
    kept: Mapping[str, MeasurementAddress] = field(repr=False)

    def of_versions(self, labels: list[str]) -> SolveWork:
        """The same for some versions: what is sent to a worker does not grow with the others."""
        return SolveWork(
            self.protocol,
            self.reference.of_versions(labels),
            None if self.query is None else self.query.of_versions(labels),
            {label: self.kept[label] for label in labels},
        )


def solve_versions(
    client: Client,
    settings: EvaluationSettings,
    work: SolveWork,
    labels: list[str],
    announce: Callable[[str], None],
) -> None:
    """Measure every version whose measurement is not kept yet, and keep it.

    Short splits, other query points, reference splits of their own and protocols with repeats are held by a worker,
    which measures some versions; longer splits are passed over by row blocks, which no memory limits.

    Raises:
        BudgetError: rows that are held do not fit a worker, or the tiles of a factor the cluster.
    """
    missing = [label for label in labels if work.kept[label].read() is None]
    if not missing:
        return
    for label in missing:  # columns of a solve that was interrupted, perhaps with other blocks of rows
        work.kept[label].remove()
    n, d = sum(work.reference.sizes), work.reference.store.dimension
    memory = cluster_memory(client)
    if is_held(settings.solver, work.protocol, n, has_query=work.query is not None):
        _require_room(work.protocol, n, d, memory // max(1, len(client.nthreads())))
        _solve_held(client, settings, work, missing, announce)
    else:
        devices = worker_devices(client, settings.cluster)
        cards = sum(device.memory_bytes for device in devices.values()) if solves_on_cards(devices) else None
        _solve_by_blocks(client, settings, work, missing, announce, memory, cards)


def is_held(solver: SolverSettings, protocol: EvaluationProtocol, n: int, *, has_query: bool) -> bool:
    """Whether a split of n rows is measured in the memory of a worker rather than by row blocks."""
    if has_query or protocol.is_repeated or protocol.reference != "test":
        return True
    return n <= (MOST_EXACT_ROWS if solver.kind == "cholesky" else EXACT_ROWS)


def accuracy_of(solver: SolverSettings) -> Accuracy:
    """Returns how many landmarks the settings ask for: all rows by ``cholesky``, named ones as they are."""
    return Accuracy.exact() if solver.kind == "cholesky" else Accuracy.of(solver.landmarks)


def _require_room(protocol: EvaluationProtocol, n: int, d: int, memory_bytes: int) -> None:
    needed = n * (8 * d + HELD_BYTES_PER_ROW)
    if n > MOST_EXACT_ROWS and needed > memory_bytes:
        raise BudgetError(
            f"protocol '{protocol.name}' holds all {n:,} rows of {d} features in memory, about {needed / 2**30:.1f} "
            f"GiB, and there are {memory_bytes / 2**30:.1f} GiB; use protocol 'exact', which reads rows by blocks, or "
            "a smaller split"
        )


def _solve_held(
    client: Client, settings: EvaluationSettings, work: SolveWork, labels: list[str], announce: Callable[[str], None]
) -> None:
    """Each worker measures some versions, and makes the system for them."""
    groups = np.array_split(labels, min(len(labels), max(1, len(client.nthreads()))))
    announce(f"{sum(work.reference.sizes):,} rows in memory, {len(labels)} versions by {len(groups)} workers")
    parts = [work.of_versions([str(label) for label in group]) for group in groups]
    client.gather(client.map(partial(measure_group, settings), parts, pure=False))


def measure_group(settings: EvaluationSettings, work: SolveWork) -> None:
    """Measure the versions of ``work`` on rows that are read into memory here, and keep what was measured."""
    rows, labels = work.reference, list(work.kept)
    found = measure(
        settings,
        work.protocol,
        rows.embeddings(),
        rows.all_targets(),
        {label: rows.all_predictive(label) for label in labels},
        query=None if work.query is None else work.query.embeddings(),
        # Keys randomise PIT values as in the scores, where versions are judged at these rows.
        keys=rows.all_keys() if work.query is None else None,
        weights=(work.query or rows).all_design().weight,
        dependence=rows.dependence(),
        accuracy=accuracy_of(settings.solver),
    )
    for label, measurement in found.items():
        work.kept[label].write(measurement)


def _solve_by_blocks(
    client: Client,
    settings: EvaluationSettings,
    work: SolveWork,
    labels: list[str],
    announce: Callable[[str], None],
    memory: int,
    cards: int | None,
) -> None:
    memory = memory if settings.solver.memory is None else int(parse_bytes(settings.solver.memory))
    tiled = TiledCholesky(client, memory_bytes=memory, card_bytes=cards)
    found = measure_blocks(
        client,
        work.reference,
        settings,
        work.protocol,
        labels,
        partial(_keep, {label: work.kept[label] for label in labels}),
        accuracy=accuracy_of(settings.solver),
        calibrated="calibration" in requested_metrics(settings.metrics),
        announce=announce,
        factorize=tiled if settings.solver.kind == "cholesky" else local_factor,
        gpu=cards is not None,
    )
    for label, measurement in found.items():
        work.kept[label].write(measurement)


def _keep(kept: Mapping[str, MeasurementAddress], block: int, version: str, columns: dict[str, Array]) -> None:
    """Writes a block's columns of a version to its measurement, on the worker that made them."""
    kept[version].write_columns(block, columns)


WORKERS_SECONDS = 120.0


def cluster_memory(client: Client) -> int:
    """Returns the sum of the workers' memory limits, in bytes; of workers on this machine no more than is free.

    Raises:
        ClusterError: no worker has come within WORKERS_SECONDS.
    """
    try:
        client.wait_for_workers(1, timeout=WORKERS_SECONDS)
    except TimeoutError as error:
        raise ClusterError(
            f"the Dask cluster has had no worker for {WORKERS_SECONDS:.0f} s; start some with 'dask worker' or see why "
            "they end; finished work is saved; run the same command to resume"
        ) from error
    workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
    memory = sum(int(worker["memory_limit"] or available_memory() // len(workers)) for worker in workers)
    here = {"127.0.0.1", "::1", "localhost", get_ip()}
    return min(memory, available_memory()) if all(worker["host"] in here for worker in workers) else memory


def score_new_inputs(
    protocol: EvaluationProtocol,
    known: EvaluatedRows,
    asked: EvaluatedRows,
    label: str,
    result: CongruenceResult,
    *,
    pictures: tuple[pd.DataFrame, pd.DataFrame] | None = None,
    withhold: Any | None = None,
    seed: int = 0,
) -> InputScores:
    """What is said of the valid rows of ``asked`` by the labelled rows ``known``, with reasons in sentences.

    Args:
        protocol: under which the CCE was measured.
        known, asked: with the predictions of the version ``label``.
        result: its CCE and noise floor at the valid rows of ``asked``.
        pictures: what ``picture_table`` says of the rows of both splits, where they are images.
        withhold: see ``WithholdingRule.of``.
        seed: of folds, hold-out and draws.
    """
    dtype = np.float64 if int(known.valid.sum()) <= EXACT_ROWS else np.float32
    raw, new = (rows.embeddings().astype(dtype) for rows in (known, asked))
    y = known.all_targets()
    driver = HeldSplit(raw, y).driver(protocol, {}, 0)
    system = driver.system(min(LEADING, driver.n))  # only the leading spectrum is read
    x, query = protocol.apply(raw), protocol.apply(new)
    if pictures is None:
        columns, new_columns = table_columns(known), table_columns(asked)
    else:
        columns, new_columns = (
            table[rows.valid].reset_index(drop=True) for table, rows in zip(pictures, (known, asked), strict=True)
        )
    design = known.split.design().rows(known.valid)
    spectrum = Spectrum.of(system)
    scorer = input_scorer(
        x,
        spectrum,
        spectrum.smoother(x),
        y,
        known.all_predictive(label),
        raw=raw,
        columns=columns,
        withhold=withhold,
        groups=design.groups,
        time=design.time,
        output_kernel=driver.look_at([]).output_kernel(protocol, system),
        keys=_keys(known),
        seed=seed,
    )
    scores = scorer.score(query, raw=new, columns=new_columns, keys=_keys(asked), result=result)
    of_split, of_inputs = Rows(raw, columns, _keys(known)), Rows(new, new_columns)
    return replace(scores, reason=reasons(scorer.support, scores, of_split, of_inputs))


def table_columns(rows: EvaluatedRows) -> pd.DataFrame | None:
    """The columns of the valid rows that encoder and model read, in that order; None of images, texts and vectors."""
    settings = rows.split.settings
    if settings.input_kind != "features" or len(settings.input_columns) == 1 != rows.store.dimension:
        return None
    names = list(dict.fromkeys([*settings.input_columns, *settings.model_input_columns]))
    frames = [rows.split.frame(shard, names) for shard in rows.split.shards]
    return pd.concat(frames, ignore_index=True)[rows.valid].reset_index(drop=True)


def zero_embeddings(protocol: EvaluationProtocol, rows: EvaluatedRows) -> dict[int, str]:
    """Rows, once they are embedded, whose embedding has no direction though the protocol needs one, and why.

    Some encoders give zeros to a blank image, and standardised features are zeros at the mean of each.
    """
    if not protocol.normalize:
        return {}
    zeros = np.flatnonzero(rows.valid)[~rows.embeddings().any(axis=1)]
    why = f"its embedding is all zeros and has no direction; protocol {protocol.name!r} needs unit norm"
    return dict.fromkeys(zeros.tolist(), why)


def without_zeros(protocol: EvaluationProtocol, rows: EvaluatedRows) -> EvaluatedRows:
    """``rows`` without their ``zero_embeddings``."""
    zeros = zero_embeddings(protocol, rows)
    return replace(rows, left_out={**rows.left_out, **zeros}) if zeros else rows


def require_enough_rows(split: Split) -> None:
    """Raise InvalidInputError where a labelled split is too short to say what is usual."""
    if split.rows < FEWEST_ROWS:
        raise InvalidInputError(
            f"split {split.name!r}: {split.rows} rows; at least {FEWEST_ROWS} labelled rows must say what is usual: "
            "name a longer split with --split"
        )


def _keys(rows: EvaluatedRows) -> Any:
    return np.asarray(rows.split.keys())[rows.valid]
