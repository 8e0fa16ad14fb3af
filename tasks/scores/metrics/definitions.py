"""Every metric, in the order in which reports and the reference explain them: a new one is an entry here.

How rows make each of them stands beside ``Metric``.
"""

from __future__ import annotations

import math
from functools import partial
from operator import attrgetter

from congruence.kernels.marginal_calibration import even_levels
from congruence.kernels.pit import ORDERS, chi_square, cramer_von_mises, kolmogorov_smirnov
from congruence.kernels.resampling import root_of
from congruence.tasks.scores.metrics.metric import (
    COVERAGE_LEVELS,
    Metric,
    below_levels,
    beyond_floor,
    covered_at,
    crps_beside_marginal,
    deviances,
    marginal_nll,
    mean_deviation,
    mean_marginal_crps,
    mean_of_column,
    p_of_uniform,
    part_of_crps,
    ratio,
    sharpness,
    skce,
    skce_p_value,
    skill,
    spread_of,
    totals,
    width_at,
    with_floor,
)

NEW_TARGETS = "95 % confidence interval: other targets at the same inputs"
ROWS = "95 % confidence interval: other rows"
BAND = "where 95 of 100 splits lie if the version is true"
DISTANCE = "distance in the output kernel's space"
TARGET = "unit of the target"
SHARE = "share"

EFFECTS = {f"calibration_effect_{order}": order for order in ORDERS}
"""The metrics that are effects of calibration given the input, and the order of the PIT scores that each speaks of."""

_ADVICE = {
    "bias": "Large: targets lie above or below the predictions; look for a missing input, or shift the predictions.",
    "spread": "Large: predicted spreads are too small or too large; recalibrate them, or let the model learn them.",
    "skew": "Large: targets have a longer tail on one side than predicted; choose a skewed family.",
    "tails": "Large: more or fewer targets far out than predicted; choose a family of other tails, or a mixture.",
}


_of_calibration = partial(Metric, group="Calibration", asked="calibration", measured=True)

