"""Solving for the versions of a split by the way that its size asks for; what it gives is kept until it is scored.

Rows in memory are measured without Dask, which a notebook need not have.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array, mean_one, require_targets
from congruence.kernels.conditional_calibration import effects, local_reading, score_test
from congruence.kernels.conditional_calibration.local_reading import PREFIX
from congruence.kernels.conditional_calibration.prepared import calibrate
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine import results
from congruence.kernels.engine.blocks import Columns, HeldRows, LocalPasses, blocks_of_version
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import EXACT_ROWS, MOST_EXACT_ROWS, Accuracy, local_factor
from congruence.kernels.engine.measure import measure_held
from congruence.kernels.engine.plan import Ask
from congruence.kernels.errors import BudgetError
from congruence.kernels.protocol import EvaluationProtocol
from congruence.tasks.dask.gpus import solves_on_cards, worker_devices
from congruence.tasks.runtime.files import from_npz, to_npz
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.solving.pass_runner import VersionMeasurement, measure_blocks
from congruence.tasks.solving.tiled_cholesky import TiledCholesky

if TYPE_CHECKING:
    from distributed import Client

    from congruence.tasks.models.evaluated_rows import EvaluatedRows
    from congruence.tasks.settings.evaluation import EvaluationSettings
    from congruence.tasks.settings.parts import SolverSettings
    from congruence.tasks.store.objects import ObjectStore

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
    announce: Callable[[str], None],
) -> None:
    """Measure every version whose measurement is not kept yet, and keep it.

    Short splits, other query points, reference splits of their own and protocols with repeats are held by a worker,
    which measures some versions; longer splits are passed over by row blocks, which no memory limits.

    Raises:
        BudgetError: rows that are held do not fit a worker, or the tiles of a factor the cluster.
    """
    from congruence.tasks.dask.workers import cluster_memory  # by packages that a notebook need not have

    work = work.of_versions([label for label, kept in work.kept.items() if kept.read() is None])
    if not work.kept:
        return
    for kept in work.kept.values():  # columns of a solve that was interrupted, perhaps with other blocks of rows
        kept.remove()
    n, d = sum(work.reference.sizes), work.reference.store.dimension
    memory = cluster_memory(client)
    if is_held(settings.solver, work.protocol, n, has_query=work.query is not None):
        _require_room(work.protocol, n, d, memory // max(1, len(client.nthreads())))
        _solve_held(client, settings, work, announce)
    else:
        devices = worker_devices(client, settings.cluster)
        cards = sum(device.memory_bytes for device in devices.values()) if solves_on_cards(devices) else None
        _solve_by_blocks(client, settings, work, announce, memory, cards)


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


def _solve_held(client: Client, settings: EvaluationSettings, work: SolveWork, announce: Callable[[str], None]) -> None:
    """Each worker measures some versions, and makes the system for them."""
    labels = list(work.kept)
    groups = np.array_split(labels, min(len(labels), max(1, len(client.nthreads()))))
    said = f"{len(labels)} version{'s' * (len(labels) > 1)} by {len(groups)} worker{'s' * (len(groups) > 1)}"
    announce(f"{sum(work.reference.sizes):,} rows in memory, {said}")
    parts = [work.of_versions([str(label) for label in group]) for group in groups]
    client.gather(client.map(partial(measure_group, settings), parts, pure=False))


def measure_group(settings: EvaluationSettings, work: SolveWork) -> None:
    """Measure the versions of ``work`` on rows that are read into memory here, and keep what was measured."""
    rows, labels = work.reference, list(work.kept)
    found = measure(
        work.protocol,
        rows.embeddings(),
        rows.targets(),
        {label: rows.all_predictive(label) for label in labels},
        metrics=settings.metrics,
        seed=settings.seed,
        query=None if work.query is None else work.query.embeddings(),
        # Keys randomise PIT values as in the scores, where versions are judged at these rows.
        keys=rows.keys() if work.query is None else None,
        weights=(work.query or rows).design().weight,
        dependence=rows.design().dependence(),
        accuracy=accuracy_of(settings.solver),
    )
    for label, measurement in found.items():
        work.kept[label].write(measurement)


def measure(
    protocol: EvaluationProtocol,
    embeddings: Array,
    targets: Array,
    versions: Mapping[str, Distribution],
    *,
    metrics: Sequence[str] | None = None,
    seed: int = 0,
    query: Array | None = None,
    keys: Array | None = None,
    weights: Array | None = None,
    dependence: RowDependence | None = None,
    accuracy: Accuracy | None = None,
) -> dict[str, VersionMeasurement]:
    """CCE of every version, estimated on ``embeddings`` (n, d) with ``targets`` (n,) or (n, q), in this process.

    ``metrics`` say what is measured beside it (None: all); ``seed`` is of draws and of the noise floor's probes. It is
    measured at the same points, or at the embeddings ``query`` (m, d). ``keys`` name the rows for the randomised
    PIT of counts, as in the scores; ``weights`` are what each point counts in means over them. Calibration given the
    input is measured at the targets' own rows under protocols without repeats. ``dependence`` says
    which rows may depend on each other; ``accuracy``, how many landmarks the answers stand on.
    """
    targets, started = require_targets(targets, "y", len(embeddings)), time.perf_counter()
    counted = None if weights is None else mean_one(weights, len(embeddings if query is None else query))
    split = HeldSplit(embeddings, targets, query, counted, dependence)
    requested = requested_metrics(metrics)
    ask = Ask(list(versions), tested="congruence_test" in requested)
    found = measure_held(split, protocol, versions, ask, accuracy or Accuracy(), seed)
    seconds = {"solve": time.perf_counter() - started}
    started = time.perf_counter()
    calibration: dict[str, VersionCalibration] = {}
    if "calibration" in requested and query is None and not protocol.is_repeated:
        columns = Columns()
        rows = HeldRows(embeddings, targets, versions, counted, len(embeddings), keys)
        blocks = {name: blocks_of_version(dependence, targets, predictive) for name, predictive in versions.items()}
        inputs = hashlib.blake2b(np.ascontiguousarray(embeddings).data).digest(), embeddings.shape, embeddings.dtype.str
        calibration = calibrate(
            LocalPasses(rows),
            len(targets),
            protocol,
            [name for name, found_blocks in blocks.items() if not found_blocks.refused],
            columns,
            is_scalar=targets.ndim == 1,
            seed=seed,
            dtype=embeddings.dtype,
            dependent={name: found_blocks.blocks for name, found_blocks in blocks.items()},
            known=_known_null(*inputs, protocol.digest, seed),
        )
        for name in columns.written:  # none of vector targets, which have no reading
            calibration[name] = calibration[name].whole(columns.of(name))
        seconds["calibration"] = time.perf_counter() - started
    return {name: VersionMeasurement(one, seconds, calibration.get(name)) for name, one in found.items()}


@lru_cache(maxsize=32)  # of 200 kB each
def _known_null(*of: object) -> dict[int, Array]:  # noqa: ARG001
    """Where the null of some inputs stays: what is measured on them later shares it, whatever its targets."""
    return {}


def _solve_by_blocks(
    client: Client,
    settings: EvaluationSettings,
    work: SolveWork,
    announce: Callable[[str], None],
    memory: int,
    cards: int | None,
) -> None:
    from dask.utils import parse_bytes

    memory = memory if settings.solver.memory is None else int(parse_bytes(settings.solver.memory))
    tiled = TiledCholesky(client, memory_bytes=memory, card_bytes=cards)
    requested = requested_metrics(settings.metrics)
    found = measure_blocks(
        client,
        work.reference,
        work.protocol,
        Ask(list(work.kept), tested="congruence_test" in requested),
        partial(_keep, work.kept),
        seed=settings.seed,
        accuracy=accuracy_of(settings.solver),
        calibrated="calibration" in requested,
        announce=announce,
        factorize=tiled if settings.solver.kind == "cholesky" else local_factor,
        gpu=cards is not None,
    )
    for label, measurement in found.items():
        work.kept[label].write(measurement)


def _keep(kept: Mapping[str, MeasurementAddress], block: int, version: str, columns: dict[str, Array]) -> None:
    """Writes a block's columns of a version to its measurement, on the worker that made them."""
    kept[version].write_columns(block, columns)


