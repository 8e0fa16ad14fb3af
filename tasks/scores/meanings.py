"""What each logged number means: its name in tables, its unit, what is better, and what its interval speaks of.

Tables, reports, plots, MLflow's descriptions and the documentation read this one place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from congruence.tasks.scores.evaluation import CORRELATED, NOT_AS_IF_TRUE, NOT_CALIBRATED, MetricValue, cce_status

Better = Literal["lower", "higher", "neither"]

NEW_TARGETS = "95 % confidence interval: other targets at the same inputs"
ROWS = "95 % confidence interval: other rows"
BAND = "where 95 of 100 splits lie if the version is true"


@dataclass(frozen=True)
class Meaning:
    """What a number means.

    Attributes:
        label: its name in a table.
        reading: how to read it, in a sentence or two.
        unit: what it is counted in.
        better: which direction is better.
        interval: what its ``low`` and ``high`` speak of, where it has them.
    """

    label: str
    reading: str
    unit: str = ""
    better: Better = "lower"
    interval: str = ""


DISTANCE = "distance in the output kernel's space"
TARGET = "unit of the target"
SHARE = "share"

COLUMN_LABELS = {
    "cce": "CCE",
    "cce_excess": "excess CCE",
    "cce_noise_floor": "CCE if right",
    "target": "target",
    "mean": "prediction",
    "std": "predicted spread",
    "pit": "PIT",
    "nll": "NLL",
    "crps": "CRPS",
    "absolute_error": "absolute error",
}
"""What the columns of the scores are called on pages and pictures."""

EFFECTS = {
    "bias": "Large: targets lie above or below the predictions; look for a missing input, or shift the predictions.",
    "spread": "Large: predicted spreads are too small or too large; recalibrate them, or let the model learn them.",
    "skew": "Large: targets have a longer tail on one side than predicted; choose a skewed family.",
    "tails": "Large: more or fewer targets far out than predicted; choose a family of other tails, or a mixture.",
}
"""What to do where the effect of an order of the PIT scores is large."""

MEANINGS: dict[str, Meaning] = {
    "cce_mean": Meaning(
        "CCE",
        "Mean Conditional Congruence Error: distance, in the output kernel's space, between what the model predicts at "
        "an input and what the data say there. Compares within one protocol only, and is judged beside what it would "
        "be if the version were true.",
        DISTANCE,
        interval=NEW_TARGETS,
    ),
    "cce_expected": Meaning(
        "expected if true",
        "What the mean CCE would be if this version were the truth: at a finite number of rows it is never 0. A CCE "
        "inside its band cannot be distinguished from that of a true version.",
        DISTANCE,
        "neither",
        BAND,
    ),
    "cce_excess": Meaning(
        "excess",
        "The part of the CCE that is the model's own: CCE² = (expected if true)² + excess², and 0 where the CCE is "
        "below what is expected. Never above the CCE; compares across splits of different sizes.",
        DISTANCE,
        interval=NEW_TARGETS,
    ),
    "cce_p_value": Meaning(
        "p",
        "Exact Monte-Carlo test of “the version is the truth”, in the output kernel that the version itself states: "
        "below 0.05, the data contradict the version.",
        better="neither",
    ),
    "dependent_blocks": Meaning(
        "blocks of rows",
        "The split names groups or time: so many groups, or runs of time, are taken as independent, and p-values and "
        "intervals go by them. They hold in the limit of many blocks and are not exact.",
        better="neither",
    ),
    "row_correlation": Meaning(
        "correlation of rows",
        "Correlation of the PIT scores of rows that stand near each other or share a group, found though the split "
        "names no groups and no time: p-values and intervals of independent rows do not hold. Name `time:` or "
        "`groups:`.",
        better="neither",
    ),
    "calibration_p_value": Meaning(
        "calibration p",
        "Exact Monte-Carlo test of “given its input, every target follows its predicted law”, by PIT values over the "
        "inputs. It sees faults of spread and shape that CCE does not. It and CCE's test are each judged at 0.025, so "
        "that 5 of 100 true versions are called wrong; what is wrong, and by how much, say the effects.",
        better="neither",
    ),
    **{
        f"calibration_effect_{order}": Meaning(
            f"effect of {order}",
            f"Share of the {order} score's variance that the inputs explain: 0 if the version is true, of the order of "
            f"1 if it is useless, whatever the number of rows. {advice}",
            SHARE,
            interval=ROWS,
        )
        for order, advice in EFFECTS.items()
    },
    "nll_mean": Meaning(
        "NLL", "Mean negative log-likelihood of the targets: a proper score.", "nats per row", interval=ROWS
    ),
    "crps_mean": Meaning("CRPS", "Mean continuous ranked probability score, a proper score.", TARGET, interval=ROWS),
    "crps_skill": Meaning(
        "CRPS skill",
        "1 - CRPS / CRPS of the law of all targets together, which ignores the input: 1 is perfect, 0 no better than "
        "that law, negative worse.",
        SHARE,
        "higher",
        ROWS,
    ),
    "crps_miscalibration": Meaning(
        "miscalibration of CRPS",
        "What recalibrating every predicted quantile by a non-decreasing function would take off the CRPS: CRPS = "
        "miscalibration - discrimination + uncertainty, by quantiles at 21 levels of at most 10,000 rows. Large beside "
        "the CRPS: recalibrate.",
        TARGET,
    ),
    "crps_discrimination": Meaning(
        "discrimination of CRPS",
        "What the recalibrated predictions take off the uncertainty: how well the version tells inputs apart. Near 0: "
        "calibrated or not, it is useless.",
        TARGET,
        "higher",
    ),
    "crps_uncertainty": Meaning(
        "uncertainty of CRPS",
        "The CRPS of the law of all targets together, the same for every version.",
        TARGET,
        "neither",
    ),
    "ece": Meaning(
        "ECE",
        "Expected calibration error over the whole split. Near 0 does not mean that single predictions are right.",
        SHARE,
        interval=ROWS,
    ),
    "ert_90": Meaning(
        "ERT 90 %",
        "Excess risk of the target coverage: at least how far, in the mean over inputs, the coverage of the 90 % "
        "interval is from .9, by a classifier on rows that it has not seen. 0 if the version is right, by chance a "
        "little below. Where MAPIE and covmetrics are installed.",
        SHARE,
    ),
    "mae": Meaning("MAE", "Mean absolute error of the predictive mean.", TARGET, interval=ROWS),
    "rmse": Meaning("RMSE", "Root mean squared error of the predictive mean.", TARGET, interval=ROWS),
    "cce_noise_floor": Meaning(
        "CCE if true (RMS)",
        "The noise floor: at each point the root of the expected squared CCE if the version were true, meant over the "
        "points. A mean of roots lies below a root of means, so a true version's mean CCE lies below it.",
        DISTANCE,
        "neither",
    ),
    "cce_squared_mean": Meaning(
        "mean CCE²",
        "Mean squared CCE, less the Monte-Carlo term of a finite ensemble: what paired differences are taken of.",
        DISTANCE + ", squared",
        interval=NEW_TARGETS,
    ),
    "cce_significant_share": Meaning(
        "share with a fault around",
        "Share of points whose smoothed error a version that is true everywhere would not show (false discovery rate "
        "5 %). Neighbours share their targets: a point next to a wrong region may be among them.",
        SHARE,
    ),
    "cce_std": Meaning("std over repeats", "Standard deviation of the mean CCE over the protocol's repeats.", DISTANCE),
    "cce_error_bound": Meaning(
        "numerical error, at most",
        "The computed CCE of every point is at most this far from the exact one, by the solver's residual, the "
        "rounding of the Gram matrix and the features of the output kernel.",
        DISTANCE,
    ),
    "sharpness": Meaning(
        "sharpness", "How wide the predictive distributions are; to be judged with coverage.", TARGET, "neither"
    ),
    "actual_over_expected": Meaning(
        "A/E",
        "Actual over expected: the sum of the counts over the sum of the predicted means. 1 is right in total; by "
        "slice it says where the version predicts too few or too many.",
        SHARE,
        "neither",
        ROWS,
    ),
    "deviance": Meaning(
        "deviance",
        "Mean Poisson deviance of the predicted means: 2 (y log(y / mean) - (y - mean)). Compares versions on the "
        "same rows by their means alone.",
        "per row",
        interval=ROWS,
    ),
    "effective_rows": Meaning(
        "effective rows",
        "How many rows of equal weight say as much as the weighted ones: (sum w)² / sum w² (Kish). Far below the rows: "
        "a few of them decide every weighted mean.",
        "rows",
        "neither",
    ),
    "quantile_crossing_share": Meaning(
        "crossing quantiles",
        "Share of rows whose predicted quantiles fell where the level rises, and were sorted.",
        SHARE,
    ),
    "beyond_quantiles_share": Meaning(
        "beyond the outer quantiles",
        "Share of targets below the quantile of the first level or above that of the last one: should be what the "
        "levels leave out. There the tails decide the log score.",
        SHARE,
        "neither",
    ),
    "skce": Meaning(
        "SKCE",
        "Squared kernel calibration error over the split, or over 50,000 random rows of it; 0 in expectation if "
        "calibrated, may be negative.",
    ),
    "skce_p_value": Meaning("SKCE p", "Test of “calibrated over the whole split” by the SKCE.", better="neither"),
    "pit_ks_p_value": Meaning("PIT KS p", "Kolmogorov-Smirnov test of uniform PIT values.", better="neither"),
    "pit_cvm_p_value": Meaning("PIT CvM p", "Cramér-von Mises test of uniform PIT values.", better="neither"),
    "pit_chi2_p_value": Meaning("PIT chi² p", "Chi-squared test of uniform PIT values.", better="neither"),
}

_COVERAGE = Meaning(
    "coverage",
    "Share of outcomes inside the central interval of that many percent: should be that many percent; of counts more, "
    "as an interval that ends on whole numbers holds at least its share.",
    SHARE,
    "neither",
    ROWS,
)
_WIDTH = Meaning("width", "Mean width of that interval: narrow is good only if it covers.", TARGET, interval=ROWS)

CERTIFICATE_KINDS = {
    "computed": "Every part of it was computed.",
    "sampled": "Parts of it were read at random points and have a margin: an estimate, not a proof.",
}
"""What the run's parameter ``certificate_kind`` says of ``cce_error_bound``."""

