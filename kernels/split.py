"""A labelled split whose inputs are prepared once: everything that is asked of model versions on it, targets first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from congruence.kernels.arrays import require_targets
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.local_reading import LocalReading, local_reading
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.congruence import preparation
from congruence.kernels.congruence.difference import CongruenceDifference, congruence_difference
from congruence.kernels.congruence.expected import ExpectedCongruence
from congruence.kernels.congruence.outcome import CongruenceTest
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.congruence.result import CongruenceResult, excess_interval, excess_over
from congruence.kernels.congruence.test import congruence_tests
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.dependence.scores import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.spectrum import spectral_smoother
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.printed import printed
from congruence.kernels.solvers import Solver
from congruence.kernels.weights import mean_one
from congruence.kernels.withholding.input_scores import InputScores
from congruence.kernels.withholding.scorer import InputScorer, input_scorer

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class VersionResult(CongruenceResult):
    """The CCE of one version on a split, beside what a true version would have there.

    Attributes:
        band: of the mean CCE of a true version: its expectation and the bounds of 95 of 100 splits.
        test: of "the version is the truth"; None where it was not asked for.
    """

    band: ExpectedCongruence = field(kw_only=True)
    test: CongruenceTest | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        return printed(self, mean=self.mean, interval=self.interval(), expected=self.expected,
                       band=(self.band.low, self.band.high), excess=self.excess, p_value=self.p_value,
                       mean_error_bound=self.mean_error_bound, points=len(self.values))  # fmt: skip

    @property
    def expected(self) -> float:
        """What the mean CCE would be on average if the version were the truth."""
        return self.band.mean

    @property
    def excess(self) -> float:
        """What the mean CCE has beyond the expected one, see ``excess_over``."""
        return excess_over(self.mean, self.expected)

    def excess_interval(self, level: float = 0.95) -> tuple[float, float]:
        """Confidence interval of ``excess``, from that of the mean CCE."""
        return excess_interval(self.interval(level), self.expected)

    @property
    def p_value(self) -> float | None:
        """Of "the version is the truth"; None where it was not asked for."""
        return None if self.test is None else self.test.p_value

    @property
    def p_value_kind(self) -> str | None:
        """ "exact" at any number of rows, or "asymptotic in B blocks" of rows that depend on each other."""
        return None if self.test is None else self.test.p_value_kind

    def to_frame(self) -> pd.DataFrame:
        """See ``CongruenceResult.to_frame``, with ``p_value`` and ``q_value`` of each point where they were tested."""
        table = super().to_frame()
        if self.test is None:
            return table
        tested = self.test.to_frame()
        return table.assign(p_value=tested["p_value"], q_value=tested["q_value"])


@dataclass(frozen=True)
class Split(PreparedCongruence):
    """A labelled split with its system prepared, from ``prepare``.

    Methods take the targets y, (n,) or (n, q), then predictive distributions at the n rows of the split.
    """

    def evaluate(
        self,
        y: Any,
        versions: Mapping[str, Distribution],
        *,
        output_kernel: Kernel | None = None,
        draws: int | None = None,
        seed: int = 0,
    ) -> dict[str, VersionResult]:
        """Everything about the CCE of some versions, in one solve for all.

        Args:
            y: targets.
            versions: predictive distributions by version.
            output_kernel: k_Y of CCE and test; by default RBF with gamma = 1 / (2 var(y)) of the CCE; of the test, with
                the variance that each version states, which makes it exact.
            draws: simulated sets of targets of the test; 999 by default (199 beyond 50,000 rows), 0 for no test.
            seed: of probes and draws.

        Raises:
            InvalidInputError: targets or a version that do not fit the split, named by row, field and value.
        """
        y = require_targets(y, "y", self.operator.n)
        results = self.congruence_errors(y, versions, output_kernel=output_kernel, seed=seed, uncertainty=True)
        tests: dict[str, CongruenceTest] = {}
        if draws != 0:
            tests = congruence_tests(self, y, versions, draws=draws, seed=seed, output_kernel=output_kernel)
        return {
            name: VersionResult(
                **{each.name: getattr(result, each.name) for each in fields(result)},
                band=self.expected_congruence(y, versions[name], result, output_kernel=output_kernel, seed=seed),
                test=tests.get(name),
            )
            for name, result in results.items()
        }

    def congruence_test(
        self,
        y: Any,
        predictive: Distribution,
        *,
        output_kernel: Kernel | None = None,
        draws: int | None = None,
        exact: bool = False,
        seed: int = 0,
    ) -> CongruenceTest:
        """Whether the targets could be draws from the predicted laws; see ``kernels.congruence_test``.

        ``exact``: every statistic by this split's solver, at ``draws`` times the price of an evaluation.
        """
        versions = {"": predictive}
        return congruence_tests(self, y, versions, output_kernel=output_kernel, draws=draws, exact=exact, seed=seed)[""]

    def compare(
        self, y: Any, first: Distribution, second: Distribution, *, output_kernel: Kernel | None = None, seed: int = 0
    ) -> CongruenceDifference:
        """How much further ``first`` is from the truth than ``second``, with interval and p-value."""
        return congruence_difference(self, y, first, second, output_kernel=output_kernel, seed=seed)

    def calibration_test(
        self,
        y: Any,
        predictive: Distribution,
        *,
        draws: int | None = None,
        null: Literal["exact", "gaussian"] | None = None,
        keys: Any | None = None,
        seed: int = 0,
    ) -> ConditionalCalibrationTest:
        """Whether every target follows its predicted law given its input; see ``conditional_calibration_test``.

        Args:
            y: targets.
            predictive: the version's laws.
            draws: of the null; by default as many as the number of rows affords.
            null: "exact", by draws, or its "gaussian" limit; by default as the test chooses.
            keys: one per row, for the randomised PIT of counts; row numbers by default.
            seed: of that randomisation.

        Raises:
            InvalidInputError: targets or laws that do not fit, or a split with query points.
        """
        self._require_own_rows("calibration_test")
        prepared = self._calibration
        if draws is not None or null is not None:
            settings = CalibrationSettings(draws=draws)
            prepared = prepare_calibration(self, settings=settings if null is None else replace(settings, null=null))
        known = self.dependence or RowDependence()
        design = {"groups": known.groups, "time": known.time, "weights": self.weights}
        return prepared.test_version(y, predictive, keys=keys, seed=seed, **design)

    def local_calibration(
        self, y: Any, predictive: Distribution, query: Any | None = None, *, keys: Any | None = None, seed: int = 0
    ) -> LocalReading:
        """What is wrong around each point: at query inputs (m, d), which need no labels, or at the split's own rows."""
        y = require_targets(y, "y", self.operator.n)
        smoother = self.smoother if query is None else spectral_smoother(self.spectrum, query)
        blocks = version_blocks(self.dependence, y, predictive)
        return local_reading(smoother, pit_values(y, predictive, seed=seed, keys=keys), blocks)

    def score_inputs(
        self,
        x_new: Any,
        y: Any,
        predictive: Distribution,
        *,
        raw: tuple[Any, Any] | None = None,
        columns: tuple[pd.DataFrame, pd.DataFrame] | None = None,
        keys: Any | None = None,
        withhold: Any | None = None,
        groups: Any | None = None,
        time: Any | None = None,
        output_kernel: Kernel | None = None,
        seed: int = 0,
    ) -> InputScores:
        """How far the version can be trusted on new inputs, and which of them to withhold.

        A service that is asked again and again holds ``split.input_scorer(y, predictive)`` and asks its ``score``.

        Args:
            x_new: inputs (m, d), labels not needed.
            y: targets of the split.
            predictive: what the version predicts for the split's rows.
            raw: the split's inputs and the new ones before they were normalised; distances are taken there.
            columns: what the split's rows and the inputs are in their tables.
            keys: names of the inputs.
            withhold: a share such as 0.05 or "5 %", or levels such as {"unusual": "1 %", "wrong": "5 %"}, the default.
            groups: one value a row of the split: rows of one value may depend on each other.
            time: one sortable value a row of the split: rows near in time may depend on each other.
            output_kernel: k_Y of the CCE.
            seed: of folds, hold-out and draws.

        Raises:
            InvalidInputError: targets, a version or inputs that do not fit the split.
        """
        own, new = (None, None) if raw is None else raw
        table, asked = (None, None) if columns is None else columns
        scorer = self.input_scorer(
            y,
            predictive,
            raw=own,
            columns=table,
            withhold=withhold,
            groups=groups,
            time=time,
            output_kernel=output_kernel,
            seed=seed,
        )
        return scorer.score(x_new, raw=new, columns=asked, keys=keys)

    def input_scorer(self, y: Any, predictive: Distribution, **settings: Any) -> InputScorer:
        """What ``score_inputs`` does once for all inputs; see ``kernels.withholding.scorer.input_scorer``."""
        return input_scorer(self, y, predictive, **settings)

    @cached_property
    def _calibration(self) -> PreparedCalibration:
        return prepare_calibration(self)

    def _require_own_rows(self, what: str) -> None:
        if self.query is not None:
            raise InvalidInputError(f"query: {what} is of the split's own rows; prepare the split without query points")


