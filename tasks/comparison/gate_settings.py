"""The evaluation file's `gate:`: what a version must keep to, and what it is compared with."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from congruence.tasks.settings.parts import Strict

_SHARE = re.compile(r"^\s*(?P<number>\d+(\.\d*)?|\.\d+)\s*%\s*(?P<skill>of\s+skill)?\s*$")
Limit = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Margin:
    """By how much a metric may be worse: a number, a share of the baseline's value, or of the baseline's skill.

    The skill is what is at stake: how much better the baseline is than the distribution of all targets.
    """

    value: float
    is_share: bool = False
    of_skill: bool = False

    @classmethod
    def of(cls, written: float | str) -> Margin:
        """``0.05``, ``"5 %"`` of the baseline's value, or ``"5 % of skill"``.

        Raises:
            ValueError: neither, or negative.
        """
        if isinstance(written, str):
            match = _SHARE.match(written)
            if match is None:
                raise ValueError(
                    f'{written!r} is no margin; write a number such as 0.01, or a share: "5 %", "5 % of skill"'
                )
            return cls(float(match["number"]) / 100.0, is_share=True, of_skill=match["skill"] is not None)
        if not 0.0 <= written < math.inf:
            raise ValueError(f"{written} is no margin; it must be a number from 0 up (better_on asks for improvements)")
        return cls(float(written))

    def absolute(self, baseline: float, skill: float = 0.0) -> float:
        """In the metric's own units, beside the baseline's value and its ``skill`` in these units."""
        if self.of_skill:
            return self.value * max(skill, 0.0)
        return self.value * max(baseline, 0.0) if self.is_share else self.value

    def __str__(self) -> str:
        share = f"{100 * self.value:g} %"
        return f"{share} of the baseline's skill" if self.of_skill else share if self.is_share else f"{self.value:g}"


class GateSettings(Strict):
    """The evaluation file's ``gate:``. Lower is better in every metric.

    Every comparison has three answers, by the 95 % interval of the difference (candidate - baseline): *passed* where
    its upper end lies below the limit, *failed* where its lower end lies above, *undecided* where it holds the limit:
    the split is too small to tell.

    Attributes:
        maximum: largest value allowed, by metric: ``{cce_mean: 0.05, ece: 0.03, calibration_effect_spread: 0.02}``.
            The effects of calibration given the input (``calibration_effect_bias``, ``_spread``, ``_skew``, ``_tails``)
            are shares of the variance of a score that the inputs explain: 0 if the version is true, whatever the size
            of the split. A bias of 0.1 predicted spreads has 0.010 of ``_bias``, a spread wrong by a factor of 1.1
            some 0.015 of ``_spread``, by 1.5 some 0.25.
        at_noise_floor: the CCE must be as expected if the version were true, and the version calibrated given its input
            (neither exact test contradicts it). A small split contradicts little: it belongs beside a ``maximum`` or a
            baseline.
        largest_wrong_slice: the largest share of the rows, from 0 to 1, that a slice may have which the report names
            wrong (false discovery rate 5 %, and far enough off to be worth naming in the target's own terms): ``0.05``
            lets small slices be wrong, ``0`` none. Where a split has no ``slices``, regions of its inputs count.
            Undecided where calibration given the input was not measured.
        not_changed: the looks over time that ``congruence watch`` made at the version say that it is right so far:
            failed where they call it wrong or changed, undecided where there is none.
        baseline: the version to compare with: ``champion`` (an alias) or ``3`` of the candidate's model, or
            ``models:/name/3``, ``models:/name@champion``.
        first_version: what becomes of a version whose baseline is an alias that no version holds yet: ``refuse`` to
            judge it, or ``pass`` it if it keeps to the other rules.
        not_worse_on: metrics in which the version must not be worse than the baseline by the ``margin`` or more; by
            default CCE, and NLL where both have it (of quantiles and draws CRPS), unless ``better_on`` is given: then
            none.
        better_on: metrics in which the version must be better.
        margin: by metric of ``not_worse_on``: a number in the metric's units (``0.01``; nats for ``nll_mean``), a
            share of the baseline's value (``"5 %"``), or of its skill (``"5 % of skill"``: of how much lower its NLL,
            CRPS, MAE or RMSE is than that of the distribution of all targets, which knows no input). By default 5 % of
            CCE, 5 % of the skill in NLL, CRPS, MAE and RMSE, 0.01 of ECE and 0.01 of each effect.
        less_honest: what becomes of a version that breaks a rule on CRPS or NLL because it states its uncertainty
            wrongly, and would keep it if it were recalibrated: ``refuse`` it, or ``recalibrate``: it passes, and the
            decision names the command that corrects it; no alias moves to it before.
        may_be_best: ``true``: the version must be among those of its registered model that may be the best by CRPS on
            the split (95 % model confidence set), with ``new_dates_only`` over all looks that versions share. By
            default an alias alone asks for that; ``false``: nothing does.
        resamples: of the bootstrap of the metrics other than CCE.
        set_alias: alias to move to a version that passes; none is touched by default. It never moves to a version that
            is surely not the best (see ``may_be_best``). Of several that pass it moves to the best in the order of the
            rules (``better_on``, then ``not_worse_on``), by paired comparison; where none is shown to be better, to
            the oldest.
    """

    maximum: dict[str, Limit] = Field(default_factory=dict)
    at_noise_floor: bool = False
    largest_wrong_slice: Annotated[float, Field(ge=0, lt=1)] | None = None
    not_changed: bool = False
    baseline: Annotated[str, Field(coerce_numbers_to_str=True)] | None = None
    first_version: Literal["pass", "refuse"] = "refuse"
    not_worse_on: list[str] = Field(default_factory=lambda: ["cce_mean", "nll_mean"])
    better_on: list[str] = Field(default_factory=list)
    margin: dict[str, float | str] = Field(default_factory=dict)
    less_honest: Literal["refuse", "recalibrate"] = "refuse"
    may_be_best: bool | None = None
    resamples: int = Field(default=2000, ge=100)
    set_alias: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _nothing_unasked(cls, written: Any) -> Any:
        if isinstance(written, dict) and written.get("better_on") and "not_worse_on" not in written:
            return written | {"not_worse_on": []}
        return written

    @field_validator("not_worse_on", "better_on")
    @classmethod
    def _comparable(cls, names: list[str]) -> list[str]:
        from congruence.tasks.scores.metrics.registry import METRICS  # a refusal need not wait for what computes them

        comparable = [name for name, metric in METRICS.items() if metric.margin is not None]
        for name in names:
            if name not in comparable:
                raise ValueError(f"'{name}' cannot be compared; choose from {', '.join(comparable)}")
        return names

    @field_validator("margin")
    @classmethod
    def _margins(cls, margins: dict[str, float | str]) -> dict[str, float | str]:
        from congruence.tasks.scores.metrics.registry import metric_of

        for name, written in margins.items():
            margin = Margin.of(written)
            if margin.is_share and not margin.of_skill and name == "nll_mean":
                raise ValueError(
                    "nll_mean: a share of an NLL, which may be zero or negative, means nothing; give a share of the "
                    'skill, for example "5 % of skill", or nats, for example 0.01'
                )
            if margin.of_skill and metric_of(name).marginal is None:
                raise ValueError(f'{name}: the distribution of all targets has none; write "5 %" or a number')
        return margins

    def _contradictions(self) -> Iterator[str]:
        given = [name for name in ("not_worse_on", "better_on", "margin") if name in self.model_fields_set]
        compared = [name for name in given if getattr(self, name)]
        if self.baseline is None and compared:
            yield f"{compared[0]}: compares with a baseline, and there is none; add one, for example baseline: champion"
        alone = self.maximum or self.at_noise_floor or self.not_changed or self.may_be_best
        alone = alone or self.largest_wrong_slice is not None
        if self.baseline is None and not alone:
            yield (
                "there is no rule, so that every version would pass; add maximum:, at_noise_floor:, "
                "largest_wrong_slice:, not_changed:, may_be_best: or baseline:"
            )
        if self.baseline is not None and not self.not_worse_on and not self.better_on:
            yield f"baseline: {self.baseline} is compared with in no metric; name some under not_worse_on or better_on"
        if self.less_honest == "recalibrate" and not {"crps_mean", "nll_mean"} & {*self.not_worse_on, *self.better_on}:
            yield "less_honest: is about rules on crps_mean or nll_mean, and there is none"
        for name in self.margin:
            if name not in self.not_worse_on:
                yield (
                    f"margin.{name}: belongs to no rule; not_worse_on has {', '.join(self.not_worse_on) or 'no metric'}"
                )

    def without_baseline(self) -> GateSettings:
        """The rules that compare with nothing."""
        none = dict[str, Any](baseline=None, not_worse_on=[], better_on=[], margin={}, less_honest="refuse")
        return self.model_copy(update=none)

    def not_worse(self, drawn: Collection[str]) -> list[str]:
        """The metrics of ``not_worse_on``; where none are given CRPS in place of what is among ``drawn``.

        These do not say which version is better, see ``PairedComparison.drawn``.
        """
        if "not_worse_on" in self.model_fields_set:
            return self.not_worse_on
        return ["crps_mean" if name in drawn else name for name in self.not_worse_on]

    def margin_of(self, name: str) -> Margin:
        """By how much the metric may be worse than the baseline's."""
        from congruence.tasks.scores.metrics.registry import METRICS

        margin = self.margin.get(name, METRICS[name].margin)
        assert margin is not None  # of what can be compared
        return Margin.of(margin)