# A table; each entry has its words, then how it is made, then where it is shown:
# fmt: off
DEFINITIONS: tuple[Metric, ...] = (
    Metric(
        "cce_mean", "CCE",
        "Mean Conditional Congruence Error: distance, in the output kernel's space, between what the model predicts "
        "at an input and what the data say there. Compares within one protocol only, and is judged beside what it "
        "would be if the version were true. Of predicted quantiles and bins each target is put at random into its "
        "cell, so that nothing is measured but what they state.",
        unit=DISTANCE, better="lower", interval=NEW_TARGETS, group="Distance", asked="cce", column="cce",
        measured=True, margin="5 %",
        shown={"headlines": 1, "mlflow": 5, "slices": 1, "compared": 1, "wins": 1, "over_time": 2},
    ),
    Metric(
        "cce_expected", "expected if true",
        "What the mean CCE would be if this version were the truth: at a finite number of rows it is never 0. A CCE "
        "inside its band cannot be distinguished from that of a true version.",
        unit=DISTANCE, interval=BAND, group="Distance", asked="cce", measured=True,
        shown={"headlines": 2},
    ),
    Metric(
        "cce_excess", "excess",
        "The part of the CCE that is the model's own: CCE² = (expected if true)² + excess², and 0 where the CCE is "
        "below what is expected. Never above the CCE; compares across splits of different sizes.",
        unit=DISTANCE, better="lower", interval=NEW_TARGETS, group="Distance", asked="cce", terms=with_floor,
        reduction=beyond_floor, measured=True,
        shown={"headlines": 3, "mlflow": 6, "slices": 3, "over_time": 1},
    ),
    Metric(
        "p_value", "p",
        "The one p-value of “the version is the truth”, of all its tests: calibration given the input, congruence, "
        "extremes, masses, and places, each with its share of the level (weighted Bonferroni). Below 0.05 the version "
        "is wrong; of true versions that happens to at most 5 in 100.",
        group="Distance", measured=True,
        shown={"headlines": 4, "mlflow": 7},
    ),
    Metric(
        "cce_p_value", "p of congruence",
        "Exact Monte-Carlo test of “the version is the truth” by its CCE, in the output kernel that the version itself "
        "states: a part of p.",
        group="Distance", asked="congruence_test", measured=True,
    ),
    Metric(
        "dependent_blocks", "blocks of rows",
        "The split names groups or time: so many groups, or runs of time, are taken as independent, and p-values "
        "and intervals go by them. They hold in the limit of many blocks and are not exact.",
        measured=True,
    ),
    Metric(
        "row_correlation", "correlation of rows",
        "Correlation of the PIT scores of rows that stand near each other or share a group, found though the split "
        "names no groups and no time: p-values and intervals of independent rows do not hold. Name `time:` or "
        "`groups:`.",
        measured=True,
    ),
    _of_calibration(
        "calibration_p_value", "p of calibration",
        "Exact Monte-Carlo test of “given its input, every target follows its predicted distribution”, by PIT values "
        "over the inputs: a part of p. It sees faults of spread and shape that CCE does not; the effects say how much.",
        shown={"mlflow": 8},
    ),
    _of_calibration(
        "places_p_value", "p of places",
        "Test of the slices, or of the regions of the inputs where the split has none, all of them together (Simes): a "
        "part of p.",
    ),
    _of_calibration(
        "extremes_p_value", "p of targets far out",
        "Exact test of the number of targets at which the predictions put less than 0.001, 1e-4, 1e-6 or 1e-9: a part "
        "of p. Few targets far out change no mean; a model that states no such probability is not tested.",
    ),
    _of_calibration(
        "extremes_observed", "targets far out",
        "How many targets lie where the predictions put less than `extremes_level`, the level at which the most is "
        "wrong; `extremes_expected` were to be expected.",
        unit="rows",
    ),
    _of_calibration(
        "extremes_expected", "targets far out, expected", "How many of these were to be expected.", unit="rows",
    ),
    _of_calibration(
        "extremes_level", "probability of targets far out", "The probability below which these targets were predicted.",
    ),
    _of_calibration(
        "masses_p_value", "p of single values",
        "Exact test of the numbers of targets at each value that at least 1 % of them share, and in each cell between "
        "predicted quantiles, against the predicted ones: a part of p.",
    ),
    _of_calibration(
        "mass_observed", "share of a single value",
        "Share of the targets that are exactly `mass_value`, where that is not what is predicted; the predictions give "
        "it `mass_expected`.",
        unit=SHARE,
    ),
    _of_calibration(
        "mass_expected", "share of a single value, predicted", "The share of `mass_value` that the predictions give.",
        unit=SHARE,
    ),
    _of_calibration(
        "mass_value", "single value", "The value whose share among the targets is the most wrong.", unit=TARGET,
    ),
    *(
        _of_calibration(
            name, f"effect of {order}",
            f"Share of the {order} score's variance that the inputs explain: 0 if the version is true, of the order of "
            f"1 if it is useless, whatever the number of rows. {_ADVICE[order]}",
            unit=SHARE, better="lower", interval=ROWS, influence=f"calibration_influence_{order}",
            margin=0.01,  # of the variance of the score: a spread wrong by a tenth has 0.015
            shown={"mlflow": 9, "over_time": 3} if order in ("bias", "spread") else {"over_time": 3},
        )
        for name, order in EFFECTS.items()
    ),
    Metric(
        "nll_mean", "NLL",
        "Mean negative log-likelihood of the targets: a proper score. Of bins, with our interpolation within them; of "
        "predicted quantiles that of the density that we draw between and beyond them, which does not say whose "
        "quantiles are better (CRPS does); of draws likewise, that of their smoothed density, less what so few draws "
        "alone cost; of rounded targets, that of the cells around them, so that densities and masses compare.",
        unit="nats per row", better="lower", interval=ROWS, group="Score", asked="nll", column="nll",
        column_label="NLL", marginal=marginal_nll,
        margin="5 % of skill",  # a value may be 0 or negative, and a number of nats is large beside rare counts
        shown={"headlines": 6, "mlflow": 3, "slices": 4, "compared": 2, "wins": 2, "over_time": 4},
    ),
    Metric(
        "crps_mean", "CRPS",
        "Mean continuous ranked probability score, a proper score. Of predicted quantiles, the weighted mean of their "
        "quantile losses that comes nearest to it, which compares with that of the same levels; of bins, with our "
        "interpolation within them; of draws the fair one, that of the distribution they are drawn from; of several "
        "targets the energy score.",
        unit=TARGET, better="lower", interval=ROWS, group="Score", asked="crps", column="crps", column_label="CRPS",
        bounds=(0.0, math.inf), margin="5 % of skill", marginal=mean_marginal_crps,
        shown={"headlines": 7, "mlflow": 2, "slices": 5, "compared": 3, "wins": 3, "over_time": 5},
    ),
    Metric(
        "crps_skill", "CRPS skill",
        "1 - CRPS / CRPS of the distribution of all targets together, which ignores the input: 1 is perfect, 0 no "
        "better than that, negative worse.",
        unit=SHARE, better="higher", interval=ROWS, group="Score", asked="crps", terms=crps_beside_marginal,
        reduction=skill,
        shown={"mlflow": 1, "slices": 7},
    ),
    Metric(
        "crps_recalibrated", "CRPS if honest",
        "The mean CRPS that the version would have once recalibrated by what it states itself, fitted on other rows: "
        "what it knows. The CRPS less this is what it loses by stating its own uncertainty wrongly. On at most 10,000 "
        "rows.",
        unit=TARGET, better="lower", group="Score", asked="crps", column="crps_recalibrated",
        value=mean_of_column("crps_recalibrated"),
    ),
    Metric(
        "nll_recalibrated", "NLL if honest",
        "The same of the NLL.",
        unit="nats per row", better="lower", group="Score", asked="nll", column="nll_recalibrated",
        value=mean_of_column("nll_recalibrated"),
    ),
    Metric(
        "crps_miscalibration", "miscalibration of CRPS",
        "What recalibrating every predicted quantile by a non-decreasing function would take off the CRPS: CRPS = "
        "miscalibration - discrimination + uncertainty, by quantiles at 21 levels, or those that the version states, "
        "of at most 10,000 rows. Large beside the CRPS: recalibrate. Not of fewer than 39 draws: that they are so few "
        "would count as miscalibration.",
        unit=TARGET, better="lower", group="Score", asked="crps", value=part_of_crps("miscalibration"),
    ),
    Metric(
        "crps_discrimination", "discrimination of CRPS",
        "What the recalibrated predictions take off the uncertainty: how well the version tells inputs apart. Near "
        "0: calibrated or not, it is useless.",
        unit=TARGET, better="higher", group="Score", asked="crps", value=part_of_crps("discrimination"),
    ),
    Metric(
        "crps_uncertainty", "uncertainty of CRPS",
        "The CRPS of the distribution of all targets together, the same for every version.",
        unit=TARGET, group="Score", asked="crps", value=part_of_crps("uncertainty"),
    ),
    Metric(
        "mae", "MAE",
        "Mean absolute error of the predictive mean; of several targets the mean distance from it. Of draws that of "
        "their mean, which is the less exact the fewer they are.",
        unit=TARGET, better="lower", interval=ROWS, group="Score", asked="mae", column="absolute_error",
        column_label="absolute error", bounds=(0.0, math.inf), margin="5 % of skill",
        marginal=mean_deviation,
        shown={"headlines": 8, "mlflow": 12, "slices": 6, "compared": 5, "wins": 4, "over_time": 6},
    ),
    Metric(
        "rmse", "RMSE",
        "Root mean squared error of the predictive mean; of several targets that of the distance from it.",
        unit=TARGET, better="lower", interval=ROWS, group="Score", asked="rmse", column="squared_error",
        reduction=root_of, bounds=(0.0, math.inf), margin="5 % of skill", marginal=spread_of,
        shown={"slices": 10, "compared": 6},
    ),
    Metric(
        "ece", "ECE",
        "Expected calibration error over the whole split. Near 0 does not mean that single predictions are right.",
        unit=SHARE, better="lower", interval=ROWS, group="Calibration", asked="ece", column="pit",
        prepare=below_levels, centers=tuple(even_levels().tolist()),
        margin=0.01,  # a share would vanish for a calibrated baseline
        shown={"headlines": 5, "mlflow": 11, "slices": 11, "compared": 4, "wins": 5},
    ),
    Metric(
        "ert_90", "ERT 90 %",
        "Excess risk of the target coverage: at least how far, in the mean over inputs, the coverage of the 90 % "
        "interval is from .9, by a classifier on rows that it has not seen. 0 if the version is right, by chance a "
        "little below. Not of quantiles without .05 or .95, nor of fewer than 19 draws.",
        unit=SHARE, better="lower", group="Calibration", asked="coverage", measured=True,
    ),
    Metric(
        "cce_noise_floor", "CCE if true (RMS)",
        "The noise floor: at each point the root of the expected squared CCE if the version were true, averaged over "
        "the points. A mean of roots lies below a root of means, so a true version's mean CCE lies below it.",
        unit=DISTANCE, group="Distance", asked="cce", column="cce_noise_floor", measured=True,
        shown={"slices": 2},
    ),
    Metric(
        "cce_squared_mean", "mean CCE²",
        "Mean squared CCE, less the Monte-Carlo term of a finite ensemble: what paired differences are taken of.",
        unit=DISTANCE + ", squared", better="lower", interval=NEW_TARGETS, group="Distance", asked="cce",
        measured=True,
    ),
    Metric(
        "cce_significant_share", "share with a fault around",
        "Share of points whose smoothed error a version that is true everywhere would not show (false discovery "
        "rate 5 %); 0 where all tests together find no fault. Neighbours share their targets: a point next to a wrong "
        "region may be among them.",
        unit=SHARE, better="lower", group="Distance", asked="congruence_test", measured=True,
    ),
    Metric(
        "cce_std", "std over repeats",
        "Standard deviation of the mean CCE over the protocol's repeats.",
        unit=DISTANCE, better="lower", group="Distance", asked="cce", measured=True,
    ),
    Metric(
        "cce_error_bound", "numerical error, at most",
        "The computed CCE of every point is at most this far from the exact one, by the solver's residual, the "
        "rounding of the Gram matrix and the features of the output kernel.",
        unit=DISTANCE, better="lower", group="Distance", asked="cce", measured=True,
    ),
    Metric(
        "sharpness", "sharpness",
        "How wide the predictive distributions are; to be judged with coverage. Of several targets the root of "
        "the sum of their variances.",
        unit=TARGET, group="Sharpness", asked="sharpness",
        value=sharpness,
    ),
    Metric(
        "actual_over_expected", "A/E",
        "Actual over expected: the sum of the counts over the sum of the predicted means. 1 is right in total; by "
        "slice it says where the version predicts too few or too many.",
        unit=SHARE, better=1.0, interval=ROWS, group="Totals and counts", asked="actual_over_expected", terms=totals,
        reduction=ratio, bounds=(0.0, math.inf),
        shown={"slices": 8},
    ),
    Metric(
        "deviance", "deviance",
        "Mean Poisson deviance of the predicted means: 2 (y log(y / mean) - (y - mean)). Compares versions on the "
        "same rows by their means alone.",
        unit="per row", better="lower", interval=ROWS, group="Totals and counts", asked="deviance", terms=deviances,
        bounds=(0.0, math.inf),
        shown={"slices": 9},
    ),
    Metric(
        "effective_rows", "effective rows",
        "How many rows of equal weight say as much as the weighted ones: (sum w)² / sum w² (Kish). Far below the "
        "rows: a few of them decide every weighted mean.",
        unit="rows", measured=True,
    ),
    Metric(
        "largest_block", "largest block",
        "Share of the rows, by their weights, that lies in the largest group or run of time. Above a third, means have "
        "no interval: little lies outside of it.",
        unit=SHARE, measured=True,
    ),
    Metric(
        "target_resolution", "resolution of the targets",
        "The targets are rounded to multiples of it. NLL is then of the cells around them: each distribution, that of "
        "all targets included, by the probability that it gives the interval of values that round to the target.",
        unit=TARGET, value=attrgetter("resolution"),
    ),
    Metric(
        "quantile_crossing_share", "crossing quantiles",
        "Share of rows whose predicted quantiles fell where the level rises, and were sorted.",
        unit=SHARE, better="lower", group="Calibration", column="quantile_crossing",
        value=mean_of_column("quantile_crossing"),
    ),
    Metric(
        "beyond_quantiles_share", "beyond the outer quantiles",
        "Share of targets below the quantile of the first level or above that of the last one: should be what the "
        "levels leave out. There the tails decide the log score.",
        unit=SHARE, group="Calibration", column="beyond_quantiles",
        value=mean_of_column("beyond_quantiles"),
    ),
    Metric(
        "skce", "SKCE",
        "Squared kernel calibration error over the split, or over 50,000 random rows of it; 0 in expectation if "
        "calibrated, may be negative.",
        better="lower", group="Calibration", asked="skce", value=skce,
    ),
    Metric(
        "skce_p_value", "SKCE p",
        "Test of “calibrated over the whole split” by the SKCE.",
        group="Calibration", asked="skce",
        value=skce_p_value,
    ),
    *(
        Metric(
            f"pit_{name}_p_value", f"PIT {label} p",
            f"{test} test of uniform PIT values.",
            group="Calibration", asked="pit", value=value,
        )
        for name, label, test, value in (
            ("ks", "KS", "Kolmogorov-Smirnov", p_of_uniform(kolmogorov_smirnov)),
            ("cvm", "CvM", "Cramér-von Mises", p_of_uniform(cramer_von_mises)),
            ("chi2", "chi²", "Chi-squared", p_of_uniform(chi_square, fewest=10)),  # two bins of five rows
        )
    ),
    *(
        each
        for level in COVERAGE_LEVELS
        for each in (
            Metric(
                f"coverage_{100 * level:.0f}", f"coverage {100 * level:.0f} %",
                "Share of outcomes inside the central interval of that many percent: should be that many percent; "
                "of counts more, as an interval that ends on whole numbers holds at least its share.",
                unit=SHARE, better=level, interval=ROWS, group="Calibration", asked="coverage", terms=covered_at(level),
                bounds=(0.0, 1.0),
                shown={"mlflow": 4, "slices": 12, "over_time": 7} if level == 0.9 else {"slices": 12},
            ),
            Metric(
                f"width_{100 * level:.0f}", f"width {100 * level:.0f} %",
                "Mean width of that interval: narrow is good only if it covers. Not of draws too few to hold it: the "
                f"outermost of {2.0 / (1.0 - level) - 1.0:.0f} do.",
                unit=TARGET, better="lower", interval=ROWS, group="Sharpness", asked="coverage", terms=width_at(level),
                shown={"slices": 12},
            ),
        )
    ),
)