_DESCRIPTION, _ARRAY, _KIND = "description", "$array", "$kind"
_LONGEST_NAME = 128
_OF_ROWS = (PREFIX, "influence", "statistic")

_KINDS: dict[str, Any] = {
    name: kind
    for module in (effects, local_reading, results, score_test)
    for name, kind in vars(module).items()
    if is_dataclass(kind)
} | {"VersionMeasurement": VersionMeasurement}
"""What a measurement is made of, by name: nothing else is restored."""


@dataclass(frozen=True)
class MeasurementAddress:
    """Where the measurement of one version on one split is kept: an object of the embeddings' store."""

    objects: ObjectStore = field(repr=False)
    key: str

    def write(self, measurement: VersionMeasurement) -> None:
        """Keep ``measurement``, whole or not at all."""
        self.objects.put(self.key, to_bytes(measurement))

    def write_columns(self, block: int, columns: Mapping[str, Array]) -> None:
        """Keep columns of one block of rows; the measurement itself is written when all of them are there."""
        content = to_npz({name: _narrow(name, values) for name, values in columns.items()})
        self.objects.put(f"{self._blocks}/{block:06d}-{_named(columns)}.npz", content)

    def read(self) -> VersionMeasurement | None:
        """What is kept, None where nothing is or it is damaged."""
        content = self.objects.get(self.key)
        if content is None:
            return None
        try:
            kept = from_bytes(content)
            return kept if kept.rows is None else kept.whole(self._columns(kept.rows))
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def _columns(self, rows: int) -> dict[str, Array]:
        """The columns of all blocks, each put where it belongs as it is read, so that none is held twice."""
        columns: dict[str, Array] = {}
        filled: dict[str, int] = {}
        for key in sorted(self.objects.objects(self._blocks)):  # by their names, block after block
            for name, values in from_npz(self.objects.get(key) or b"").items():
                if name not in columns:
                    columns[name], filled[name] = np.empty(rows, values.dtype), 0
                first, filled[name] = filled[name], filled[name] + len(values)
                columns[name][first : filled[name]] = values
        for name, found in filled.items():
            if found != rows:
                raise ValueError(f"{name}: {found} rows, expected {rows}")
        return columns

    def require(self) -> VersionMeasurement:
        """What is kept.

        Raises:
            StoreError: nothing, or something damaged.
        """
        from congruence.tasks.store.embeddings import StoreError

        found = self.read()
        if found is None:
            raise StoreError(
                f"{self.objects.uri}: {self.key} is missing or damaged; run again: only this version is solved again"
            )
        return found

    def remove(self) -> None:
        """Forget it: it is logged."""
        self.objects.remove([self.key, *self.objects.objects(self._blocks)])

    @property
    def _blocks(self) -> str:
        return self.key.removesuffix(".npz")


