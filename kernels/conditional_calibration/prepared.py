"""A split in memory: bases and null made once; every model version is then a projection and a comparison.

It is a split of one block: the passes are those of ``tested_versions``, over directions that are held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, require_matrix, to_numpy
from congruence.kernels.calibration.pit import require_pit
from congruence.kernels.calibration.pit_scores import pit_scores
from congruence.kernels.conditional_calibration.bases import (
    BasisPlan,
    InputBases,
    OwnColumns,
    Tiles,
    basis_sums,
    held_tiles,
    own_quantiles,
    sample_positions,
)
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.local_reading import LocalDistribution, LocalReading
from congruence.kernels.conditional_calibration.passes import (
    SHARED,
    Sums,
    VersionPlan,
    VersionRows,
    influence_of,
    planned_version,
)
from congruence.kernels.conditional_calibration.score_test import (
    SharedNull,
    TestedVersion,
    VersionTests,
    drawn_null_of_split,
)
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.conditional_calibration.vector_targets import VectorBasis, vector_test
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence
from congruence.kernels.dependence.scores import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.weights import mean_one

REGULARIZATION = 0.1
"""lambda of the protocol's kernel, where it is not that of a prepared split: with it rows are read."""


@dataclass(frozen=True)
class PreparedCalibration:
    """A split's bases and null (from ``prepare_calibration``): tests as many model versions as wanted.

    Attributes:
        bases: that all versions share.
        vectors: U of all bases at the n rows, in single precision, (n, k).
        has_card: whether draws are projected on a card.
    """

    bases: InputBases = field(repr=False)
    vectors: Array = field(repr=False)
    has_card: bool = False

    @cached_property
    def null(self) -> SharedNull:
        """The draws, made when the first version needs them: counts, vectors and dependent rows have their own."""
        rows = HeldRows(self.vectors, self.has_card)
        return SharedNull.of(self.bases, drawn_null_of_split(rows.run, self.bases)[SHARED])

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.vectors)

    @property
    def settings(self) -> CalibrationSettings:
        """Of the test."""
        return self.bases.plan.settings

    @property
    def seed(self) -> int:
        """Of the landmarks and draws."""
        return self.bases.plan.seed

    def test_version(
        self,
        y: Any,
        predictive: Distribution,
        *,
        keys: Any | None = None,
        seed: int = 0,
        groups: Any | None = None,
        time: Any | None = None,
        weights: Any | None = None,
    ) -> ConditionalCalibrationTest:
        """Test one model version from its predictive distributions.

        Args:
            y: targets of the split, (n,); or (n, q), see ``vector_targets``.
            predictive: n predictive distributions: any family, counts, ``Samples`` as draws of the model's law.
            keys: one name per row, for the randomisation of PIT values (see ``pit_values``).
            seed: of the randomisation.
            groups: one value per row: rows of one group may depend on each other (see ``dependence.blocks``).
            time: one sortable value per row: rows near each other in time may. Groups go before time.
            weights: what each row counts in the effects, which are means over rows. The test takes rows as they are.

        Raises:
            InvalidInputError: y, predictive or weights do not fit the split; or fewer than ten groups or runs of time.
        """
        self._require_rows(len(predictive), "predictive")
        dependence = RowDependence.of(self.n, groups=groups, time=time)
        if predictive.dimension > 1:
            return self.test_vectors(y, predictive, version_blocks(dependence, y, predictive))
        design = {"dependence": dependence, "weights": weights}
        return self.version(y, predictive, keys=keys, seed=seed, read=False, **design).test

    def test_vectors(
        self, y: Any, predictive: Distribution, blocks: DependentBlocks | None
    ) -> ConditionalCalibrationTest:
        """Test one version of vector targets (n, q) by known blocks of rows, see ``vector_targets``."""
        bases = [VectorBasis(basis.name, basis.eigenvalues, self.vectors[:, basis.place]) for basis in self.bases.bases]
        return vector_test(bases, y, predictive, self.settings, seed=self.seed, blocks=blocks)

    def version(
        self,
        y: Any,
        predictive: Distribution,
        *,
        keys: Any | None = None,
        seed: int = 0,
        dependence: RowDependence | None = None,
        weights: Any | None = None,
        read: bool = True,
    ) -> HeldVersion:
        """Test one version of scalar targets, and read it at every row; see ``test_version``."""
        quantiles = own_quantiles(y, predictive, self.settings.levels)
        plan = self._planned(quantiles)
        counted = None if weights is None else mean_one(weights, self.n)
        rows = VersionRows.of(plan, y, predictive, quantiles, keys=keys, seed=seed, weights=counted)
        blocks = None
        if dependence is not None:
            counts = y if predictive.is_discrete else None
            blocks = dependence.blocks(lambda: rows.scores, noisy=predictive.is_discrete, counts=counts)
        return self._tested(plan, rows, blocks, read=read)

    def test(self, pit: Any, predictive_quantiles: Any | None = None) -> ConditionalCalibrationTest:
        """Test one model version from its PIT values (n,), randomised where the law has atoms.

        Args:
            pit: F_i(y_i), in [0, 1].
            predictive_quantiles: (n, q) at ``settings.levels``, the inputs of the version's own basis; or anything else
                that the version says of each row, as ``own_quantiles`` gives it. None for no such basis.

        Raises:
            InvalidInputError: values outside [0, 1] or not finite, or another number of rows.
        """
        checked = require_pit(pit)
        self._require_rows(len(checked), "pit")
        quantiles = None
        if predictive_quantiles is not None:
            self._require_rows(len(predictive_quantiles), "predictive quantiles")
            quantiles = to_numpy(require_matrix(predictive_quantiles, "predictive quantiles"))
        plan = self._planned(quantiles)
        own = None if plan.own is None or quantiles is None else OwnColumns.of(plan.own, quantiles)
        return self._tested(plan, VersionRows(checked, pit_scores(checked), own), None, read=False).test

    def _planned(self, quantiles: Array | None) -> VersionPlan:
        if quantiles is None:
            return VersionPlan("")
        sampled = np.asarray(quantiles, dtype=np.float64)[sample_positions(self.n, self.seed)]
        return planned_version(self.bases, "", sampled, np.float64)

    def _tested(
        self, plan: VersionPlan, rows: VersionRows, blocks: DependentBlocks | None, *, read: bool
    ) -> HeldVersion:
        held = HeldRows(self.vectors, self.has_card, {plan.name: rows})
        tests = VersionTests(held.run, self.bases, [plan], {plan.name: blocks}, known=lambda: self.null)
        return HeldVersion(tests.tested(read=read)[plan.name], held.columns[plan.name])

    def _require_rows(self, rows: int, name: str) -> None:
        if rows != self.n:
            raise InvalidInputError(f"{name}: {rows} rows, but the split has {self.n}; they must match row by row")


