"""Versions measured on a split of any length by row blocks on a cluster: neither client nor workers hold the rows.

Workers read blocks by address, add up what is of constant size, and write what belongs to a row; see
``kernels.row_blocks`` for the passes. Blocks are tied to tasks, and sums to a tree over blocks, that are the same
whoever works on them: so are the numbers. A lost worker costs its own tasks, which others repeat.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np
from distributed import Client

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.influence_sums import InfluenceWeights
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.gram.variation import NEARLY_CONSTANT, NearlyConstantKernelWarning, kernel_variation
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks.answer import (
    BlockMeasurement,
    certificate,
    measurement,
)
from congruence.kernels.row_blocks.inputs import RowSample
from congruence.kernels.row_blocks.scores import CheckedInputs, VersionAnswer, version_answer
from congruence.kernels.row_blocks.system import BlockSystem, chosen_inputs, solved_system
from congruence.kernels.row_blocks.versions import (
    ALL_TAILS,
    FIRST_TAILS,
    BlockVersion,
    MissingTailError,
    planned_version,
    resolved_kernel,
)
from congruence.kernels.solvers.bounds import SolverBounds
from congruence.kernels.solvers.planning import DENSE_LIMIT
from congruence.kernels.streams import stream
from congruence.tasks.scores.names import MetricName, requested_metrics
from congruence.tasks.solving import block_passes as passes
from congruence.tasks.solving.block_passes import Pass, RowBlocks, SampledRows, Write
from congruence.tasks.solving.calibration import VersionCalibration
from congruence.tasks.solving.calibration_in_blocks import (
    CalibrationInBlocks,
    calibrate_blocks,
    calibrate_vector_blocks,
)
from congruence.tasks.solving.dependence import BlocksInference, FoundBlocks, blocks_of_versions, dependent_rows
from congruence.tasks.solving.pass_runner import BlockPasses, PassesHere, PassesOnCluster, side_by_side
from congruence.tasks.solving.plan import BlockAccuracy, OutOfReachError

SAMPLED = 16_384  # rows that tell with how many landmarks to begin
SPLITS_SAMPLED = 6  # times as long a split must be for that to be worth it


class BlockSettings(Protocol):
    """What a measurement reads of an evaluation's settings."""

    @property
    def seed(self) -> int:
        """Of landmarks, probes and draws."""

    @property
    def metrics(self) -> list[MetricName] | None:
        """Which metrics; None for all."""


@dataclass(frozen=True)
class BlockRun:
    """What the passes over a split took.

    Attributes:
        measurements: by version.
        seconds: of each pass, summed over the landmark counts that were tried (``PassesOnCluster``).
        landmarks: of the answer.
        accurate: whether the certificate of every version's mean CCE meets what was asked for.
        calibration: given the input, by version, where it was asked for.
        reason: for so many landmarks, in one sentence.
        inference: by what blocks of rows each version is judged, where rows depend on each other.
    """

    measurements: dict[str, BlockMeasurement]
    seconds: dict[str, float] = field(default_factory=dict)
    landmarks: int = 0
    accurate: bool = True
    calibration: Mapping[str, CalibrationInBlocks | VersionCalibration] = field(default_factory=dict)
    reason: str = ""
    inference: dict[str, BlocksInference | None] = field(default_factory=dict)