HEADLINES = ("cce_mean", "cce_expected", "cce_excess", "cce_p_value", "ece", "nll_mean", "crps_mean", "mae")
"""The numbers that stand in tables and summaries, in this order."""

COMPARED = ("cce_mean", "nll_mean", "crps_mean", "ece", "mae", "rmse")
"""The numbers of two versions that are set beside each other."""


def meaning(name: str) -> Meaning:
    """What the metric ``name`` means; a metric of our own making that nobody described is named as it is logged."""
    if name in MEANINGS:
        return MEANINGS[name]
    for start, known in (("coverage_", _COVERAGE), ("width_", _WIDTH)):
        if name.startswith(start):
            percent = name.removeprefix(start)
            return Meaning(f"{known.label} {percent} %", known.reading, known.unit, known.better, known.interval)
    return Meaning(name, "", better="neither")


LITTLE, MUCH = 0.02, 0.2
"""Effects, shares of a score's variance: a bias of .14 predicted spreads has .02, one of .5 has .2."""


def size_of_fault(metrics: Mapping[str, MetricValue]) -> str:
    """How wrong a version is, whatever the number of rows: "by little", "clearly", "by much"; "" where it is not known.

    By the largest effect of calibration given the input: 0 if the version is true, of the order of 1 if it is useless,
    as a version that ignores its input is where the input says much.
    """
    effects = [metric.value for name, metric in metrics.items() if name.startswith("calibration_effect_")]
    if not effects:
        return ""
    largest = max(effects)
    return "by little" if largest < LITTLE else "clearly" if largest < MUCH else "by much"


