"""A labelled split in memory whose inputs are prepared once: everything that is asked of model versions on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from congruence.kernels.arrays import Array, mean_one, printed, require_matrix, require_targets
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.local_reading import LocalReading, local_reading
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.dependence.blocks import RowDependence, TooFewBlocksError
from congruence.kernels.dependence.correlation import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import HeldRows, LocalPasses
from congruence.kernels.engine.congruence_test import CongruenceTest
from congruence.kernels.engine.driver import Driver, HeldSplit
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.measure import Smoothed, measure_held, smooth
from congruence.kernels.engine.plan import Ask, model_output_kernel
from congruence.kernels.engine.results import CongruenceDifference, CongruenceResult, difference_of_influences
from congruence.kernels.engine.spectrum import SpectralSmoother, Spectrum
from congruence.kernels.engine.system import System
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel, OutputScale, require_kernel
from congruence.kernels.pit import cell_step, pit_values
from congruence.kernels.protocol import EXACT, EvaluationProtocol
from congruence.kernels.trust.scorer import InputScorer, InputScores, input_scorer

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Split:
    """A labelled split with its system prepared, from ``prepare``.

    Methods take the targets y, (n,) or (n, q), then predictive distributions at the n rows of the split.

    Attributes:
        x: reference inputs, (n, d).
        protocol: the input kernel and lambda.
        query: points (m, d); None for the reference points.
        weights: what each point counts in means over them, (m,), of mean 1; None where they count equally.
        dependence: which rows may depend on each other; None where all are independent.
        accuracy: how many landmarks the answers stand on.
        normalize: whether inputs were brought to unit norm, as those that methods take are, too.
    """

    x: Array = field(repr=False)
    protocol: EvaluationProtocol
    query: Array | None = field(default=None, repr=False)
    weights: Array | None = field(default=None, repr=False)
    dependence: RowDependence | None = field(default=None, repr=False)
    accuracy: Accuracy = field(default_factory=Accuracy)
    systems: dict[Any, System] = field(default_factory=dict, repr=False)
    normalize: bool = False

    def __repr__(self) -> str:
        said = {} if self.query is None else {"query": len(self.query)}
        kernel, shrinkage = self.input_kernel, self.protocol.regularization
        return printed(
            self, rows=self.n, features=self.x.shape[1], **said, input_kernel=kernel, regularization=shrinkage
        )

    @property
    def n(self) -> int:
        """Reference rows."""
        return len(self.x)

    @property
    def input_kernel(self) -> Kernel:
        """k_X."""
        return self.protocol.input_kernel

    @overload
    def evaluate(
        self,
        y: Any,
        versions: Distribution,
        *,
        output_kernel: Kernel | None = ...,
        output_scale: OutputScale = ...,
        samples: int | None = ...,
        draws: int | None = ...,
        seed: int = ...,
    ) -> CongruenceResult: ...

    @overload
    def evaluate(
        self,
        y: Any,
        versions: Mapping[str, Distribution],
        *,
        output_kernel: Kernel | None = ...,
        output_scale: OutputScale = ...,
        samples: int | None = ...,
        draws: int | None = ...,
        seed: int = ...,
    ) -> dict[str, CongruenceResult]: ...

    def evaluate(
        self,
        y: Any,
        versions: Any,
        *,
        output_kernel: Kernel | None = None,
        output_scale: OutputScale = "marginal",
        samples: int | None = None,
        draws: int | None = None,
        seed: int = 0,
    ) -> CongruenceResult | dict[str, CongruenceResult]:
        """Returns everything about the CCE of one version, or of several by name, by passes that they share.

        What is said of a version is the same in whatever company.

        Args:
            y: targets.
            versions: predictive distributions of one version, or a mapping of those of several by name: what comes back
                is the ``CongruenceResult`` of the one, or a dict of these.
            output_kernel: k_Y of CCE and test; by default RBF with gamma = 1 / (2 var(y)) for the CCE; for the test,
                with the variance that each version states, which makes it exact.
            output_scale: of these default kernels.
            samples: replace exact kernel means by this many draws per point, as the papers do; without a test.
            draws: simulated sets of targets of the test; 999 by default (199 beyond 50,000 rows), 0 for no test.
            seed: of probes and draws.

        Raises:
            InvalidInputError: targets or a version that do not fit the split, named by row, field and value.
        """
        named = {"": versions} if isinstance(versions, Distribution) else versions
        if not isinstance(named, Mapping):
            raise InvalidInputError(
                f"versions: is a {type(versions).__name__}, expected predictive distributions such as Normal(mean, "
                "std), or a mapping of them by name"
            )
        ask, kernel = Ask(list(named), tested=draws != 0 and samples is None, draws=draws or None), output_kernel
        scale = output_scale
        found = self._measured(y, named, ask, output_kernel=kernel, output_scale=scale, samples=samples, seed=seed)
        return found[""] if isinstance(versions, Distribution) else found

    def conditional_congruence_error(
        self,
        y: Any,
        predictive: Distribution,
        *,
        output_kernel: Kernel | None = None,
        samples: int | None = None,
        seed: int = 0,
    ) -> CongruenceResult:
        """Returns the CCE of one version, without the test; see ``evaluate``.

        Its ``uncertainty`` and ``band``, with all that is read off them, are made when one of them is first read.
        """
        targets, one = require_targets(y, "y", self.n).copy(), {"": predictive}

        def measured(ask: Ask) -> CongruenceResult:
            return self._measured(targets, one, ask, output_kernel=output_kernel, samples=samples, seed=seed)[""]

        found = measured(Ask([""], tested=False, band=False, uncertainty=False))
        return replace(found, made=lambda: measured(Ask([""], tested=False)).variation)

    def congruence_test(
        self,
        y: Any,
        predictive: Distribution,
        *,
        output_kernel: Kernel | None = None,
        draws: int | None = None,
        seed: int = 0,
    ) -> CongruenceTest:
        """Tests whether the targets could be draws from the predictive distributions; see ``congruence_test``."""
        if draws == 0:
            raise InvalidInputError("draws: 0; a Monte-Carlo test needs at least 1, and 19 to reject at 5 %")
        y = require_targets(y, "y", self.n)
        if output_kernel is None and np.ptp(y) == 0.0 and len(predictive) == self.n:
            output_kernel = model_output_kernel(y, predictive)  # constant targets have no bandwidth of their own
        ask = Ask([""], draws=draws, band=False, uncertainty=False)
        found = self._measured(y, {"": predictive}, ask, output_kernel=output_kernel, seed=seed)[""]
        if found.test is None:
            assert found.inference is not None
            raise TooFewBlocksError(found.inference.refused)
        return found.test

    def compare(
        self, y: Any, first: Distribution, second: Distribution, *, output_kernel: Kernel | None = None, seed: int = 0
    ) -> CongruenceDifference:
        """Returns how much further ``first`` is from the truth than ``second``, with interval and p-value."""
        y, versions = require_targets(y, "y", self.n), {"first": first, "second": second}
        ask = Ask(list(versions), tested=False, band=False)
        found = self._measured(y, versions, ask, output_kernel=output_kernel, seed=seed)
        one, other = (result.uncertainty.influence for result in found.values())
        shares = found["first"].inference == found["second"].inference
        blocks, cells = version_blocks(self.dependence, y, first, second), "cells" in (first.stated, second.stated)
        return difference_of_influences(one, other, blocks, shares_signs=shares, shares_targets=not cells)

    def calibration_test(
        self, y: Any, predictive: Distribution, *, draws: int | None = None, keys: Any | None = None, seed: int = 0
    ) -> ConditionalCalibrationTest:
        """Tests whether every target follows its prediction given its input; see ``conditional_calibration_test``.

        Args:
            y: targets.
            predictive: the version's distributions.
            draws: of the null; by default as many as the number of rows affords.
            keys: one per row, for the randomised PIT of counts; row numbers by default.
            seed: of that randomisation.

        Raises:
            InvalidInputError: targets or predictions that do not fit, or a split with query points.
        """
        if self.query is not None:
            raise InvalidInputError(
                "query: calibration_test is of the split's own rows; prepare the split without query points"
            )
        prepared = self._calibration if draws is None else self._calibrated(CalibrationSettings(draws=draws))
        known, counts = self.dependence, self.weights
        return prepared.test_version(y, predictive, keys=keys, seed=seed, dependence=known, weights=counts)

    def local_calibration(
        self, y: Any, predictive: Distribution, query: Any | None = None, *, keys: Any | None = None, seed: int = 0
    ) -> LocalReading:
        """Returns what is wrong around each point: at query inputs (m, d), which need no labels, or at own rows."""
        y = require_targets(y, "y", self.n)
        smoother = self.smoother if query is None else self.spectrum.smoother(self.x, self._as_inputs(query, "query"))
        blocks = version_blocks(self.dependence, y, predictive)
        step = cell_step(y, predictive)
        return local_reading(smoother, pit_values(y, predictive, seed=seed, keys=keys, step=step), blocks)

    def score_inputs(
        self,
        x_new: Any,
        y: Any,
        predictive: Distribution,
        *,
        raw: tuple[Any, Any] | None = None,
        columns: tuple[pd.DataFrame, pd.DataFrame] | None = None,
        keys: Any | None = None,
        **settings: Any,
    ) -> InputScores:
        """Returns how far the version can be trusted on new inputs, and which of them to withhold.

        A service that is asked again and again holds ``split.input_scorer(y, predictive)`` and asks its ``score``.

        Args:
            x_new: inputs (m, d), labels not needed.
            y: targets of the split.
            predictive: what the version predicts for the split's rows.
            raw: the split's inputs and the new ones before they were normalised; distances are taken there.
            columns: what the split's rows and the inputs are in their tables.
            keys: names of the inputs.
            settings: ``withhold``, ``groups``, ``time``, ``output_kernel``, ``seed``; see ``input_scorer``.

        Raises:
            InvalidInputError: targets, a version or inputs that do not fit the split.
        """
        own, new = (None, None) if raw is None else raw
        table, asked = (None, None) if columns is None else columns
        scorer = self.input_scorer(y, predictive, raw=own, columns=table, **settings)
        return scorer.score(self._as_inputs(x_new, "x_new"), raw=new, columns=asked, keys=keys)

    def input_scorer(self, y: Any, predictive: Distribution, **settings: Any) -> InputScorer:
        """Does what ``score_inputs`` does once for all inputs; see ``kernels.trust.scorer.input_scorer``."""
        if self.query is not None:
            raise InvalidInputError("query: prepare the split without query points, and give the inputs to score")
        dependence = self.dependence
        return input_scorer(self.x, self.spectrum, self.smoother, y, predictive, dependence=dependence, **settings)

    def smooth(self, rhs: Array) -> Smoothed:
        """Returns k(x)' A^-1 rhs at the points, (m, c), for right-hand sides (n, c), with its certificate."""
        landmarks = self.n if self.n <= self.accuracy.exact_rows else self.accuracy.largest
        return smooth(self._driver.system(landmarks), self.x, self.query, rhs)

    @cached_property
    def spectrum(self) -> Spectrum:
        """The leading spectrum of the Gram matrix."""
        return Spectrum.of(self.system)

    @cached_property
    def system(self) -> System:
        """The system of the first landmark count, which may be all rows."""
        return self._driver.system(self.accuracy.counts(self.n)[0])

    @cached_property
    def smoother(self) -> SpectralSmoother:
        """k(x)' A^-1 at the points in the leading directions, for what asks thousands of smoothings of it."""
        return self.spectrum.smoother(self.x, self.query, self.weights)

    @cached_property
    def _driver(self) -> Driver:
        points = None if self.query is None else LocalPasses(HeldRows(self.query))
        return Driver(LocalPasses(HeldRows(self.x)), self.protocol, points=points, systems=self.systems)

    def _measured(
        self,
        y: Any,
        versions: Mapping[str, Distribution],
        ask: Ask,
        *,
        output_kernel: Kernel | None,
        output_scale: OutputScale = "marginal",
        samples: int | None = None,
        seed: int,
    ) -> dict[str, CongruenceResult]:
        """Returns what is asked of versions; see ``evaluate``."""
        y = require_targets(y, "y", self.n)
        for name, predictive in versions.items():
            if len(predictive) != self.n:
                what = f"{name}: " if name else ""
                raise InvalidInputError(
                    f"predictive: {what}{len(predictive)} distributions for {self.n} reference rows; give one per row"
                )
        if output_kernel is not None:
            require_kernel(output_kernel, "output_kernel")
        held = HeldSplit(self.x, y, self.query, self.weights, self.dependence, self.systems)
        protocol, asked = self.protocol, (output_kernel, output_scale, samples)
        if asked != (protocol.output_kernel, protocol.output_scale, protocol.samples):
            protocol = replace(protocol, output_kernel=output_kernel, output_scale=output_scale, samples=samples)
        if samples is None:
            return held.driver(protocol, versions, seed).measure(ask, self.accuracy)
        drawn = measure_held(held, protocol, versions, ask, self.accuracy, seed)
        return {name: replace(one, means=None, mean_squares=None) for name, one in drawn.items()}

    @cached_property
    def _calibration(self) -> PreparedCalibration:
        return self._calibrated(None)

    def _calibrated(self, settings: CalibrationSettings | None) -> PreparedCalibration:
        shrinkage = self.protocol.regularization
        return prepare_calibration(self.x, input_kernel=self.input_kernel, regularization=shrinkage, settings=settings)

    def _as_inputs(self, x: Any, name: str) -> Array:
        """New inputs (m, d) as the split's own are."""
        found: Array = require_matrix(x, name)
        return np.asarray(EXACT.apply(found)) if self.normalize else found


