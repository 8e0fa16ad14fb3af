"""The numbers at the top of a report, what they are beside, totals of counts, and how quantiles were read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from congruence.kernels.distributions import Distribution
from congruence.kernels.distributions.quantiles import TAILS
from congruence.kernels.marginal_calibration import actual_over_expected, deciles, has_total, poisson_deviance
from congruence.tasks.scores.evaluation import Evaluation, MetricValue
from congruence.tasks.scores.metrics.registry import REGION
from congruence.tasks.sentences.calibration import significant
from congruence.tasks.sentences.findings import place_in_words

_PERCENT = 0.02
FEWEST = 30
"""Rows of a place below which its coverage says little."""


@dataclass(frozen=True)
class Headline:
    """One of the numbers at the top: its metric, what it is called here, its value and interval in words, a comment."""

    name: str
    label: str
    value: str
    interval: str
    comment: str


def headlines(evaluation: Evaluation, beside: tuple[str, Mapping[str, MetricValue]] | None = None) -> list[Headline]:
    """Three numbers that need no theory: skill, coverage of the 90 % interval, and the distance beyond noise.

    ``beside``: name and metrics of the version in use, whose score is named, too.
    """
    metrics, found = evaluation.metrics, []
    if (skill := metrics.get("crps_skill")) is not None:
        without, crps = metrics.get("crps_uncertainty"), metrics.get("crps_mean")
        comment = "100 % is perfect, 0 % no better than ignoring the input"
        if without is not None and crps is not None:
            comment = f"CRPS {significant(crps.value)}; {significant(without.value)} ignoring the input"
            if beside is not None and "crps_mean" in beside[1]:
                comment += f"; {significant(beside[1]['crps_mean'].value)} of {beside[0]}, the baseline"
        found.append(Headline("crps_skill", "Skill against ignoring the input", *_in_percent(skill), comment))
    if (coverage := metrics.get("coverage_90")) is not None:
        worst = worst_coverage(evaluation)
        comment = "90 % is right" if worst is None else f"90 % is right; worst: {100.0 * worst[1]:.0f} % {worst[0]}"
        found.append(Headline("coverage_90", "90 % intervals hold", *_in_percent(coverage), comment))
    if (excess := metrics.get("cce_excess")) is not None:
        mean, expected = metrics.get("cce_mean"), metrics.get("cce_expected")
        comment = ""
        if mean is not None and expected is not None:
            comment = f"CCE {significant(mean.value)}; {significant(expected.value)} would be noise alone"
        found.append(Headline("cce_excess", "Distance from the truth beyond noise", *_words(excess), comment))
    return found


def worst_coverage(evaluation: Evaluation) -> tuple[str, float] | None:
    """The slice, or region where there are none, whose 90 % intervals hold the share that is farthest from .9."""
    slices, held = evaluation.slices, dict[str, float]()
    if "coverage_90" in slices:
        some = slices[slices["rows"] >= FEWEST]
        names = some["slice"].astype(str) + " is " + some["value"].astype(str)
        held = {f"where {name}": float(share) for name, share in zip(names, some["coverage_90"], strict=True)}
    elif {"pit", REGION} <= set(evaluation.scores.columns) and not getattr(evaluation.predictive, "has_steps", True):
        scores = evaluation.valid_scores
        inside = (scores["pit"] - 0.5).abs() <= 0.45
        groups = inside.groupby(scores[REGION].astype(str)).agg(["mean", "size"])
        shares = groups.loc[groups["size"] >= FEWEST, "mean"]
        held = {place_in_words(str(name)): float(share) for name, share in shares.items()}
    return max(held.items(), key=lambda each: abs(each[1] - 0.9), default=None)


def _in_percent(metric: MetricValue) -> tuple[str, str]:
    """In whole percents, in tenths where these would say nothing; no negative zero."""
    ends = [each for each in (metric.value, metric.low, metric.high) if each is not None]
    digits = 0 if max(abs(each) for each in ends) >= _PERCENT else 1
    said = [f"{round(100.0 * each, digits) + 0.0:.{digits}f}" for each in ends]
    return f"{said[0]} %", "" if len(said) < 3 else f"{said[1]} to {said[2]} %"


def _words(metric: MetricValue) -> tuple[str, str]:
    value = significant(metric.value)
    if metric.low is None or metric.high is None:
        return value, ""
    return value, f"{significant(metric.low)} to {significant(metric.high)}"


@dataclass(frozen=True)
class Totals:
    """Totals of a split.

    Attributes:
        whole: one record: rows, actual, expected, ratio with interval and the ends of a right version's.
        deciles: one record a tenth of the rows by prediction, the lowest first.
        lift: mean target of the highest tenth over that of all rows.
        deviance: Poisson deviance a row.
        explained: 1 - deviance / that of the mean target for every row.
    """

    whole: dict[str, Any]
    deciles: list[dict[str, Any]]
    lift: float
    deviance: float
    explained: float


def totals_of(evaluation: Evaluation) -> Totals | None:
    """The totals of a version whose targets are never negative and whose means are positive; None of any other."""
    scores, targets = evaluation.valid_scores, evaluation.targets
    if targets is None or "mean" not in scores or "std" not in scores or targets.ndim != 1:
        return None
    mean, std = (scores[name].to_numpy(float) for name in ("mean", "std"))
    if not has_total(targets, mean):
        return None
    whole = _records(np.zeros(len(mean), dtype=np.intp), targets, mean, std)[0]
    codes = deciles(mean)
    by_decile = _records(codes, targets, mean, std)
    top = targets[codes == codes.max()]
    deviance = poisson_deviance(targets, mean)
    of_mean = poisson_deviance(targets, np.full_like(mean, np.mean(targets)))
    explained = 1.0 - deviance / of_mean if of_mean > 0.0 else 0.0
    return Totals(whole, by_decile, float(np.mean(top) / np.mean(targets)), deviance, explained)


def _records(codes: Any, targets: Any, mean: Any, std: Any) -> list[dict[str, Any]]:
    found = actual_over_expected(codes, int(codes.max()) + 1, targets, mean, std)
    names = ("rows", "actual", "expected", "ratio", "low", "high", "null_low", "null_high")
    each = zip(*(getattr(found, name).tolist() for name in names), strict=True)
    return [dict(zip(names, values, strict=True)) for values in each]


def quantiles_read(metrics: Mapping[str, MetricValue], predictive: Distribution | None) -> str:
    """How many rows crossed, how many targets lie beyond the outer quantiles, and the tails; empty for other laws."""
    crossing, beyond = (metrics.get(name) for name in ("quantile_crossing_share", "beyond_quantiles_share"))
    if crossing is None or beyond is None or predictive is None:
        return ""
    stated = predictive.parameters()
    levels, kind = stated["levels"], TAILS[int(stated["tails"][0])]
    expected = levels[0] + 1.0 - levels[-1]
    crossed = f"The predicted quantiles crossed in {crossing.value:.2%} of the rows and were sorted there. "
    tails = "no tails" if kind == "none" else f"{kind} tails"
    return (
        f"{crossed if crossing.value > 0.0 else ''}{beyond.value:.2%} of the targets lie beyond the outer quantiles, "
        f"{expected:.2%} by the levels; there the predictions have {tails}."
    )