def _narrow(name: str, values: Array) -> Array:
    """What is logged of a row and goes into no number of all rows, in the single precision in which it is logged."""
    column = np.asarray(values)
    return column.astype(np.float32) if column.dtype == np.float64 and name.startswith(_OF_ROWS) else column


def _named(columns: Mapping[str, Array]) -> str:
    """The names of columns, or their digest where a file could not be called so."""
    names = "+".join(sorted(columns))
    return names if len(names) <= _LONGEST_NAME else hashlib.sha256(names.encode()).hexdigest()[:16]


def to_bytes(measurement: VersionMeasurement) -> bytes:
    """``measurement`` as an NPZ file."""
    arrays: dict[str, Array] = {}

    def described(part: Any) -> Any:
        if isinstance(part, np.ndarray):
            arrays[name := str(len(arrays))] = part
            return {_ARRAY: name}
        if isinstance(part, np.generic):
            return part.item()
        kind = type(part).__name__
        return {_KIND: kind} | {item.name: getattr(part, item.name) for item in fields(_KINDS[kind])}

    description = json.dumps(measurement, default=described)
    return to_npz({**arrays, _DESCRIPTION: np.array(description)})


def from_bytes(content: bytes) -> VersionMeasurement:
    """The measurement that ``to_bytes`` wrote.

    Raises:
        ValueError, KeyError, TypeError: the content is damaged.
    """
    arrays = from_npz(content)

    def restored(part: dict[str, Any]) -> Any:
        if _ARRAY in part:
            return arrays[part[_ARRAY]]
        return _KINDS[part.pop(_KIND)](**part) if _KIND in part else part

    measurement = json.loads(str(arrays[_DESCRIPTION]), object_hook=restored)
    if not isinstance(measurement, VersionMeasurement):
        raise ValueError(f"a {type(measurement).__name__}, not a measurement")
    return measurement
