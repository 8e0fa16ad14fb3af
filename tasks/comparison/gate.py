"""The promotion gate: a candidate passes by thresholds and by paired comparison with the version it would replace."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field, field_validator

from congruence.tasks.comparison.versions import ComparedVersion, compare_pair
from congruence.tasks.evaluation import AT_FLOOR, cce_status
from congruence.tasks.strict import Strict

COMPARABLE = ("cce_mean", "nll_mean", "crps_mean", "mae", "rmse", "ece")


class GateSettings(Strict):
    """The evaluation file's ``gate:``. Lower is better in every metric.

    Attributes:
        maximum: largest value allowed, by metric: ``{cce_mean: 0.05, ece: 0.03}``.
        at_noise_floor: the CCE must be at its noise floor.
        baseline: the version to compare with: an alias, or a version number.
        not_worse_on: metrics that may not be significantly worse than the baseline's.
        better_on: metrics that must be significantly better.
        margin: by how much a metric of ``not_worse_on`` may be worse all the same.
        significance: level of each of these tests.
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
    """One rule of the gate: whether it holds, and why, in a sentence with the numbers."""

    rule: str
    passed: bool
    reason: str


@dataclass(frozen=True)
class GateDecision:
    """What the gate says of a candidate: it passes if every check does."""

    candidate: ComparedVersion
    baseline: ComparedVersion | None
    checks: tuple[GateCheck, ...]

    @property
    def passed(self) -> bool:
        """Whether every rule holds."""
        return all(check.passed for check in self.checks)

    @property
    def reasons(self) -> list[str]:
        """The failed rules; all rules where none failed."""
        return [check.reason for check in self.checks if not check.passed] or [check.reason for check in self.checks]


def apply_gate(
    candidate: ComparedVersion, baseline: ComparedVersion | None, settings: GateSettings, *, seed: int = 0
) -> GateDecision:
    """Decide on ``candidate``; with no baseline yet (the first version) only the thresholds count.

    Raises:
        ProtocolError: candidate and baseline were measured on other splits or under other protocols.
    """
    checks = [_below(candidate, name, limit) for name, limit in settings.maximum.items()]
    if settings.at_noise_floor:
        checks.append(_at_floor(candidate))
    if baseline is not None and baseline.label != candidate.label:
        checks += _against(candidate, baseline, settings, seed)
    return GateDecision(candidate, baseline, tuple(checks))


def _below(candidate: ComparedVersion, name: str, limit: float) -> GateCheck:
    metric = candidate.metrics.get(name)
    if metric is None:
        known = ", ".join(candidate.metrics)
        return GateCheck(f"maximum {name}", False, f"{name} was not measured; there are {known}")
    passed = metric.value <= limit
    return GateCheck(
        f"maximum {name}", passed, f"{name} is {metric.value:.4g}, {'within' if passed else 'above'} {limit:g}"
    )


def _at_floor(candidate: ComparedVersion) -> GateCheck:
    status = cce_status(candidate.metrics)
    return GateCheck("at_noise_floor", status == AT_FLOOR, f"CCE is {status}")


def _against(
    candidate: ComparedVersion, baseline: ComparedVersion, settings: GateSettings, seed: int
) -> list[GateCheck]:
    comparison = compare_pair(candidate, baseline, resamples=settings.resamples, seed=seed)
    checks = []
    for names, wanted in ((settings.not_worse_on, "not worse"), (settings.better_on, "better")):
        for name in names:
            rule = f"{wanted} on {name}"
            item = comparison.differences.get(name)
            if item is None:
                checks.append(GateCheck(rule, False, f"{name} was not measured on both versions"))
                continue
            significant = item.p_value < settings.significance
            margin = settings.margin.get(name, 0.0)
            worse = significant and item.difference > margin
            better = significant and item.difference < 0
            said = "significantly worse" if worse else "significantly better" if better else "not significantly other"
            reason = (
                f"{name} is {said} than {baseline.label}'s: {item.first:.4g} against {item.second:.4g}, difference "
                f"{item.difference:+.3g} [{item.low:+.3g}, {item.high:+.3g}], p = {item.p_value:.2g}"
            )
            checks.append(GateCheck(rule, better if wanted == "better" else not worse, reason))
    return checks
