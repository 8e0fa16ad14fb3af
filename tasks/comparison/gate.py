"""The promotion gate: a candidate passes by thresholds and by paired comparison with the version it would replace."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pydantic import Field, field_validator

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.paired import PairedDifference
from congruence.tasks.comparison.versions import ComparedVersion, compare_pair
from congruence.tasks.evaluation import AS_IF_TRUE, cce_status
from congruence.tasks.strict import Strict

COMPARABLE = ("cce_mean", "nll_mean", "crps_mean", "mae", "rmse", "ece")


class GateSettings(Strict):
    """The evaluation file's ``gate:``. Lower is better in every metric.

    Attributes:
        maximum: largest value allowed, by metric: ``{cce_mean: 0.05, ece: 0.03}``.
        at_noise_floor: the CCE must be at its noise floor.
        baseline: the version to compare with: an alias, or a version number.
        not_worse_on: metrics that may not be significantly worse than the baseline's; by default CCE and NLL, as far as
            they exist for both.
        better_on: metrics that must be significantly better.
        margin: by how much a metric of ``not_worse_on`` may be worse all the same.
        significance: level of each of these tests; the 95 % interval of the difference must exclude 0 as well.
        set_alias: alias to move to a version that passes; none is touched by default.
    """

    maximum: dict[str, float] = Field(default_factory=dict)
    at_noise_floor: bool = False
    baseline: str | None = None
    not_worse_on: list[str] = Field(default_factory=lambda: ["cce_mean", "nll_mean"])
    better_on: list[str] = Field(default_factory=list)
    margin: dict[str, float] = Field(default_factory=dict)
    significance: float = Field(default=0.05, gt=0, lt=1)
    resamples: int = Field(default=2000, ge=100)
    set_alias: str | None = None

    @field_validator("not_worse_on", "better_on")
    @classmethod
    def _comparable(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in COMPARABLE:
                raise ValueError(f"'{name}' cannot be compared point by point; choose from {', '.join(COMPARABLE)}")
        return names


@dataclass(frozen=True)
class GateCheck:
    """One rule of the gate: whether it holds, and why, in a sentence and in numbers.

    ``limit`` is the largest value allowed; ``baseline``, ``difference`` with its 95 % interval (``low``, ``high``) and
    ``p_value`` belong to the rules that compare.
    """

    rule: str
    passed: bool
    reason: str
    split: str = ""
    metric: str | None = None
    value: float | None = None
    limit: float | None = None
    baseline: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class GateDecision:
    """What the gate says of a candidate under its settings: it passes if every check does.

    ``place`` is where people find it in MLflow, once it is logged.
    """

    candidate: ComparedVersion
    baseline: ComparedVersion | None
    checks: tuple[GateCheck, ...]
    settings: GateSettings
    place: str | None = None

    @property
    def passed(self) -> bool:
        """Whether every rule holds."""
        return all(check.passed for check in self.checks)

    @property
    def reasons(self) -> list[str]:
        """The failed rules; all rules where none failed."""
        return [check.reason for check in self.checks if not check.passed] or [check.reason for check in self.checks]

    def table(self) -> pd.DataFrame:
        """One row per rule, the failed ones first, without the columns that no rule has."""
        checks = sorted(self.checks, key=lambda check: check.passed)
        records: list[dict[str, Any]] = [
            {"passed": "yes" if check.passed else "NO", **{k: v for k, v in vars(check).items() if k != "passed"}}
            for check in checks
        ]
        return pd.DataFrame(records).dropna(axis="columns", how="all")


def apply_gate(
    candidate: ComparedVersion, baseline: ComparedVersion | None, settings: GateSettings, *, seed: int = 0
) -> GateDecision:
    """Decide on ``candidate``; with no baseline yet (the first version) only the thresholds count.

    Raises:
        ProtocolError: candidate and baseline were measured on other splits or under other protocols.
        InvalidInputError: the settings name a metric that was not measured.
    """
    checks = [_below(candidate, name, limit) for name, limit in settings.maximum.items()]
    if settings.at_noise_floor:
        checks.append(_at_floor(candidate))
    if baseline is not None and baseline.label != candidate.label:
        checks += _against(candidate, baseline, settings, seed)
    return GateDecision(candidate, baseline, tuple(checks), settings)


def _not_measured(key: str, name: str, candidate: ComparedVersion, known: list[str]) -> InvalidInputError:
    close = difflib.get_close_matches(name, known, 1)
    remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return InvalidInputError(
        f"gate.{key}: {name} was not measured on {candidate.label} (split '{candidate.split.name}'); {remedy}"
    )


def _below(candidate: ComparedVersion, name: str, limit: float) -> GateCheck:
    metric = candidate.metrics.get(name)
    if metric is None:
        raise _not_measured("maximum", name, candidate, list(candidate.metrics))
    passed = metric.value <= limit
    return GateCheck(
        f"maximum {name}",
        passed,
        f"{name} is {metric.value:.4g}, {'within' if passed else 'above'} {limit:g}",
        split=candidate.split.name,
        metric=name,
        value=metric.value,
        limit=limit,
        low=metric.low,
        high=metric.high,
    )


def _at_floor(candidate: ComparedVersion) -> GateCheck:
    status = cce_status(candidate.metrics)
    mean, floor, p_value = (candidate.metrics.get(name) for name in ("cce_mean", "cce_noise_floor", "cce_p_value"))
    return GateCheck(
        "at_noise_floor",
        status == AS_IF_TRUE,
        f"CCE is {status}",
        split=candidate.split.name,
        metric="cce_mean",
        value=mean.value if mean else None,
        limit=floor.value if floor else None,
        p_value=p_value.value if p_value else None,
    )


def _against(
    candidate: ComparedVersion, baseline: ComparedVersion, settings: GateSettings, seed: int
) -> list[GateCheck]:
    comparison = compare_pair(candidate, baseline, resamples=settings.resamples, seed=seed)
    measured = comparison.differences
    checks = []
    for key, names, wanted in (
        ("not_worse_on", settings.not_worse_on, "not worse"),
        ("better_on", settings.better_on, "better"),
    ):
        for name in names:
            if name in measured:
                checks.append(_compared(name, wanted, measured[name], candidate, baseline, settings))
            elif key in settings.model_fields_set:
                raise _not_measured(key, name, candidate, list(measured))
    return checks


def _compared(
    name: str,
    wanted: str,
    item: PairedDifference,
    candidate: ComparedVersion,
    baseline: ComparedVersion,
    settings: GateSettings,
) -> GateCheck:
    # The permutation test asks whether the versions can be exchanged, which for ECE and RMSE is more than having the
    # same value; the interval asks about the value alone.
    significant = item.p_value < settings.significance and not item.low <= 0.0 <= item.high
    worse = significant and item.difference > settings.margin.get(name, 0.0)
    better = significant and item.difference < 0
    said = "significantly worse" if worse else "significantly better" if better else "not significantly other"
    return GateCheck(
        f"{wanted} on {name}",
        better if wanted == "better" else not worse,
        f"{name} is {said} than {baseline.label}'s: {item.first:.4g} against {item.second:.4g}, difference "
        f"{item.difference:+.3g} [{item.low:+.3g}, {item.high:+.3g}], p = {item.p_value:.2g}",
        split=candidate.split.name,
        metric=name,
        value=item.first,
        limit=item.second + settings.margin[name] if name in settings.margin else None,
        baseline=item.second,
        difference=item.difference,
        low=item.low,
        high=item.high,
        p_value=item.p_value,
    )
