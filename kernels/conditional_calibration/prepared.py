"""Bases and null of a split, made once; every model version is then a projection and a comparison."""

from __future__ import annotations

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
from congruence.kernels.conditional_calibration.effects import explained_shares
from congruence.kernels.conditional_calibration.hypotheses import basis_hypotheses
from congruence.kernels.conditional_calibration.null import DrawnNull, GaussianNull, Null, projected_scores
from congruence.kernels.conditional_calibration.pit_scores import ORDERS, pit_scores
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.settings import GAUSSIAN_ROWS, CalibrationSettings
from congruence.kernels.conditional_calibration.vector_targets import vector_test
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
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
        self._require_rows(len(predictive), "predictive")
        if predictive.dimension > 1:
            return vector_test(self.bases, y, predictive, self.settings, seed=self.seed)
        pit = pit_values(predictive, y, seed=seed, keys=keys)
        return self.test(pit, own_quantiles(y, predictive, self.settings.levels))

    def test(self, pit: Any, predictive_quantiles: Any | None = None) -> ConditionalCalibrationTest:
        """Test one model version from its PIT values (n,), randomised where the law has atoms.

        Args:
            pit: F_i(y_i), in [0, 1].
            predictive_quantiles: (n, q) at ``settings.levels``, the inputs of the version's own basis; or anything else
                that the version says of each row, as ``own_quantiles`` gives it. None for no such basis.

        Raises:
            InvalidInputError: values outside [0, 1] or not finite, or another number of rows.
        """
        pit = require_pit(pit)
        self._require_rows(len(pit), "pit")
        scores = pit_scores(pit)
        bases, null = self.bases, self.null_evidence
        if predictive_quantiles is not None:
            self._require_rows(len(predictive_quantiles), "predictive quantiles")
            own = own_basis(predictive_quantiles, self.settings, seed=self.seed)
            if own is not None:
                bases = (*bases, own)
                null = np.concatenate([null, self._own_null(own)[None]])
        observed = np.stack(
            [
                basis_hypotheses(basis.eigenvalues, self.settings).evidence(
                    projected_scores(basis.vectors, scores)[:, :, None]
                )
                for basis in bases
            ]
        )
        return self._result(bases, observed, null, scores)

    def _own_null(self, own: InputBasis) -> Array:
        draw = self.null.with_own(own.vectors)
        hypotheses = basis_hypotheses(own.eigenvalues, self.settings)
        blocks = map_on_threads(lambda block: hypotheses.evidence(draw(block)), self.null.blocks(), available_threads())
        return np.concatenate(blocks, axis=1)

    def _result(
        self, bases: tuple[InputBasis, ...], observed: Array, null: Array, scores: Array
    ) -> ConditionalCalibrationTest:
        def p_value(axes: Any) -> float:
            """Of the maximum over the bases and orders at ``axes``."""
            reached = np.max(null[axes], axis=(0, 1)) >= np.max(observed[axes])
            return float((1 + np.count_nonzero(reached)) / (null.shape[2] + 1))

        reference = self._reference
        return ConditionalCalibrationTest(
            statistic=float(np.max(observed)),
            p_value=p_value(np.s_[:]),
            by_order={name: p_value(np.s_[:, j : j + 1]) for j, name in enumerate(ORDERS)},
            by_basis={basis.name: p_value(np.s_[b : b + 1]) for b, basis in enumerate(bases)},
            effects=explained_shares(reference, min(self.settings.ridges), scores),
            means=dict(zip(ORDERS, np.mean(scores, axis=0).tolist(), strict=True)),
            draws=null.shape[2],
            null=self.settings.null,
            null_statistics=np.max(null, axis=(0, 1)),
        )

    @property
    def _reference(self) -> InputBasis:
        """The basis of the effects: the RBF at the middle bandwidth; the constant where the inputs are all equal."""
        middle = distance_name(sorted(self.settings.distances)[len(self.settings.distances) // 2])
        return next((basis for basis in self.bases if basis.name == middle), self.bases[0])

    def _require_rows(self, rows: int, name: str) -> None:
        if rows != self.n:
            raise InvalidInputError(f"{name}: {rows} rows, but the split has {self.n}; they must match row by row")


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
    return PreparedCalibration(settings, seed, bases, null, _shared_evidence(bases, null, settings))


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


def _shared_evidence(bases: tuple[InputBasis, ...], null: Null, settings: CalibrationSettings) -> Array:
    """Evidence of every basis in every draw, (bases, 5, B)."""
    hypotheses = [basis_hypotheses(basis.eigenvalues, settings) for basis in bases]
    ends = np.cumsum([basis.vectors.shape[1] for basis in bases])[:-1]

    def evidence(block: int) -> Array:
        parts = np.split(null.shared(block), ends)
        return np.stack([each.evidence(part) for each, part in zip(hypotheses, parts, strict=True)])

    return np.concatenate(map_on_threads(evidence, null.blocks(), available_threads()), axis=2)