def measure_blocks(
    client: Client,
    blocks: RowBlocks,
    settings: BlockSettings,
    protocol: EvaluationProtocol,
    versions: Sequence[str],
    write: Write,
    *,
    accuracy: BlockAccuracy | None = None,
    draws: int | None = None,
    calibrated: bool = False,
    announce: Callable[[str], None] = lambda _: None,
) -> BlockRun:
    """CCE of every version on a split that is its own reference, with everything a version is told.

    Args:
        client: of the cluster.
        blocks: the split.
        settings: seed and metrics.
        protocol: kernels and lambda; with samples, bootstraps or downsampling it is refused.
        versions: a group whose sums fit a worker together.
        write: called on the workers with block, version and columns by name, (rows,) each: ``cce``, ``noise_floor``,
            with the test ``p_value`` and ``statistic``, and in a later call ``influence`` (of the mean CCE) and
            ``influence_squared`` (of the mean CCE^2). It may be called again with better or the same numbers.
        accuracy: landmarks, and how they grow until the certificate holds.
        draws: simulated splits of the test; by default 999 up to 50,000 rows and the first 199 of them beyond.
        calibrated: with the test of calibration given the input and, for scalar targets, its reading, whose columns
            ``calibration_...`` are written in a call of their own.
        announce: told in one line what is done next.

    Raises:
        InvalidInputError: a protocol that row blocks do not serve, fewer than two rows, or rows that cannot be
            evaluated, named by their position in the split.
        BudgetError: k_Y needs too many features on these targets.
        OutOfReachError: ``accuracy`` allows an exact answer, and landmarks do not reach its share or cost more.
    """
    _require_served(protocol)
    accuracy = accuracy or BlockAccuracy()
    run = PassesOnCluster(client, blocks)
    split = _Split(run, protocol, settings.seed)
    tested = "congruence_test" in requested_metrics(settings.metrics)
    split.look_at(versions)
    if hasattr(blocks, "row_dependence"):
        split.find_dependent_rows(versions)
    calibrate = partial(split.calibration, versions, write) if calibrated else _not_calibrated
    with side_by_side(run, calibrate) as calibration:
        best = _best(split, versions, write, accuracy, draws=draws, tested=tested, announce=announce)
        measurements = split.finish(best, write)
    used = len(best.system.inputs.landmarks)
    accurate, found = best.worst <= accuracy.share, calibration.result()
    inference = {name: each.inference for name, each in split.dependent.items()}
    return BlockRun(measurements, run.seconds, used, accurate, found, best.reason(accuracy), inference)


def _not_calibrated(run: BlockPasses) -> dict[str, CalibrationInBlocks]:  # noqa: ARG001
    return {}


def _require_served(protocol: EvaluationProtocol) -> None:
    refused = {
        "samples": protocol.samples is not None,
        "bootstraps": protocol.bootstraps > 0,
        "downsampling": protocol.downsampling is not None,
        "a reference split of its own": protocol.reference != "test",
    }
    for what, is_asked in refused.items():
        if is_asked:
            raise InvalidInputError(
                f"protocol '{protocol.name}': {what} is not measured by row blocks; use a smaller split, which is held "
                "in memory, or protocol 'exact'"
            )


def _nowhere(block: int, version: str, columns: dict[str, Array]) -> None:
    """Where the columns of a try go."""


@dataclass(frozen=True)
class _Solved:
    """The passes of one landmark count."""

    system: BlockSystem
    answers: list[VersionAnswer]
    right_hand_sides: Pass
    scores: Pass
    certificates: dict[str, SolverBounds]

    @property
    def worst(self) -> float:
        """The largest certificate as a share of its mean CCE, or of its noise floor where that is larger."""
        n, tiny = self.system.inputs.n, float(np.finfo(float).tiny)
        sums = {name: self.scores[name].added for name in self.certificates}
        sizes = {name: max(added["values"], added["floor"]) / n for name, added in sums.items()}
        return float(max(stated.in_mean / max(sizes[name], tiny) for name, stated in self.certificates.items()))

    def reason(self, accuracy: BlockAccuracy) -> str:
        """Why so many landmarks, in one sentence."""
        return (
            f"{len(self.system.inputs.landmarks):,} landmarks leave a certificate of {self.worst:.2g} of the mean CCE "
            f"or its noise floor, {accuracy.share:.2g} is the aim"
        )


