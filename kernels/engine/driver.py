"""Versions measured on a split by passes over its rows, in their order, wherever these are run.

In memory the passes run in this process (``LocalPasses``), on a cluster by its workers; reference split, query points,
weights, samples and other references are arguments. A short split is exact; a longer one has as many landmarks as its
certificate needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import (
    Columns,
    FoundBlocks,
    HeldRows,
    LocalPasses,
    Pass,
    Write,
    blocks_of_version,
    blocks_of_versions,
    dependent_rows,
    evenly_spaced,
    held,
    whole_rows,
)
from congruence.kernels.engine.cce import (
    EXACT_FLOOR_ENTRIES,
    Asked,
    Solved,
    VersionAnswer,
    influence_pass,
    points_pass,
    reference_pass,
    right_hand_sides_pass,
    scores_pass,
)
from congruence.kernels.engine.congruence_test import CongruenceTest
from congruence.kernels.engine.landmarks import (
    EXACT_ROWS,
    MOST_EXACT_ROWS,
    Accuracy,
    Preparation,
    kernel_variation,
    local_factor,
    warn_if_nearly_constant,
)
from congruence.kernels.engine.null import expected_at, expected_by_blocks, true_coefficients
from congruence.kernels.engine.plan import (
    ALL_TAILS,
    FIRST_TAILS,
    Ask,
    MissingTailError,
    PlannedVersion,
    SeenSplit,
    look_pass,
    needs_residual,
)
from congruence.kernels.engine.results import CongruenceResult, CongruenceUncertainty, TargetVariation
from congruence.kernels.engine.system import System
from congruence.kernels.engine.uncertainty import POINTS
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.protocol import EvaluationProtocol, ReferenceChoice
from congruence.kernels.rng import stream
from congruence.kernels.threads import single_threaded_blas

SAMPLED = 16_384  # rows that tell with how many landmarks to begin
SPLITS_SAMPLED = 6  # times as long a split must be for that to be worth it


@dataclass
class Driver(Preparation):
    """The passes over one split, in their order.

    Attributes:
        systems: those that are prepared for these inputs, by landmark count and precision.
        looks: what was seen of targets and predictions.
        dependent: by what blocks of rows each version is judged.

    Raises:
        InvalidInputError: fewer than two rows.
    """

    systems: dict[Any, System] = field(default_factory=dict)
    looks: Pass = field(default_factory=dict)
    dependent: dict[str, FoundBlocks] = field(default_factory=dict)
    _last: Any = None

    def __post_init__(self) -> None:
        self.n = int(sum(self.run.sizes))
        self.m = self.n if self.points is None else int(sum(self.points.sizes))
        if self.n < 2:
            raise InvalidInputError(
                f"x: {self.n} reference points cannot define a conditional distribution; give at least two rows"
            )
        self.kept = {} if isinstance(self.run, LocalPasses) else None

    def look_at(self, versions: Sequence[str]) -> SeenSplit:
        """Look where targets and predictions lie."""
        missing = [name for name in versions if f"version {name}" not in self.looks]
        if missing or not self.looks:
            self.looks |= self.run("look", look_pass, missing, self.n, FIRST_TAILS, False)
        return SeenSplit(self.n, self.looks, self.protocol)

    def find_dependent_rows(self, versions: Sequence[str]) -> None:
        """Find by what blocks of rows each version is judged."""
        found = self.run("dependent rows", dependent_rows, list(versions), self.n)[""]
        if found.kept:
            self.dependent |= blocks_of_versions(found, self.n, versions)

    def system(self, landmarks: int, dtype: Any = None, *, needs_targets: bool = False) -> System:
        """Returns the system on so many landmarks; where targets are needed, with their residual variance.

        Warns:
            NearlyConstantKernelWarning: the input kernel hardly depends on its inputs.

        Raises:
            BudgetError: more rows than one process factors.
        """
        is_exact = landmarks >= self.n
        if is_exact and self.n > MOST_EXACT_ROWS and self.factorize is local_factor:
            raise BudgetError(
                f"an exact answer on {self.n:,} rows: one process factors at most {MOST_EXACT_ROWS:,}; use landmarks "
                "(their certificate says how exact they are), or solver.kind cholesky on a cluster"
            )
        if dtype is None:
            dtype = self.dtype or (np.float64 if is_exact or self.n <= EXACT_ROWS else np.float32)
        key = (min(landmarks, self.n), np.dtype(dtype), needs_targets)
        if key not in self.systems:
            if is_exact:  # as large as all rows
                self.systems.clear()
            self.systems[key] = self.prepared(landmarks, np.dtype(dtype), needs_targets)
            read = self.systems[key].inputs.residual
            warn_if_nearly_constant(kernel_variation(read, self.protocol.input_kernel), stacklevel=4)
        self._last = key
        return self.systems[key]

    @property
    def last_system(self) -> System:
        """The one that was asked for last."""
        return self.systems[self._last]

    def solve(self, ask: Ask, landmarks: int, write: Write, dtype: Any = None) -> Solved:
        """Returns right-hand sides and scores on so many landmarks."""
        system = self.system(landmarks, dtype, needs_targets=needs_residual(self.protocol))
        knows_floor = system.inputs.is_exact and self.n * self.m <= EXACT_FLOOR_ENTRIES
        plans = [each for name in ask.versions for each in self._plans(system, name, ask, knows_floor=knows_floor)]
        rows, at = system.residual_positions
        sums = self.run("right-hand sides", right_hand_sides_pass, system.inputs.of_leading(), plans, rows)
        with single_threaded_blas():  # of many short calls
            inverse = system.inverse if knows_floor else None
            answers = [VersionAnswer.of(system, plan, sums[plan.label], inverse) for plan in plans]
        shown = evenly_spaced(self.m, POINTS if ask.band or ask.uncertainty else 0)
        asked = Asked(self.m, rows, at, shown)
        if self.points is None:
            inputs = system.inputs if inverse is not None else system.inputs.of_leading()
            scores = self.run("scores", scores_pass, inputs, answers, asked, write)
        else:
            scores = self.points("scores", points_pass, system.inputs, answers, asked, write)
            if not system.inputs.is_exact or any(answer.fit is not None for answer in answers):
                for label, more in self.run("residuals", reference_pass, system.inputs, answers, asked).items():
                    scores[label].merge(more)
        return Solved(system, answers, sums, scores, self.m, elsewhere=self.points is not None)

    def best(
        self, ask: Ask, write: Write, accuracy: Accuracy, announce: Callable[[str], None] = lambda _: None
    ) -> tuple[Solved, str]:
        """Returns the answer on as few landmarks as the certificate of every version allows, and why so many."""
        if self.n <= accuracy.exact_rows:
            announce(f"{self.n:,} rows in {len(self.run.sizes)} blocks, exact")
            return self.solve(ask, self.n, write), "a short split, whose rows are all landmarks"
        landmarks, tries = self._first_count(ask, accuracy)
        while True:
            announce(f"{self.n:,} rows in {len(self.run.sizes)} blocks, {landmarks:,} landmarks")
            solved = self.solve(ask, landmarks, write)
            reason = _reason(solved, accuracy)
            if solved.worst <= accuracy.share:
                return solved, reason
            # Half as many as asked for span k_X at twice as many inputs: further ones repeat them.
            spanned = 2 * len(solved.system.inputs.landmarks) <= landmarks
            if spanned and solved.system.inputs.dtype.itemsize == 4:  # what is left is rounding
                announce(f"{reason}; they span the kernel, so once more in double precision")
                solved = self.solve(ask, landmarks, write, np.float64)
                reason = _reason(solved, accuracy)
                if solved.worst <= accuracy.share:
                    return solved, reason
            tries.append((landmarks, solved.worst))
            following = None if spanned else accuracy.next_count(self.n, tries)
            if following is None:
                more = "further landmarks" if spanned else f"{accuracy.largest:,} landmarks"
                announce(f"{reason}, which {more} would not reach; solver.kind cholesky is exact")
                return solved, reason
            announce(reason)
            landmarks = following

    def measure(
        self, ask: Ask, accuracy: Accuracy, announce: Callable[[str], None] = lambda _: None
    ) -> dict[str, CongruenceResult]:
        """Returns what is measured of versions, by label, whose columns are held in this process."""
        columns = Columns()
        solved, reason = self.best(ask, columns, accuracy, announce)
        found = self.finish(solved, columns, reason)
        return {label: with_columns(one, columns.of(label)) for label, one in found.items()}

    def finish(self, solved: Solved, write: Write, reason: str = "") -> dict[str, CongruenceResult]:
        """Returns what the passes say by version, without the columns that they write; see ``with_columns``."""
        inputs, asked, known = solved.system.inputs, solved.influence_weights(), {}
        if asked:
            influence = self.run("influence", influence_pass, inputs.of_leading(), asked, write)
        with single_threaded_blas():
            for label, (_, weights) in asked.items():
                known[label] = solved.uncertainty(label, weights, influence[label])
            return {
                a.version.label: self._measured(solved, a, known.get(a.version.label), reason) for a in solved.answers
            }

    def _measured(
        self, solved: Solved, answer: VersionAnswer, uncertainty: CongruenceUncertainty | None, reason: str
    ) -> CongruenceResult:
        label, version = answer.version.label, answer.version
        scores, sides = solved.scores[label], solved.right_hand_sides[label]
        band, test = None, None
        if "expected" in sides.added:
            drawn = true_coefficients(sides, solved.system.inputs.filters)
            floor = scores.added["squared floor"] / self.m
            band = expected_at(scores.rows("vectors at points"), drawn, floor, solved.shown_weights(label))
        elif uncertainty is not None and version.blocks is not None:
            band = expected_by_blocks(uncertainty, version.blocks.count)
        if answer.simulated is not None:
            totals = scores.added["statistics"] / self.m
            blocks = self.n if self.look_at([version.name]).has_signs(version.name) else None
            blocks = blocks if version.blocks is None else version.blocks.count
            test = CongruenceTest.of(float(totals[0]), totals[1:], blocks)
        certificate, inputs = solved.certificates[label], solved.system.inputs
        return CongruenceResult(
            np.empty(0),
            np.empty(0),
            certificate.at_point,
            certificate.in_mean,
            certificate.kind,
            TargetVariation(uncertainty, band),
            test,
            solver="exact" if inputs.is_exact else f"Nystrom on {len(inputs.landmarks)} landmarks",
            output_kernel=version.kernel.describe(),
            inference=self.dependent.get(version.name, FoundBlocks()).inference,
            reason=reason,
        )

    def _plans(self, system: System, name: str, ask: Ask, *, knows_floor: bool) -> list[PlannedVersion]:
        """Returns what is fixed of a version: once, or for each repeat of its draws."""
        known = self.dependent.get(name, FoundBlocks())
        if known.refused:
            ask = replace(ask, tested=False, band=False)
        given = name, ask, system, self.seed, known.blocks
        try:
            plan = self.look_at([name]).plan(*given, knows_floor=knows_floor)
        except MissingTailError:
            ends = self.run("look", look_pass, [name], self.n, ALL_TAILS, True)[f"version {name}"]
            self.looks[f"version {name}"].largest |= ends.largest
            plan = self.look_at([name]).plan(*given, knows_floor=knows_floor)
        if ask.samples is None:
            return [plan]
        seen = self.look_at([name])
        return [seen.repeated(plan, ask.samples, repeat) for repeat in ask.repeats]

    def _first_count(self, ask: Ask, accuracy: Accuracy) -> tuple[int, list[tuple[int, float]]]:
        """Returns with how many landmarks to begin, and what fewer left on a sample of the rows.

        A try costs as much as an answer. What landmarks miss hangs on the spectrum of k_X over the inputs, hardly on
        their number; the certificate of the whole split has the last word.
        """
        tries: list[tuple[int, float]] = []
        landmarks, *further = accuracy.counts(self.n)
        if not further or self.n < SPLITS_SAMPLED * SAMPLED or self.points is not None:
            return landmarks, tries
        positions = np.sort(stream(self.seed, "rows of a first try").choice(self.n, SAMPLED, replace=False))
        rows = held(self.run("first try", whole_rows, list(ask.versions), positions), ask.versions)
        sample = Driver(LocalPasses(rows), self.protocol, self.seed, dtype=np.float32)
        alone = replace(ask, tested=False, samples=None, band=False, uncertainty=False)
        while landmarks <= SAMPLED // 8:
            try:
                worst = sample.solve(alone, landmarks, lambda *_: None).worst
            except (InvalidInputError, BudgetError):  # rare counts, all 0 in a sample: the whole split says what it is
                break
            following = accuracy.next_count(self.n, [*tries, (landmarks, worst)])
            if worst <= accuracy.share or following is None:
                break
            tries.append((landmarks, worst))
            landmarks = following
        return landmarks, tries


def with_columns(found: CongruenceResult, columns: Mapping[str, Array]) -> CongruenceResult:
    """Returns what passes said of a version with the columns that they wrote of all points and reference rows."""
    variation, test = found.made, found.test
    assert isinstance(variation, TargetVariation)
    if (uncertainty := variation.uncertainty) is not None:
        squared, root = columns["influence_squared"], columns["influence"]
        influence = replace(uncertainty.influence, squared=squared, root=root)
        variation = replace(variation, uncertainty=replace(uncertainty, influence=influence))
    if test is not None:
        test = replace(test, point_p_values=columns["p_value"], point_statistics=columns["statistic"])
    values, floor, weights = columns["cce"], columns["noise_floor"], columns.get("weight")
    return replace(found, values=values, noise_floor_values=floor, made=variation, test=test, weights=weights)


def _reason(solved: Solved, accuracy: Accuracy) -> str:
    """Returns why so many landmarks, in one sentence."""
    return (
        f"{len(solved.system.inputs.landmarks):,} landmarks leave a certificate of {solved.worst:.2g} of the mean CCE "
        f"or its noise floor, {accuracy.share:.2g} is the aim"
    )


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
