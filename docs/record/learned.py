"""What the record says in sentences: each with its numbers and, where tables might have been others, an interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from judged import SOME_ROWS, TRUTH

Tables = list[dict[str, Any]]
NO_FAULT, AFTER, WRONG, NOT_JUDGED = "no fault", "after recalibration", "wrong", "not judged"
_RESAMPLES = 2000
_NEAR = 0.02
_FAULTS = {
    "a spread that is too small": ("spread too small",),
    "a spread that is too large": ("spread too large",),
    "a mean that is off": ("too high", "too low", "above the predictions", "below the predictions"),
    "the mass of a single value": ("are exactly",),
    "intervals or quantiles that hold another share": ("interval holds", "quantile"),
    "the shape of counts": ("distributed otherwise", "widely spread"),
    "skewness": ("skewed",),
    "tails": ("tails",),
    "targets far out": ("targets where less than",),
}


def state(row: dict[str, Any]) -> str:
    """Whether a kind of model is right on a table, or is after its recalibration."""
    verdict = str(row.get("verdict", ""))
    if verdict.startswith("no fault"):
        return NO_FAULT
    if not verdict.startswith("wrong"):
        return NOT_JUDGED
    after = row.get("recalibrated") or {}
    return AFTER if str(after.get("verdict", "")).startswith("no fault") else WRONG


def learned(tables: Tables) -> list[str]:
    """Returns the sentences, of those that the tables can say."""
    said = (_honest, _mended, _faults, _best, _on_average, _gain, _rows, _kinds, _orders, _truth)
    return [sentence for each in said if (sentence := each(tables)) is not None]


def rows_of(tables: Tables) -> list[dict[str, Any]]:
    """The kinds of models on all tables, but for the truth and for what failed."""
    return [row for table in tables for row in table["models"] if row["model"] != TRUTH and "metrics" in row]


def _honest(tables: Tables) -> str:
    rows = rows_of(tables)
    count = sum(state(row) == NO_FAULT for row in rows)
    share = _interval(tables, lambda some: np.mean([state(row) == NO_FAULT for row in rows_of(some)]))
    counted = f"{count} are" if count > 1 else "one is" if count else "not one is"
    return f"Of {len(rows)} fitted models, {counted} without a fault in 2,000 rows{share}."


def _mended(tables: Tables) -> str | None:
    def mended(some: Tables) -> float:
        states = [state(row) for row in rows_of(some)]
        return float(np.mean([each == AFTER for each in states if each in (AFTER, WRONG)]))

    states = Counter(state(row) for row in rows_of(tables))
    wrong = states[AFTER] + states[WRONG]
    if not wrong:
        return None
    return (
        f"Of the {wrong} that are wrong a recalibration on 1,000 rows leaves {states[AFTER]} without a fault"
        f"{_interval(tables, mended)}; it corrects levels and spreads, and adds nothing that a model does not know."
    )


def _faults(tables: Tables) -> str | None:
    faults = [fault_of(row) for row in rows_of(tables) if str(row["verdict"]).startswith("wrong")]
    common = Counter(fault for fault in faults if fault).most_common(3)
    if not common:
        return None
    named = ", ".join(f"{fault} ({count})" for fault, count in common)
    return f"The largest fault of the {len(faults)} wrong ones is most often {named}."


def fault_of(row: dict[str, Any]) -> str:
    """The kind of a version's largest fault."""
    verdict = str(row["verdict"])
    return next((fault for fault, words in _FAULTS.items() if any(word in verdict for word in words)), "")


def _best(tables: Tables) -> str:
    best = [min(rows_of([table]), key=lambda row: float(row["metrics"]["crps_mean"])) for table in tables]
    count = sum(state(row) == NO_FAULT for row in best)
    return (
        f"The best CRPS of a table belongs to a model without a fault on {count} of {len(tables)} tables: a good score "
        "says little about honesty."
    )