@dataclass(frozen=True)
class HeldRows:
    """All rows of a split, as one block (see ``CalibrationRows``).

    Attributes:
        vectors: U of all bases, (n, k).
        has_card: whether draws are projected on a card.
        known: the rows of versions.
        columns: what was written of them.
    """

    vectors: Array = field(repr=False)
    has_card: bool = False
    known: dict[str, VersionRows] = field(default_factory=dict, repr=False)
    columns: dict[str, dict[str, Array]] = field(default_factory=dict, repr=False)
    first: int = 0

    def run(self, name: str, function: Callable[..., Sums], *context: Any) -> Sums:  # noqa: ARG002
        """See ``RunPass``."""
        return function(self, *context)

    def tiles(self) -> Tiles:
        """See ``CalibrationRows``."""
        return held_tiles(self.vectors)

    def versions(self, plans: Sequence[VersionPlan]) -> dict[str, VersionRows]:
        """See ``CalibrationRows``."""
        return {plan.name: self.known[plan.name] for plan in plans}

    def write(self, version: str, columns: dict[str, Array]) -> None:
        """See ``CalibrationRows``."""
        self.columns[version] = columns


@dataclass(frozen=True)
class HeldVersion:
    """A version on a split in memory.

    Attributes:
        found: what the passes said of it.
        columns: of every row: what it contributes to the effects, (n,) each, and its reading, if it was asked for.
    """

    found: TestedVersion
    columns: dict[str, Array] = field(repr=False)

    @property
    def test(self) -> ConditionalCalibrationTest:
        """With its effects."""
        return self.found.test

    @property
    def reading(self) -> LocalReading:
        """At every row."""
        return LocalReading.of_rows(self.columns, self.found.mixing)

    @property
    def influence(self) -> Array:
        """What each row contributes to the effect of each order, (n, 4)."""
        return influence_of(self.columns)

    def curves(self, split: PreparedCalibration, rows: Array) -> LocalDistribution:
        """The local P-P plot at some rows."""
        return self.found.curves(split.bases, split.vectors[rows])


def prepare_calibration(
    inputs: Any,
    *,
    input_kernel: Kernel | None = None,
    regularization: float = REGULARIZATION,
    settings: CalibrationSettings | None = None,
    seed: int = 0,
) -> PreparedCalibration:
    """Do once what depends on the inputs alone: the bases of the test.

    Args:
        inputs: reference inputs x (n, d), NumPy or CuPy.
        input_kernel: the protocol's; without one its basis is left out.
        regularization: lambda of the protocol's kernel.
        settings: hypotheses and draws.
        seed: of the landmarks and draws.

    Raises:
        InvalidInputError: inputs that cannot be evaluated.
    """
    settings = CalibrationSettings() if settings is None else settings
    has_card = array_namespace(inputs) is not np
    x = to_numpy(require_matrix(inputs, "x"))
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float64)
    plan = BasisPlan.of(
        x[sample_positions(len(x), seed)],
        len(x),
        settings,
        input_kernel=input_kernel,
        regularization=regularization,
        seed=seed,
    )
    bases = InputBases.of(plan, basis_sums(plan, x))
    # One array, filled as it comes: a list of tiles joined at the end would be in memory twice.
    vectors = np.empty((len(x), bases.directions), dtype=np.float32)
    for rows, tile in bases.tiles(x):
        vectors[rows] = tile
    return PreparedCalibration(bases, vectors, has_card)


def conditional_calibration_test(
    x: Any,
    y: Any,
    predictive: Distribution,
    *,
    input_kernel: Kernel | None = None,
    settings: CalibrationSettings | None = None,
    seed: int = 0,
    keys: Any | None = None,
    groups: Any | None = None,
    time: Any | None = None,
    weights: Any | None = None,
) -> ConditionalCalibrationTest:
    """Test of "given its input, every target follows its predicted law"; exact at every n for every family.

    Args:
        x: inputs, usually embeddings, (n, d).
        y: targets (n,) or (n, q).
        predictive: n predictive distributions; ``Samples`` count as draws from the model's law.
        input_kernel: the protocol's, for a basis of its own.
        settings: hypotheses and draws.
        seed: of landmarks, draws and randomised PIT values.
        keys: one name per row, for the randomisation of PIT values (see ``pit_values``).
        groups: of rows that may depend on each other, see ``PreparedCalibration.test_version``.
        time: as ``groups``, of rows in an order.
        weights: what each row counts in the effects.

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value.
    """
    prepared = prepare_calibration(x, input_kernel=input_kernel, settings=settings, seed=seed)
    return prepared.test_version(y, predictive, keys=keys, seed=seed, groups=groups, time=time, weights=weights)
