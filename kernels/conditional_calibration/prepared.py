"""Bases and null of a split, made once; every model version is then a projection and a comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace
from congruence.kernels.calibration.pit import pit_values, require_pit
from congruence.kernels.conditional_calibration.bases import (
    InputBasis,
    distance_name,
    own_basis,
    own_quantiles,
    shared_bases,
    stacked,
)
from congruence.kernels.conditional_calibration.effects import Effect, effect_influence, explained_shares
from congruence.kernels.conditional_calibration.hypotheses import basis_hypotheses
from congruence.kernels.conditional_calibration.null import DrawnNull, GaussianNull, Null, projected_scores
from congruence.kernels.conditional_calibration.pit_scores import ORDERS, pit_scores
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.settings import GAUSSIAN_ROWS, CalibrationSettings
from congruence.kernels.conditional_calibration.settings import Null as NullKind
from congruence.kernels.conditional_calibration.vector_targets import vector_test
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.steps import Advance, step
from congruence.kernels.threads import available_threads, map_on_threads


@dataclass(frozen=True)
class PreparedCalibration:
    """A split's bases and null (from ``prepare_calibration``): tests as many model versions as wanted.

    Attributes:
        settings: of the test.
        seed: of the landmarks and draws.
        bases: that all versions share.
        null: the draws.
        null_evidence: of the shared bases in every draw, (bases, 5, B): each order, then all.
    """

    settings: CalibrationSettings
    seed: int
    bases: tuple[InputBasis, ...] = field(repr=False)
    null: Null = field(repr=False)
    null_evidence: Array = field(repr=False)

    @property
    def n(self) -> int:
        """Number of rows."""
        return len(self.bases[0].vectors)

    def test_version(
        self, y: Any, predictive: Distribution, *, keys: Any | None = None, seed: int = 0
    ) -> ConditionalCalibrationTest:
        """Test one model version from its predictive distributions.

        Args:
            y: targets of the split, (n,); or (n, q), see ``vector_targets``.
            predictive: n predictive distributions: any family, counts, ``Samples`` as draws of the model's law.
            keys: one name per row, for the randomisation of PIT values (see ``pit_values``).
            seed: of the randomisation.

        Raises:
            InvalidInputError: y or predictive do not fit the split.
        """
        return self.test_versions(y, [predictive], keys=keys, seed=seed)[0]

    def test_versions(
        self, y: Any, versions: Sequence[Distribution], *, keys: Any | None = None, seed: int = 0
    ) -> list[ConditionalCalibrationTest]:
        """``test_version`` of some versions: one pass over the draws serves them all.

        Raises:
            InvalidInputError: y or predictive do not fit the split.
        """
        for predictive in versions:
            self._require_rows(len(predictive), "predictive")
        if any(predictive.dimension > 1 for predictive in versions):
            return [vector_test(self.bases, y, law, self.settings, seed=self.seed) for law in versions]
        pits = [pit_values(y, predictive, seed=seed, keys=keys) for predictive in versions]
        return self._tests(pits, [own_quantiles(y, predictive, self.settings.levels) for predictive in versions])

    def test(self, pit: Any, predictive_quantiles: Any | None = None) -> ConditionalCalibrationTest:
        """Test one model version from its PIT values (n,), randomised where the law has atoms.

        Args:
            pit: F_i(y_i), in [0, 1].
            predictive_quantiles: (n, q) at ``settings.levels``, the inputs of the version's own basis; or anything else
                that the version says of each row, as ``own_quantiles`` gives it. None for no such basis.

        Raises:
            InvalidInputError: values outside [0, 1] or not finite, or another number of rows.
        """
        return self._tests([pit], [predictive_quantiles])[0]

    def _tests(self, pits: Sequence[Any], said: Sequence[Any | None]) -> list[ConditionalCalibrationTest]:
        """``test`` of some versions."""
        checked = [require_pit(pit) for pit in pits]
        for pit in checked:
            self._require_rows(len(pit), "pit")
        own = [None if quantiles is None else self._own_basis(quantiles) for quantiles in said]
        nulls = iter(self._own_nulls([basis for basis in own if basis is not None]))
        return [
            self._judged(pit, basis, None if basis is None else next(nulls))
            for pit, basis in zip(checked, own, strict=True)
        ]

    def _own_basis(self, quantiles: Any) -> InputBasis | None:
        self._require_rows(len(quantiles), "predictive quantiles")
        return own_basis(quantiles, self.settings, seed=self.seed)

    def _judged(self, pit: Array, own: InputBasis | None, own_null: Array | None) -> ConditionalCalibrationTest:
        scores = pit_scores(pit)
        bases, null = self.bases, self.null_evidence
        if own is not None and own_null is not None:
            bases = (*bases, own)
            null = np.concatenate([null, own_null[None]])
        observed = np.stack(
            [
                basis_hypotheses(basis.eigenvalues, self.settings).evidence(
                    projected_scores(basis.vectors, scores)[:, :, None]
                )
                for basis in bases
            ]
        )
        effects = explained_shares(self._reference, min(self.settings.ridges), scores)
        means = dict(zip(ORDERS, np.mean(scores, axis=0).tolist(), strict=True))
        return judged([basis.name for basis in bases], observed, null, self.settings.null, effects, means)

    def _own_nulls(self, own: Sequence[InputBasis]) -> list[Array]:
        """Of each basis, (5, B), by the same draws."""
        if not own:
            return []
        draw = self.null.with_own(np.concatenate([basis.vectors for basis in own], axis=1))
        hypotheses = [basis_hypotheses(basis.eigenvalues, self.settings) for basis in own]
        ends = np.cumsum([len(basis.eigenvalues) for basis in own])[:-1]
        blocks = self.null.blocks()

        def evidence(block: int, advance: Advance) -> list[Array]:
            parts = np.split(draw(block), ends)
            found = [each.evidence(part) for each, part in zip(hypotheses, parts, strict=True)]
            advance(1)
            return found

        with step("calibration test", len(blocks), "blocks") as advance:
            found = map_on_threads(lambda block: evidence(block, advance), blocks, available_threads())
        return [np.concatenate(parts, axis=1) for parts in zip(*found, strict=True)]

    def effect_influence(self, pit: Any) -> Array:
        """What each row contributes to the effect of each order, (n, 4), see ``effects.LeaveOneOut.influence``."""
        return effect_influence(self._reference, min(self.settings.ridges), pit_scores(pit))

    @property
    def _reference(self) -> InputBasis:
        """The basis of the effects: the RBF at the middle bandwidth; the constant where the inputs are all equal."""
        return next((basis for basis in self.bases if basis.name == reference_name(self.settings)), self.bases[0])

    def _require_rows(self, rows: int, name: str) -> None:
        if rows != self.n:
            raise InvalidInputError(f"{name}: {rows} rows, but the split has {self.n}; they must match row by row")


def reference_name(settings: CalibrationSettings) -> str:
    """The name of the basis on which effects are estimated."""
    return distance_name(sorted(settings.distances)[len(settings.distances) // 2])


def judged(
    names: Sequence[str],
    observed: Array,
    null: Array,
    null_kind: NullKind,
    effects: Mapping[str, Effect],
    means: Mapping[str, float],
) -> ConditionalCalibrationTest:
    """The outcome, from the evidence of every basis and order.

    Args:
        names: of the bases.
        observed: (bases, 5, 1), each order, then all.
        null: of the draws, (bases, 5, B).
        null_kind: what drew them.
        effects, means: by order.
    """

    def p_value(axes: Any) -> float:
        """Of the maximum over the bases and orders at ``axes``."""
        reached = np.max(null[axes], axis=(0, 1)) >= np.max(observed[axes])
        return float((1 + np.count_nonzero(reached)) / (null.shape[2] + 1))

    return ConditionalCalibrationTest(
        statistic=float(np.max(observed)),
        p_value=p_value(np.s_[:]),
        by_order={name: p_value(np.s_[:, j : j + 1]) for j, name in enumerate(ORDERS)},
        by_basis={name: p_value(np.s_[b : b + 1]) for b, name in enumerate(names)},
        effects=effects,
        means=means,
        draws=null.shape[2],
        null=null_kind,
        null_statistics=np.max(null, axis=(0, 1)),
    )


def prepare_calibration(
    inputs: PreparedCongruence | Any,
    *,
    input_kernel: Kernel | None = None,
    settings: CalibrationSettings | None = None,
    seed: int = 0,
) -> PreparedCalibration:
    """Do once what depends on the inputs alone: bases, and the null of the test.

    Args:
        inputs: a prepared split (``prepare``), or reference inputs x (n, d), NumPy or CuPy.
        input_kernel: the protocol's, where ``inputs`` are x; without one its basis is left out.
        settings: hypotheses, draws and null.
        seed: of the landmarks and draws.

    Raises:
        InvalidInputError: inputs that cannot be evaluated; or the gaussian limit at 100,000 rows or fewer.
    """
    settings = CalibrationSettings() if settings is None else settings
    bases = shared_bases(inputs, settings, input_kernel=input_kernel, seed=seed)
    vectors = stacked(bases)
    n, draws = len(vectors), settings.draws_for(len(vectors))
    if settings.null == "gaussian" and n <= GAUSSIAN_ROWS:
        raise InvalidInputError(
            f"null: the gaussian limit is for more than {GAUSSIAN_ROWS:,} rows, here are {n:,}; use null='exact'"
        )
    exact = settings.null == "exact"
    null: Null = DrawnNull(vectors, draws, seed, _has_card(inputs)) if exact else GaussianNull.of(vectors, draws, seed)
    return PreparedCalibration(settings, seed, bases, null, shared_evidence(bases, null, settings))


def _has_card(inputs: PreparedCongruence | Any) -> bool:
    if isinstance(inputs, PreparedCongruence):
        return inputs.operator.has_card
    return array_namespace(inputs) is not np


def conditional_calibration_test(
    x: Any,
    y: Any,
    predictive: Distribution,
    *,
    input_kernel: Kernel | None = None,
    settings: CalibrationSettings | None = None,
    seed: int = 0,
    keys: Any | None = None,
) -> ConditionalCalibrationTest:
    """Test of "given its input, every target follows its predicted law"; exact at every n for every family.

    Args:
        x: inputs, usually embeddings, (n, d).
        y: targets (n,) or (n, q).
        predictive: n predictive distributions; ``Samples`` count as draws from the model's law.
        input_kernel: the protocol's, for a basis of its own.
        settings: hypotheses, draws and null.
        seed: of landmarks, draws and randomised PIT values.
        keys: one name per row, for the randomisation of PIT values (see ``pit_values``).

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value.
    """
    prepared = prepare_calibration(x, input_kernel=input_kernel, settings=settings, seed=seed)
    return prepared.test_version(y, predictive, keys=keys, seed=seed)


def shared_evidence(bases: tuple[InputBasis, ...], null: Null, settings: CalibrationSettings) -> Array:
    """Evidence of every basis in every draw, (bases, 5, B)."""
    hypotheses = [basis_hypotheses(basis.eigenvalues, settings) for basis in bases]
    ends = np.cumsum([len(basis.eigenvalues) for basis in bases])[:-1]

    def evidence(block: int, advance: Advance) -> Array:
        parts = np.split(null.shared(block), ends)
        found = np.stack([each.evidence(part) for each, part in zip(hypotheses, parts, strict=True)])
        advance(1)
        return found

    blocks = null.blocks()
    with step("null of the calibration test", len(blocks), "blocks") as advance:
        found = map_on_threads(lambda block: evidence(block, advance), blocks, available_threads())
    return np.concatenate(found, axis=2)
