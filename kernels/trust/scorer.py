"""What is said of every new input: support, effective rows, CCE where there is support, and whether to withhold it.

A version on a labelled split is made ready to score new inputs: what is slow is done once, inputs take moments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array, printed, require_matrix, require_targets, to_numpy
from congruence.kernels.conditional_calibration.local_reading import LocalReading
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.dependence.correlation import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.congruence_test import null_draw_count, simulated_errors
from congruence.kernels.engine.null import coefficients_of_split, features_of_split, tested_directions
from congruence.kernels.engine.plan import output_kernel_or_marginal
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.engine.spectrum import SpectralSmoother, Spectrum
from congruence.kernels.engine.targets import in_cells, target_errors
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.pit import cell_steps
from congruence.kernels.threads import available_threads, single_threaded_blas
from congruence.kernels.trust.judgement import WithholdingJudgement, judged_withholding
from congruence.kernels.trust.local_faults import Faults, RowScores, local_faults
from congruence.kernels.trust.rule import WithholdingRule
from congruence.kernels.trust.support import Support, SupportReading, effective_rows

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("key", "support_p_value", "effective_rows", "cce", "cce_expected", "cce_p_value", "withhold", "reason")


@dataclass(frozen=True)
class InputScores:
    """The scores of m inputs, in their order.

    Attributes:
        key: names of the inputs, (m,).
        support: how usual they are among the labelled rows.
        effective_rows: how many labelled rows speak there, (m,).
        cce: estimated CCE, (m,); NaN without support, as the next two.
        cce_expected: what the CCE of a true version would be there, (m,).
        cce_p_value: of "the version is true around the input", (m,).
        withhold: booleans, (m,).
        reason: "unusual", the fault for which an input is withheld (one of ``ORDERS``, or "CCE"), or "", (m,).
        wrong: whether the version is wrong there by enough to matter, (m,) booleans.
        faults: what is wrong at the inputs that are withheld though they are usual, in their order; None of vectors.
        rule: by which inputs are withheld.
        judgement: whether withholding where the version is wrong helps on the labelled split.
    """

    key: Array = field(repr=False)
    support: SupportReading = field(repr=False)
    effective_rows: Array = field(repr=False)
    cce: Array = field(repr=False)
    cce_expected: Array = field(repr=False)
    cce_p_value: Array = field(repr=False)
    withhold: Array = field(repr=False)
    reason: Array = field(repr=False)
    wrong: Array = field(repr=False)
    faults: LocalReading | None = field(repr=False)
    rule: WithholdingRule
    judgement: WithholdingJudgement

    def __repr__(self) -> str:
        return printed(self, inputs=len(self.withhold), unusual=self.unusual, withheld=int(self.withhold.sum()),
                       helps=self.judgement.helps)  # fmt: skip

    @property
    def unusual(self) -> int:
        """Number of inputs that are unusual at the rule's level."""
        return int(self.support.unusual(self.rule.unusual).sum())

    def columns(self) -> dict[str, Array]:
        """``COLUMNS`` by name, (m,) each."""
        return {name: self.support.p_values if name == "support_p_value" else getattr(self, name) for name in COLUMNS}

    def to_frame(self) -> pd.DataFrame:
        """A table with a row an input: its key, how usual it is, what is known of the version there, and the advice."""
        import pandas as pd

        return pd.DataFrame(self.columns())


FEWEST_ROWS = 2.0
"""Effective rows below which nothing is said of the version at an input."""