def _best(
    split: _Split,
    versions: Sequence[str],
    write: Write,
    accuracy: BlockAccuracy,
    *,
    draws: int | None,
    tested: bool,
    announce: Callable[[str], None],
) -> _Solved:
    """On as few landmarks as the certificate of every version allows, or on as many as may be."""
    counts, before = split.counts_to_try(accuracy, versions)
    for landmarks in counts:
        announce(f"{split.n:,} rows in {len(split.run.sizes)} blocks, {landmarks:,} landmarks")
        solved = split.solve(landmarks, versions, write, draws=draws, tested=tested)
        if solved.worst <= accuracy.share:
            break
        reason = solved.reason(accuracy)
        if not accuracy.is_in_reach(landmarks, solved.worst, before, n=split.n):
            if accuracy.exact_work is not None:
                raise OutOfReachError(f"{reason}, and more would cost as much or not reach it")
            announce(f"{reason}, which {accuracy.largest:,} landmarks would not reach; solver.kind names exact ones")
            break
        announce(reason)
        before = solved.worst
    return solved


class _Split:
    """The passes over one split, in their order."""

    def __init__(
        self,
        run: BlockPasses,
        protocol: EvaluationProtocol,
        seed: int,
        dtype: Any = None,
    ) -> None:
        self.run, self.protocol, self.seed = run, protocol, seed
        self.n = int(sum(run.sizes))
        if self.n < 2:
            raise InvalidInputError(
                f"x: {self.n} reference points cannot define a conditional law; give at least two rows"
            )
        # Small systems in double precision, as in memory.
        self.dtype = np.dtype((np.float64 if self.n <= DENSE_LIMIT else np.float32) if dtype is None else dtype)
        self.looks: Pass = {}
        self.dependent: dict[str, FoundBlocks] = {}

    def look_at(self, versions: Sequence[str]) -> None:
        """Where targets and predictions lie."""
        self.looks = self.run("look", passes.look, list(versions), self.n, FIRST_TAILS, False)

    def find_dependent_rows(self, versions: Sequence[str]) -> None:
        """By what blocks of rows each version is judged."""
        found = self.run("dependent rows", dependent_rows, list(versions))[""]
        if found.kept:
            self.dependent = blocks_of_versions(found, self.n, versions)

    def counts_to_try(self, accuracy: BlockAccuracy, versions: Sequence[str]) -> tuple[list[int], float | None]:
        """Landmark counts in turn, but for those that fail on a sample of the rows, and the certificate of the last.

        A try costs as much as an answer. What Nystrom misses hangs on the spectrum of k_X under the law of the inputs,
        hardly on their number; the certificate of the whole split has the last word.
        """
        counts, before = accuracy.counts(self.n), None
        if len(counts) == 1 or self.n < SPLITS_SAMPLED * SAMPLED:
            return counts, None
        rows = np.sort(stream(self.seed, "rows of a first try").choice(self.n, SAMPLED, replace=False))
        found = self.run("first try", passes.whole_rows, list(versions), rows)
        sample = _Split(PassesHere(SampledRows.of(found, versions)), self.protocol, self.seed, self.dtype)
        sample.look_at(versions)
        for at, landmarks in enumerate(counts):
            if landmarks > SAMPLED // 8:
                return counts[at:], before
            try:
                worst = sample.solve(landmarks, versions, _nowhere, draws=None, tested=False).worst
            except (InvalidInputError, BudgetError):  # rare counts, all 0 in a sample: the whole split says what it is
                return counts, None
            if worst <= accuracy.share or not accuracy.is_in_reach(landmarks, worst, before, n=self.n):
                return counts[at:], before
            before = worst
        return counts[-1:], before

    def solve(
        self, landmarks: int, versions: Sequence[str], write: Write, *, draws: int | None, tested: bool
    ) -> _Solved:
        """Landmarks, C'C, right-hand sides and scores."""
        system, positions = self._system(landmarks)
        plans = self._plans(system, versions, draws, tested)
        sums = self.run("right-hand sides", passes.right_hand_sides, system.inputs, plans, positions)
        answers = [version_answer(system, plan, sums[plan.name]) for plan in plans]
        checked = None
        if self.dtype.itemsize == 4:
            double = system.checked.astype(np.float64)
            center = system.inputs.center
            checked = CheckedInputs(
                system.checked if center is None else system.checked - center.astype(self.dtype),
                double if center is None else double - center,
            )
        scores = self.run("scores", passes.scores, system.inputs, answers, checked, write)
        stated = {a.version.name: certificate(system, a, sums[a.version.name], scores[a.version.name]) for a in answers}
        return _Solved(system, answers, sums, scores, stated)

    def finish(self, solved: _Solved, write: Write) -> dict[str, BlockMeasurement]:
        """Influences, and all that the passes say, by version."""
        system, filters = solved.system, solved.system.inputs.filters
        assert filters is not None
        known = {
            a.version.name: (
                a.version,
                InfluenceWeights.of(
                    filters,
                    solved.scores[a.version.name].added.get("weighted spread", system.spread),
                    a.fit,
                    solved.scores[a.version.name],
                    self.n,
                    None if a.version.blocks is None else a.version.blocks.count,
                ),
            )
            for a in solved.answers
        }
        influence = self.run("influence", passes.influence, system.inputs, known, write)
        measurements = {}
        for answer in solved.answers:
            name = answer.version.name
            parts = solved.right_hand_sides[name], solved.scores[name], influence[name]
            measurements[name] = measurement(system, answer, solved.certificates[name], known[name][1], *parts)
        return measurements

    def calibration(
        self, versions: Sequence[str], write: Write, run: BlockPasses
    ) -> Mapping[str, CalibrationInBlocks | VersionCalibration]:
        """Of every version, given the input: by passes of ``run``, which need nothing of the system."""
        if np.ndim(self.looks[""].moments["targets"][1]):
            if self.dependent:
                return {}
            return calibrate_vector_blocks(run, self.n, self.protocol, versions, seed=self.seed, dtype=self.dtype)
        judged = [name for name in versions if name not in self.dependent or not self.dependent[name].refused]
        found = {name: each.blocks for name, each in self.dependent.items()}
        return calibrate_blocks(
            run, self.n, self.protocol, judged, write, seed=self.seed, dtype=self.dtype, dependent=found
        )

    def _system(self, landmarks: int) -> tuple[BlockSystem, Array]:
        sample = RowSample.draw(self.n, landmarks, self.seed)
        rows = self.run("sample", passes.sample, self.protocol, self.dtype, sample.positions)[""].rows("inputs")
        inputs, checked = chosen_inputs(self.protocol, sample, rows, self.n, landmarks, self.seed)
        variation = kernel_variation(inputs.residual, self.protocol.input_kernel)
        if variation < NEARLY_CONSTANT:
            warnings.warn(
                f"the input kernel varies by {variation:.2g} of its mean between points, so CCE hardly depends on x",
                NearlyConstantKernelWarning,
                stacklevel=4,
            )
        sums = self.run("inputs", passes.inputs, inputs)[""]
        return solved_system(inputs, sums, checked, sample.checked), sample.residual

    def _plans(
        self, system: BlockSystem, versions: Sequence[str], draws: int | None, tested: bool
    ) -> list[BlockVersion]:
        kernel = resolved_kernel(self.protocol, self.looks[""], system)
        assert system.inputs.filters is not None
        plans = []
        for name in versions:
            known = self.dependent.get(name, FoundBlocks())
            for attempt in range(2):
                try:
                    plan = planned_version(
                        name,
                        self.looks[""],
                        self.looks[f"version {name}"],
                        kernel,
                        n=self.n,
                        filters=system.inputs.filters,
                        scale=self.protocol.output_scale,
                        fixed_kernel=self.protocol.output_kernel,
                        tested=tested and not known.refused,
                        draws=draws,
                        seed=self.seed,
                        blocks=known.blocks,
                    )
                except MissingTailError:
                    if attempt:
                        raise
                    ends = self.run("look", passes.look, [name], self.n, ALL_TAILS, True)[f"version {name}"]
                    self.looks[f"version {name}"].largest |= ends.largest
                else:
                    plans.append(plan)
                    break
        return plans
