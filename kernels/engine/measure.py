"""Versions measured on rows in memory under a protocol: once, or as the mean over repeats of its draws and references.

The papers report mean and standard deviation over repeats: ``preprint`` draws one sample per point five times; ``ecai``
does so for each of ten bootstraps of the validation split, which adds the reference's own sampling error. A repeat is
the same driver with other reference rows, weights or draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, mean_one, require_matrix, require_targets
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import HeldRows, LocalPasses
from congruence.kernels.engine.dependence import BlocksInference, FoundBlocks, blocks_of_version
from congruence.kernels.engine.driver import Accuracy, Ask, Columns, Driver, Measured
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.engine.uncertainty import repeated_uncertainty, spread_over
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol, ReferenceChoice, reference_choices


@dataclass(frozen=True)
class MeasuredVersion:
    """The CCE of a version, and how it was made.

    Attributes:
        result: with uncertainty, band, test and certificate.
        solver: in words.
        output_kernel: k_Y with its resolved bandwidth.
        inference: by what blocks of rows; None where they are independent.
        reason: why that solver, in one sentence.
    """

    result: CongruenceResult
    solver: str
    output_kernel: dict[str, Any]
    inference: BlocksInference | None = None
    reason: str = ""


@dataclass(frozen=True)
class HeldSplit:
    """Rows in memory, and the points at which CCE is wanted.

    Attributes:
        x: embeddings of the reference rows, (n, d).
        y: their targets, (n,) or (n, q).
        query: embeddings of other points, (m, d); None for the reference rows.
        weights: what each point counts in means, (m,), of mean 1; None for equal weights.
        dependence: which reference rows may depend on each other; None where they are independent.
        systems: prepared systems by landmark count, shared by what asks for the same inputs.
    """

    x: Array = field(repr=False)
    y: Array = field(repr=False)
    query: Array | None = field(default=None, repr=False)
    weights: Array | None = field(default=None, repr=False)
    dependence: RowDependence | None = field(default=None, repr=False)
    systems: dict[Any, Any] = field(default_factory=dict, repr=False)

    def driver(
        self,
        protocol: EvaluationProtocol,
        versions: Mapping[str, Distribution],
        seed: int,
        choice: ReferenceChoice | None = None,
    ) -> Driver:
        """Returns the driver of all rows, or of some as the reference, with their blocks of dependent rows."""
        if choice is None or (choice.roots is None and len(choice.rows) == len(self.x)):
            own = HeldRows(self.x, self.y, versions, self.weights if self.query is None else None)
            points = None if self.query is None else LocalPasses(HeldRows(self.query, counted=self.weights))
            driver = Driver(LocalPasses(own), protocol, seed, points=points, systems=self.systems)
            for name, predictive in versions.items():
                driver.dependent[name] = blocks_of_version(self.dependence, self.y, predictive)
            return driver
        rows, query = choice.rows, self.x if self.query is None else self.query
        reference = HeldRows(self.x[rows], self.y[rows], {name: model[rows] for name, model in versions.items()})
        points = LocalPasses(HeldRows(query, counted=self.weights))
        return Driver(LocalPasses(reference), protocol, seed, points=points, roots=choice.roots)


def evaluate_protocol(
    protocol: EvaluationProtocol,
    x_reference: Any,
    y: Any,
    versions: Mapping[str, Distribution],
    *,
    query: Any | None = None,
    weights: Any | None = None,
    dependence: RowDependence | None = None,
    landmarks: int | None = None,
    draws: int | None = 0,
    seed: int = 0,
) -> dict[str, CongruenceResult]:
    """Returns the CCE of every version under a protocol.

    Args:
        protocol: kernels, lambda, samples, draws, bootstraps and downsampling; embeddings are brought to unit norm
            where it says so.
        x_reference: embeddings of the reference split, (n, d).
        y: its targets, (n,) or (n, q), which fix the output kernel for all repeats.
        versions: predictive distributions at the reference inputs, n rows each.
        query: embeddings (m, d) of the points to evaluate; by default the reference split.
        weights: what each point counts in means, (m,); equal by default.
        dependence: which reference rows may depend on each other.
        landmarks: see ``prepare``.
        draws: simulated sets of targets of the congruence test; 0 for no test, None for the default number.
        seed: of draws, choices of the reference and probes.

    Raises:
        InvalidInputError: an input that cannot be evaluated.
        ProtocolError: a zero embedding under unit norm.
    """
    x = require_matrix(x_reference, "x_reference")
    points = None if query is None else require_matrix(query, "query")
    counted = None if weights is None else mean_one(weights, len(x if points is None else points))
    split = HeldSplit(x, require_targets(y, "y", len(x)), points, counted, dependence)
    ask = Ask(list(versions), tested=draws != 0, draws=draws or None)
    found = measure_held(split, protocol, versions, ask, Accuracy.of(landmarks), seed)
    return {name: each.result for name, each in found.items()}


def measure_held(
    split: HeldSplit,
    protocol: EvaluationProtocol,
    versions: Mapping[str, Distribution],
    ask: Ask,
    accuracy: Accuracy,
    seed: int = 0,
    announce: Callable[[str], None] = lambda _: None,
) -> dict[str, MeasuredVersion]:
    """Returns what is measured of every version on rows in memory."""
    if not protocol.is_repeated:
        return _measured(split.driver(protocol, versions, seed), ask, accuracy, announce)
    dependence = split.dependence
    split = replace(split, dependence=None)
    ask = replace(ask, tested=ask.tested and dependence is None)
    choices = list(reference_choices(protocol, len(split.x), seed))
    # The test and what is expected of a true version are by the whole reference, or the first part of it.
    judge = split.driver(protocol, versions, seed, choices[0] if protocol.downsampling is not None else None)
    judged = _measured(judge, ask, accuracy, announce)
    kernel = judge.look_at(list(versions)).output_kernel(protocol, judge.last_system)
    if protocol.downsampling is not None and protocol.output_kernel is None:
        whole = split.driver(protocol, versions, seed)
        kernel = whole.look_at(list(versions)).output_kernel(protocol, whole.system(min(accuracy.first, whole.n)))
    fixed, repeats = replace(protocol, output_kernel=kernel), _Repeats(len(split.x))
    for number, choice in enumerate(choices):
        numbers = range(number * protocol.draws, (number + 1) * protocol.draws) if protocol.samples else [number]
        driver = split.driver(fixed, versions, seed, choice)
        repeated = replace(ask, tested=False, samples=protocol.samples, repeats=numbers)
        for label, one in _measured(driver, repeated, accuracy, announce).items():
            repeats.add(label.split(", repeat ")[0], one.result, choice.rows)
    inference = FoundBlocks.of_repeats(dependence).inference
    return {
        name: MeasuredVersion(
            repeats.result(name, judged[name].result, refused=dependence is not None),
            judged[name].solver,
            kernel.describe(),
            inference,
            judged[name].reason,
        )
        for name in versions
    }


def _measured(
    driver: Driver, ask: Ask, accuracy: Accuracy, announce: Callable[[str], None]
) -> dict[str, MeasuredVersion]:
    columns = Columns()
    solved, reason = driver.best(ask, columns, accuracy, announce)
    found: dict[str, Measured] = driver.finish(solved, columns, reason)
    return {
        label: MeasuredVersion(
            one.with_columns(columns.of(label)), one.solver, one.output_kernel, one.inference, one.reason
        )
        for label, one in found.items()
    }


class _Repeats:
    """The results of versions over the repeats of a protocol whose split has n rows."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._found: dict[str, list[CongruenceResult]] = {}

    def add(self, name: str, result: CongruenceResult, rows: Array) -> None:
        """Add one repeat, whose reference held ``rows``."""
        spread = spread_over(result.uncertainty, rows, self._n)
        self._found.setdefault(name, []).append(replace(result, uncertainty=spread))

    def result(self, name: str, judged: CongruenceResult, *, refused: bool) -> CongruenceResult:
        """Returns the means over the repeats, whose bounds hold in every repeat and in their mean.

        ``judged``: by one reference, whose test and expected mean CCE they have; ``refused``: they have none.
        """
        found = self._found.get(name, [])
        if not found:
            raise InvalidInputError("repeats: there are none; give at least one reference sample")
        floors = np.mean([one.noise_floor_values**2 for one in found], axis=0)
        result = replace(
            found[0],
            values=np.mean([one.values for one in found], axis=0),
            noise_floor_values=np.sqrt(floors),
            error_bound=max(one.error_bound for one in found),
            mean_error_bound=float(np.mean([one.mean_error_bound for one in found])),
            bound_kind="sampled" if any(one.bound_kind == "sampled" for one in found) else "computed",
            uncertainty=repeated_uncertainty([one.uncertainty for one in found]),
            means=np.array([one.mean for one in found]),
            mean_squares=np.mean([one.values**2 for one in found], axis=0),
            band=None,
        )
        if refused or judged.band is None:
            return result
        # Draws in place of exact means, and other references, have another floor: norms go with its root.
        counts = np.ones(len(floors)) if result.weights is None else result.weights
        apart = np.sqrt(float(np.mean(counts * floors)) / float(np.mean(counts * judged.noise_floor_values**2)))
        band = judged.band
        scaled = replace(band, mean=apart * band.mean, low=apart * band.low, high=apart * band.high)
        return replace(result, band=scaled, test=judged.test)
