"""The passes over a split in blocks of rows, in their order, wherever they are run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.version_calibration import VersionCalibration
from congruence.kernels.congruence.influence_sums import InfluenceWeights
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.variation import kernel_variation, warn_if_nearly_constant
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.row_blocks import passes
from congruence.kernels.row_blocks.answer import (
    BlockMeasurement,
    certificate,
    measurement,
)
from congruence.kernels.row_blocks.calibration import (
    CalibrationInBlocks,
    calibrate_blocks,
    calibrate_vector_blocks,
)
from congruence.kernels.row_blocks.dependence import FoundBlocks, blocks_of_versions, dependent_rows
from congruence.kernels.row_blocks.inputs import RowSample, inputs_pass
from congruence.kernels.row_blocks.right_hand_sides import right_hand_sides_pass
from congruence.kernels.row_blocks.rows import Pass, SampledRows, Write
from congruence.kernels.row_blocks.runs import BlockPasses, PassesHere
from congruence.kernels.row_blocks.scores import (
    CheckedInputs,
    VersionAnswer,
    influence_pass,
    scores_pass,
    version_answer,
)
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


@dataclass(frozen=True)
class SolvedSplit:
    """What the passes of one landmark count found, up to the influences of rows."""

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


class BlockSplit:
    """The passes over one split, in their order.

    Args:
        run: the passes over its blocks.
        protocol: kernels and lambda.
        seed: of landmarks and draws.
        dtype: of the arithmetic inside a tile; by default double precision up to ``DENSE_LIMIT`` rows.

    Raises:
        InvalidInputError: fewer than two rows.
    """

    def __init__(self, run: BlockPasses, protocol: EvaluationProtocol, seed: int, dtype: Any = None) -> None:
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

    def in_double_precision(self) -> BlockSplit:
        """The same split and what is known of it, with double precision inside a tile."""
        other = copy(self)
        other.dtype = np.dtype(np.float64)
        return other

    def sampled(self, versions: Sequence[str], rows: int) -> BlockSplit:
        """So many of the rows with all that is known of them, as a split in this process."""
        positions = np.sort(stream(self.seed, "rows of a first try").choice(self.n, rows, replace=False))
        found = self.run("first try", passes.whole_rows, list(versions), positions)
        sample = BlockSplit(PassesHere(SampledRows.of(found, versions)), self.protocol, self.seed, self.dtype)
        sample.look_at(versions)
        return sample

    def solve(
        self, landmarks: int, versions: Sequence[str], write: Write, *, draws: int | None, tested: bool
    ) -> SolvedSplit:
        """Landmarks, C'C, right-hand sides and scores."""
        system, positions = self._system(landmarks)
        plans = self._plans(system, versions, draws, tested)
        sums = self.run("right-hand sides", right_hand_sides_pass, system.inputs, plans, positions)
        answers = [version_answer(system, plan, sums[plan.name]) for plan in plans]
        checked = None
        if self.dtype.itemsize == 4:
            double = system.checked.astype(np.float64)
            center = system.inputs.center
            checked = CheckedInputs(
                system.checked if center is None else system.checked - center.astype(self.dtype),
                double if center is None else double - center,
            )
        scores = self.run("scores", scores_pass, system.inputs, answers, checked, write)
        stated = {a.version.name: certificate(system, a, sums[a.version.name], scores[a.version.name]) for a in answers}
        return SolvedSplit(system, answers, sums, scores, stated)

    def finish(self, solved: SolvedSplit, write: Write) -> dict[str, BlockMeasurement]:
        """Influences, and all that the passes say, by version."""
        system, filters = solved.system, solved.system.inputs.filters
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
        influence = self.run("influence", influence_pass, system.inputs, known, write)
        measurements = {}
        for answer in solved.answers:
            name = answer.version.name
            inference = self.dependent.get(name, FoundBlocks()).inference
            parts = solved.right_hand_sides[name], solved.scores[name], influence[name], inference
            measurements[name] = measurement(system, answer, solved.certificates[name], known[name][1], *parts)
        return measurements

    def calibration(
        self, versions: Sequence[str], write: Write, run: BlockPasses
    ) -> Mapping[str, CalibrationInBlocks | VersionCalibration]:
        """Of every version, given the input: by passes of ``run``, which need nothing of the system."""
        judged = [name for name in versions if name not in self.dependent or not self.dependent[name].refused]
        found = {name: each.blocks for name, each in self.dependent.items()}
        asked: dict[str, Any] = {"seed": self.seed, "dtype": self.dtype, "dependent": found}
        if np.ndim(self.looks[""].moments["targets"][1]):
            return calibrate_vector_blocks(run, self.n, self.protocol, judged, **asked)
        return calibrate_blocks(run, self.n, self.protocol, judged, write, **asked)

    def _system(self, landmarks: int) -> tuple[BlockSystem, Array]:
        sample = RowSample.draw(self.n, landmarks, self.seed)
        rows = self.run("sample", passes.sample, self.protocol, self.dtype, sample.positions)[""].rows("inputs")
        inputs, checked = chosen_inputs(self.protocol, sample, rows, self.n, landmarks, self.seed)
        warn_if_nearly_constant(kernel_variation(inputs.residual, self.protocol.input_kernel), stacklevel=5)
        sums = self.run("inputs", inputs_pass, inputs)[""]
        return solved_system(inputs, sums, checked, sample.checked), sample.residual

    def _plans(
        self, system: BlockSystem, versions: Sequence[str], draws: int | None, tested: bool
    ) -> list[BlockVersion]:
        kernel = resolved_kernel(self.protocol, self.looks[""], system)
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
