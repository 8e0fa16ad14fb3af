"""Solving the Gram system of a split for some versions, by a process that reads all it needs from the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from distributed import Client

from congruence.kernels.arrays import Array
from congruence.kernels.bandwidths import variance_gamma
from congruence.kernels.congruence.noise_floor import PROBES
from congruence.kernels.congruence.null_draws import PILOT_ROWS
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.mean_embeddings.feature_maps import output_features
from congruence.kernels.protocol.output_scales import kernel_at_scale
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.tasks.dask.gpus import solves_on_cards, worker_devices
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.solving.capacity import cluster_capacity
from congruence.tasks.solving.checkpoint import sweep_iterates
from congruence.tasks.solving.executor import WorkerExecutor
from congruence.tasks.solving.measurement import OnCluster, measure_versions
from congruence.tasks.solving.measurement_store import MeasurementAddress, VersionMeasurement
from congruence.tasks.solving.plan import BlockAccuracy, OutOfReachError, is_by_row_blocks
from congruence.tasks.solving.row_blocks import measure_blocks
from congruence.tasks.solving.version_evaluation import HeldVersion

EXPECTED_COLUMNS = 60  # of a version whose features cannot be told from some of its rows
VERSIONS_AT_ONCE = 8  # what they have in common is read and made once for all of them; memory is of so many
_VECTORS = 5  # right-hand side, solution, residual, smoothed values, and one on its way
_SHARE = 4  # of a worker's memory that the vectors of a group may take


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
        """The same for some versions: what a worker is told does not grow with the others."""
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
    """Prepare the Gram system once, solve it for every version whose measurement is not kept yet, and keep them.

    By row blocks first, where that is the cheapest; exactly where landmarks do not reach the aim of the certificate.
    """
    missing = [label for label in labels if work.kept[label].read() is None]
    if not missing:
        return
    for label in missing:  # columns of a solve that was interrupted, perhaps with other blocks of rows
        work.kept[label].remove()
    on_cards = solves_on_cards(worker_devices(client, settings.cluster))
    capacity = cluster_capacity(client, gpu=on_cards)
    worker_bytes = capacity.memory_bytes // max(1, len(client.nthreads()))
    columns = {label: expected_columns(work.protocol, work.reference, label) for label in missing}
    reason = ""
    n, d = sum(work.reference.sizes), work.reference.store.dimension
    asked = settings.solver, work.protocol, n, d
    if is_by_row_blocks(*asked, has_query=work.query is not None, memory_bytes=worker_bytes, on_cards=on_cards):
        accuracy = BlockAccuracy.of(settings.solver, n, d, sum(columns.values()))
        try:
            _solve_by_blocks(client, settings, work, missing, accuracy, announce)
        except (OutOfReachError, BudgetError) as error:
            if accuracy.exact_work is None:
                raise
            reason = f"exact, since {error}"
            announce(reason)
        else:
            return
    at_once = versions_at_once(n, max(columns.values()), worker_bytes)
    for start in range(0, len(missing), at_once):
        group = missing[start : start + at_once]
        planned = sum(columns[label] for label in group)
        _solve_in_memory(client, settings, work, group, planned, announce, reason, on_cards=on_cards)


def expected_columns(protocol: EvaluationProtocol, rows: EvaluatedRows, label: str) -> int:
    """Right-hand sides of a version: the features of k_Y on some of its targets and predictions, and the probes."""
    y, law = rows.targets(0)[:PILOT_ROWS], rows.predictive(0, label)[:PILOT_ROWS]
    try:
        kernel = protocol.output_kernel
        if kernel is None:
            # The scale of the residuals is known once the system is; the finest of several scales is about as fine.
            scale = "multiscale" if protocol.output_scale == "residual" else protocol.output_scale
            kernel = kernel_at_scale(scale, variance_gamma(y))
        return output_features(kernel, y, law).rank + PROBES
    except (InvalidInputError, BudgetError):  # said of all targets where they are read
        return EXPECTED_COLUMNS


def _solve_by_blocks(
    client: Client,
    settings: EvaluationSettings,
    work: SolveWork,
    labels: list[str],
    accuracy: BlockAccuracy,
    announce: Callable[[str], None],
) -> None:
    found = measure_blocks(
        client,
        work.reference,
        settings,
        work.protocol,
        labels,
        _Keep({label: work.kept[label] for label in labels}),
        accuracy=accuracy,
        calibrated="calibration" in requested_metrics(settings.metrics),
        announce=announce,
    )
    for label, measurement in found.items():
        work.kept[label].write(measurement)


@dataclass(frozen=True)
class _Keep:
    """Writes a block's columns of a version to its measurement, on the worker that made them."""

    kept: Mapping[str, MeasurementAddress]

    def __call__(self, block: int, version: str, columns: dict[str, Array]) -> None:
        self.kept[version].write_columns(block, columns)


def _solve_in_memory(
    client: Client,
    settings: EvaluationSettings,
    work: SolveWork,
    labels: list[str],
    columns: int,
    announce: Callable[[str], None],
    reason: str,
    *,
    on_cards: bool,
) -> None:
    folder = settings.home_folder / "solves"
    folder.mkdir(parents=True, exist_ok=True)
    sweep_iterates(folder)
    place = OnCluster(client, settings.solver, columns, folder, announce, on_cards, because=reason)
    versions = {
        label: StoredVersion(work.reference.of_versions([label]), label, work.kept[label], work.query is None)
        for label in labels
    }
    measure_versions(
        settings,
        work.protocol,
        work.reference.embeddings(),
        work.reference.all_targets(),
        versions,
        query=None if work.query is None else work.query.embeddings(),
        weights=(work.query or work.reference).all_design().weight,
        prepare_inputs=place,
        reasons=place.reasons,
        calls=WorkerExecutor(client),
    )
    for checkpoint in place.checkpoints:
        checkpoint.clear()


@dataclass(frozen=True)
class StoredVersion:
    """A version's rows and its measurement by their addresses (see VersionRows).

    Attributes:
        rows: with the predictions of this version alone.
        label: of the version.
        kept: where its measurement goes.
        keyed: whether it is judged at these rows, whose keys then randomise its PIT values as in the scores.
    """

    rows: EvaluatedRows = field(repr=False)
    label: str
    kept: MeasurementAddress = field(repr=False)
    keyed: bool

    def read(self) -> HeldVersion:
        """See VersionRows."""
        rows = self.rows
        keys = rows.all_keys() if self.keyed else None
        return HeldVersion(rows.all_targets(), rows.all_predictive(self.label), keys, self.label, rows.dependence())

    def keep(self, measurement: VersionMeasurement) -> None:
        """See VersionRows: nothing goes back."""
        self.kept.write(measurement)


def versions_at_once(n: int, columns: int, worker_bytes: int) -> int:
    """How many versions of ``columns`` right-hand sides are solved together in memory.

    Their vectors take at most a quarter of a worker's memory, and they are at most VERSIONS_AT_ONCE: memory does not
    grow with the versions.
    """
    per_version = 8 * _VECTORS * columns * max(1, n)
    return int(np.clip(worker_bytes // _SHARE // per_version, 1, VERSIONS_AT_ONCE))