def verdict(metrics: Mapping[str, MetricValue]) -> str:
    """The CCE of a version in a sentence: the number, what it would be if the version were true, and what follows."""
    mean, expected, floor = (metrics.get(name) for name in ("cce_mean", "cce_expected", "cce_noise_floor"))
    if mean is None:
        return "CCE was not measured"
    return _verdict(metrics, mean, expected, floor) + _size(metrics)


def _size(metrics: Mapping[str, MetricValue]) -> str:
    """The largest effect of a version that is contradicted, beside what effects are: "; wrong by little: ..."."""
    size = size_of_fault(metrics)
    if not size or cce_status(metrics) not in (NOT_AS_IF_TRUE, NOT_CALIBRATED):
        return ""
    effects = {name: metric.value for name, metric in metrics.items() if name.startswith("calibration_effect_")}
    name = max(effects, key=lambda each: effects[each])
    order = name.removeprefix("calibration_effect_")
    return f"; wrong {size}, most in its {order}: the input explains {100.0 * effects[name]:.2g} % of that score"


def _verdict(
    metrics: Mapping[str, MetricValue], mean: MetricValue, expected: MetricValue | None, floor: MetricValue | None
) -> str:
    status = cce_status(metrics)
    if status == NOT_CALIBRATED:
        p_value = probability(metrics["calibration_p_value"].value)
        also = f"{NOT_CALIBRATED} (p {p_value})" if p_value.startswith("<") else f"{NOT_CALIBRATED} (p = {p_value})"
        return f"The version is {also}, though its CCE {significant(mean.value)} does not contradict it"
    said = f"CCE {significant(mean.value)} is {status}"
    if expected is not None and expected.low is not None and expected.high is not None:
        low, high = significant(expected.low), significant(expected.high)
        of_true = "; if they were independent, a true version would have" if status == CORRELATED else ":"
        return f"{said}{of_true} {significant(expected.value)} [{low}, {high}]"
    return said if floor is None else f"{said} ({meaning('cce_noise_floor').label} {significant(floor.value)})"


def significant(value: float) -> str:
    """Three significant digits; four before the point stay whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def probability(p_value: float | None) -> str:
    """A p-value as people read it; of a normal approximation, digits below a millionth say nothing."""
    if p_value is None:
        return "–"
    return "< 1e-6" if p_value < 1e-6 else f"{p_value:.2g}"