@dataclass(frozen=True)
class InputScorer:
    """Scores inputs by a labelled split (from ``input_scorer``).

    Attributes:
        support: of the split's rows.
        judgement: whether withholding where the version is wrong helps.
        rule: what is withheld.
        smoother: from the split's rows to themselves.
        coefficients: what the smoother keeps of the observed and the simulated splits, (r, k, 1 + draws).
        faults: around the rows of the split.
    """

    support: Support = field(repr=False)
    judgement: WithholdingJudgement
    rule: WithholdingRule
    smoother: SpectralSmoother = field(repr=False)
    spectrum: Spectrum = field(repr=False)
    coefficients: Array = field(repr=False)
    faults: Faults = field(repr=False)

    def __repr__(self) -> str:
        return printed(self, rows=len(self.smoother.analysis), rule=str(self.rule), helps=self.judgement.helps)

    def score(
        self,
        x_new: Any,
        *,
        raw: Any | None = None,
        columns: pd.DataFrame | None = None,
        keys: Any | None = None,
        result: CongruenceResult | None = None,
    ) -> InputScores:
        """Score inputs.

        Args:
            x_new: (m, d), as the split's x were given to ``prepare``.
            raw: the same before they were normalised; by default ``x_new``.
            columns: what they are in their table, where the split's were given.
            keys: names of the inputs, (m,); their numbers by default.
            result: CCE and noise floor at the inputs by a solver; by default in the leading directions.

        Raises:
            InvalidInputError: inputs that do not fit the split.
        """
        query = require_matrix(x_new, "x_new")
        dimension = int(self.spectrum.landmarks.shape[1])
        if query.shape[1] != dimension:
            raise InvalidInputError(
                f"x_new: {query.shape[1]} features, but the split has {dimension}; embed both alike"
            )
        raw = to_numpy(query if raw is None else require_matrix(raw, "raw"))
        if len(raw) != len(query):
            raise InvalidInputError(f"raw: {len(raw)} rows for {len(query)} inputs; give the same rows")
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            found = self.spectrum.vectors(query.astype(self.spectrum.landmarks.dtype), len(self.smoother.filters))
            vectors = np.nan_to_num(found.astype(np.float32), posinf=0.0, neginf=0.0)
        support = self.support.at(raw, columns)
        rows = effective_rows(self.smoother.at(vectors))
        with single_threaded_blas():
            some = np.ascontiguousarray(vectors[:, : self.coefficients.shape[1]])
            simulated = simulated_errors(some, self.coefficients, available_threads())
        cce, expected = simulated.observed.astype(np.float64), simulated.expected
        if result is not None:
            # A true version's mean norm, in proportion to its root mean square, which the floor is.
            cce, expected = result.values, result.noise_floor_values * (expected / np.maximum(simulated.roots, 1e-300))
        p_values = (1.0 + simulated.reached) / self.coefficients.shape[2]
        unusual = support.unusual(self.rule.unusual)
        known = ~unusual & (rows >= FEWEST_ROWS)
        excess = np.where(known, cce**2 - expected**2, -np.inf)
        wrong = np.zeros(len(known), bool)
        if known.any():  # false discoveries are counted where anything is known
            wrong[known] = self.faults.wrong(vectors[known], raw[known], self.rule.wrong)
        withhold = self._withheld(support, unusual, wrong, excess)
        usual = withhold & ~unusual
        faults = self.faults.reading(vectors[usual]) if usual.any() else None
        reasons = np.where(unusual, "unusual", np.where(usual, "CCE", "")).astype(object)
        if faults is not None:
            reasons[usual] = np.where(wrong[usual], faults.names, "CCE")
        nothing = np.where(known, 0.0, np.nan)
        key = np.arange(len(rows)) if keys is None else np.asarray(keys)
        return InputScores(
            key, support, rows, cce + nothing, expected + nothing, p_values + nothing, withhold, reasons, wrong, faults,
            self.rule, self.judgement,
        )  # fmt: skip

    def _withheld(self, support: SupportReading, unusual: Array, wrong: Array, excess: Array) -> Array:
        if self.rule.share is None:
            return np.asarray(unusual | (wrong & self.judgement.helps))
        # The least usual first, then the highest CCE; the rest of the share stays where that does not help.
        first = np.lexsort((-excess, np.where(unusual, support.p_values, 1.0)))
        count = round(self.rule.share * len(unusual))
        if not self.judgement.helps:
            count = min(count, int(unusual.sum()))
        chosen = np.zeros(len(unusual), bool)
        chosen[first[:count]] = True
        return chosen


def input_scorer(
    x: Array,
    spectrum: Spectrum,
    smoother: SpectralSmoother,
    y: Any,
    predictive: Distribution,
    *,
    raw: Any | None = None,
    columns: pd.DataFrame | None = None,
    withhold: Any | None = None,
    groups: Any | None = None,
    time: Any | None = None,
    dependence: RowDependence | None = None,
    output_kernel: Kernel | None = None,
    keys: Any | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> InputScorer:
    """Make a version on a labelled split ready to score inputs.

    Args:
        x: inputs of the labelled split, (n, d).
        spectrum: of their Gram matrix.
        smoother: from the rows to themselves, in the spectrum's leading directions.
        y: targets of the split, (n,) or (n, q).
        predictive: what the version predicts for its rows.
        raw: the split's inputs before they were normalised, (n, p); by default as they were given to ``prepare``.
        columns: what the rows are in their table, (n, c).
        withhold: a share of the inputs, levels, or None for the default; see ``WithholdingRule.of``.
        groups: one value a row: rows of one value may depend on each other.
        time: one sortable value a row: rows that are near in time may, where no groups are given.
        dependence: of the rows, where neither is given.
        output_kernel: k_Y; by default RBF with gamma = 1 / (2 var(y)).
        keys: names of the rows, for the randomised PIT.
        draws: simulated splits; see ``congruence_test``.
        seed: of folds, hold-out and draws.

    Raises:
        InvalidInputError: targets, laws or rows that do not fit the split; fewer than 40 rows; or
            fewer than ten groups or runs of time.
    """
    rule = WithholdingRule.of(withhold)
    n = len(x)
    y = require_targets(y, "y", n)
    blocks = version_blocks(RowDependence.of(n, groups=groups, time=time) or dependence, y, predictive)
    raw = to_numpy(x if raw is None else require_matrix(raw, "raw"))
    if len(raw) != n:
        raise InvalidInputError(f"raw: {len(raw)} rows for {n} of the split; give the same rows")
    support = Support.of(raw, columns=columns, groups=None if blocks is None else blocks.labels, seed=seed)
    rule = rule.afforded(len(support.held_out))
    kernel = output_kernel_or_marginal(output_kernel, y)
    with single_threaded_blas():
        judged = in_cells(y, predictive, np.arange(n), seed, cell_steps(y, predictive))
        errors = target_errors(*judged, kernel)
    scores = RowScores.of(y, predictive, keys=keys, seed=seed)
    tested = smoother.leading(tested_directions(smoother.filters, n))
    count = null_draw_count(n, draws)
    features = features_of_split(*judged, kernel)
    coefficients = coefficients_of_split(tested, *judged, features, draws=count, seed=seed, blocks=blocks)
    faults = local_faults(scores, errors, smoother, raw, slice(None), seed, blocks)
    judgement = judged_withholding(rule, smoother, y, predictive, errors, scores, raw, blocks, seed)
    return InputScorer(support, judgement, rule, smoother, spectrum, coefficients, faults)