def _on_average(tables: Tables) -> str | None:
    wrong = [row for row in rows_of(tables) if str(row["verdict"]).startswith("wrong")]
    covered = [row for row in wrong if abs(float(row["metrics"].get("coverage_90", np.nan)) - 0.9) <= _NEAR]
    if not wrong:
        return None
    return (
        f"Of the {len(wrong)} wrong ones {len(covered)} have 90 % intervals that hold 88 to 92 % of all targets: right "
        "on average is not right given the input."
    )


def _gain(tables: Tables) -> str | None:
    def ratios(some: Tables) -> list[float]:
        kept = [row for row in rows_of(some) if "metrics" in (row.get("recalibrated") or {})]
        return [row["recalibrated"]["metrics"]["crps_mean"] / row["metrics"]["crps_mean"] - 1.0 for row in kept]

    found = ratios(tables)
    if not found:
        return None
    worse = sum(ratio > 0.01 for ratio in found)
    middle = _interval(tables, lambda some: np.median(ratios(some)))
    return (
        f"Recalibration changes the CRPS by a median of {100 * np.median(found):.1f} %{middle}; of {len(found)} "
        f"recalibrated models {worse} lose more than 1 %."
    )


def _rows(tables: Tables) -> str | None:
    wrong = [row for row in rows_of(tables) if str(row["verdict"]).startswith("wrong") and "p_by_rows" in row]
    if not wrong:
        return None
    found = [np.mean([row["p_by_rows"].get(str(rows), 1.0) < 0.05 for row in wrong]) for rows in SOME_ROWS]
    parts = ", ".join(f"{100 * share:.0f} % at {rows:,}" for share, rows in zip(found, SOME_ROWS, strict=True))
    return f"Of what is wrong at 2,000 rows the test of calibration given the input alone finds {parts} rows."


def _kinds(tables: Tables) -> str:
    counts: dict[str, list[bool]] = {}
    for row in rows_of(tables):
        counts.setdefault(row["model"], []).append(state(row) in (NO_FAULT, AFTER))
    ordered = sorted(counts.items(), key=lambda each: -np.mean(each[1]))
    some = ", ".join(_of(*each) for each in ordered if any(each[1]))
    none = "" if all(any(right) for right in counts.values()) else "; all other kinds on no table"
    return f"Without a fault, as fitted or recalibrated, are {some or 'no kinds'}{none if some else ''}."


def _of(kind: str, right: Sequence[bool]) -> str:
    return f"{kind} ({sum(right)} of {len(right)})"


def _orders(tables: Tables) -> str:
    differ = 0
    for table in tables:
        rows = [row for row in rows_of([table]) if "nll_mean" in row["metrics"]]
        best = [
            min(rows, key=lambda row, name=name: row["metrics"][name])["model"] for name in ("crps_mean", "nll_mean")
        ]
        differ += best[0] != best[1]
    return f"CRPS and NLL name different models as the best on {differ} of {len(tables)} tables."


def _truth(tables: Tables) -> str | None:
    truths = [row for table in tables for row in table["models"] if row["model"] == TRUTH]
    right = sum(state(row) == NO_FAULT for row in truths)
    if not truths:
        return None
    return (
        f"On the {len(truths)} tables whose truth is known the truth itself is without a fault on {right}; a false "
        "alarm is allowed on 5 % of them."
    )


def _interval(tables: Tables, statistic: Callable[[Tables], Any]) -> str:
    """The 95 % interval of a share or change, had other tables been drawn: a bootstrap of whole tables."""
    rng = np.random.default_rng(0)
    drawn = [statistic([tables[k] for k in rng.integers(len(tables), size=len(tables))]) for _ in range(_RESAMPLES)]
    low, high = np.nanquantile(np.asarray(drawn, dtype=float), [0.025, 0.975])
    return f" ({100 * low:.0f} to {100 * high:.0f} % had the tables been others)" if high > low else ""