def prepare(
    x: Any,
    *,
    query: Any | None = None,
    input_kernel: Kernel,
    regularization: float = 0.1,
    solver: Solver | None = None,
    weights: Any | None = None,
    groups: Any | None = None,
    time: Any | None = None,
) -> Split:
    """Do once what depends on the inputs alone: check them, choose a solver, factor or precondition.

    Args:
        x: reference inputs (n, d): NumPy or CuPy; their dtype is the arithmetic's.
        query: points (m, d) at which to evaluate, labels not needed; by default the reference points.
        input_kernel: k_X, for example ``Polynomial(degree=3, gamma=1.0, coef0=1.0)`` on unit-norm embeddings.
        regularization: lambda; the system is K + n lambda I.
        solver: by default Cholesky for small n, preconditioned conjugate gradients above.
        weights: what each point counts in means over them, (n,) or, with ``query``, (m,): sampling weights, or the
            population that the split stands for. Equal by default. The estimate of the conditional law stays as it is.
        groups: one value per row, such as the patient: rows of one group may depend on each other.
        time: one sortable value per row, ties allowed: rows near each other in time may. Groups go before time. With
            either, tests, bands and intervals are by blocks of rows, and say so (``p_value_kind``); estimates stay.

    Warns:
        NearlyConstantKernelWarning: ``input_kernel`` hardly depends on its inputs.

    Raises:
        InvalidInputError: values not finite, one point, another number of features in ``query``, lambda <= 0, or
            weights that are negative, missing or all 0.
    """
    made = preparation.prepare(
        x,
        query=query,
        input_kernel=input_kernel,
        regularization=regularization,
        solver=solver,
        groups=groups,
        time=time,
    )
    points = made.operator.n if made.query is None else len(made.query)
    counted = None if weights is None else mean_one(weights, points)
    return Split(made.operator, made.solver, made.state, made.query, made.kernel_maximum, counted, made.dependence)