def prepare(
    x: Any,
    *,
    query: Any | None = None,
    input_kernel: Kernel | None = None,
    regularization: float = 0.1,
    landmarks: int | None = None,
    weights: Any | None = None,
    groups: Any | None = None,
    time: Any | None = None,
) -> Split:
    """Do once what depends on the inputs alone: check them, and factor the system or choose landmarks for it.

    Args:
        x: reference inputs (n, d).
        query: points (m, d) at which to evaluate, labels not needed; by default the reference points.
        input_kernel: k_X, such as ``RBF(gamma=0.5)``. By default that of the protocol ``exact``: inputs are brought to
            unit norm, and the kernel is ``Polynomial(degree=3, gamma=1.0, coef0=1.0)``.
        regularization: lambda; the system is K + n lambda I.
        landmarks: how many; by default all rows up to 5,000, where the answer is exact, and beyond as many as its
            certificate needs (up to 4,096).
        weights: what each point counts in means over them, (n,) or, with ``query``, (m,): sampling weights, or the
            population that the split stands for. Equal by default. The estimate of the conditional distribution stays.
        groups: one value per row, such as the patient: rows of one group may depend on each other.
        time: one sortable value per row, ties allowed: rows near each other in time may. Groups go before time. With
            either, tests, bands and intervals are by blocks of rows, and say so (``p_value_kind``); estimates stay.

    Warns:
        NearlyConstantKernelWarning: ``input_kernel`` hardly depends on its inputs.

    Raises:
        InvalidInputError: values not finite, one point, another number of features in ``query``, lambda <= 0, or
            weights that are negative, missing or all 0.
    """
    if not regularization > 0 or not np.isfinite(regularization):
        raise InvalidInputError(f"regularization: lambda is {regularization}, expected a positive number such as 0.1")
    if input_kernel is not None:
        require_kernel(input_kernel, "input_kernel")
    x = require_matrix(x, "x")
    if query is not None:
        query = require_matrix(query, "query")
        if query.shape[1] != x.shape[1]:
            raise InvalidInputError(
                f"query: {query.shape[1]} features, but the reference inputs have {x.shape[1]}; "
                "embed both with the same encoder"
            )
    normalize = input_kernel is None
    if normalize:
        x, query = EXACT.apply(x), None if query is None else EXACT.apply(query)
    kernel = EXACT.input_kernel if input_kernel is None else input_kernel
    protocol = EvaluationProtocol("python", False, kernel, regularization=regularization)
    counted = None if weights is None else mean_one(weights, len(x if query is None else query))
    dependence = RowDependence.of(len(x), groups=groups, time=time)
    split = Split(x, protocol, query, counted, dependence, Accuracy.of(landmarks), normalize=normalize)
    _ = split.system
    return split
