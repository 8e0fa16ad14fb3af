"""Of several versions that pass the gate the best: in the order of its rules, by paired comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import MetricDifference
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.comparison.versions import compare_pair

Splits = Mapping[str, ComparedVersion]
"""The evaluations of one version, by split."""


def best_of(passed: Sequence[Splits], settings: GateSettings, *, seed: int = 0) -> tuple[int, str]:
    """The number of the best of some versions, the oldest first, and why it is.

    Each newer one is compared with the best so far, metric by metric in the order of the rules (``better_on``, then
    ``not_worse_on``, then ``maximum``): the first metric whose paired 95 % interval lies on one side of 0 decides; over
    several splits, it must on one and may not lie on the other side on another. Where none decides, the older stays.
    """
    best, why = 0, "the only one that passed"
    for number in range(1, len(passed)):
        verdict = _better(passed[number], passed[best], settings, seed)
        if verdict is None:
            names = ", ".join(order_of(settings))
            why = f"no later one is shown to be better than {_label(passed[best])} on {names}"
        elif verdict[0]:
            best, why = number, verdict[1]
        else:
            why = verdict[1]
    return best, why


def order_of(settings: GateSettings) -> list[str]:
    """The metrics of the rules, in their order, each once."""
    return list(dict.fromkeys([*settings.better_on, *settings.not_worse_on, *settings.maximum]))


def _better(newer: Splits, older: Splits, settings: GateSettings, seed: int) -> tuple[bool, str] | None:
    """Whether the newer version is better, and by what; None where nothing decides."""
    found: dict[str, dict[str, MetricDifference]] = {}
    for split in newer:
        if split in older:
            pair = compare_pair(newer[split], older[split], resamples=settings.resamples, seed=seed)
            found[split] = pair.differences
            newer[split].release()
            older[split].release()
    for name in order_of(settings):
        items = {split: differences[name] for split, differences in found.items() if name in differences}
        lower = {split: item for split, item in items.items() if item.high < 0.0}
        higher = {split: item for split, item in items.items() if item.low > 0.0}
        if bool(lower) == bool(higher):
            continue
        split, item = next(iter((lower or higher).items()))
        better, other = (newer, older) if lower else (older, newer)
        where = f" on {split}" if len(found) > 1 else ""
        values = (item.first, item.second) if lower else (item.second, item.first)
        ends = (item.low, item.high) if lower else (-item.high, -item.low)
        reason = (
            f"{name} of {_label(better)} is lower than that of {_label(other)}{where}: {values[0]:.3g} against "
            f"{values[1]:.3g}, difference {item.difference if lower else -item.difference:+.3g} "
            f"[{ends[0]:+.3g}, {ends[1]:+.3g}]"
        )
        return bool(lower), reason
    return None


def _label(version: Splits) -> str:
    return next(iter(version.values())).label
