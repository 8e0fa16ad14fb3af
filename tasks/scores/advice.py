"""What to do with a version: use it, recalibrate it, change the model, or bring more rows; and what that gains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from congruence.kernels.verdict import NOT_JUDGED, Verdict
from congruence.tasks.scores.correction import CorrectionPreview, PreviewRow
from congruence.tasks.scores.evaluation import ROW_CORRELATION, MetricValue
from congruence.tasks.scores.verdict import significant

WORTH_IT = {"CRPS": 0.01, "NLL": 0.02}
"""What a correction must take off on held-out rows to be advised: of the CRPS a share, of the NLL in nats. A spread
that is wrong by a factor of 1.2 costs as much."""

NAME_WHAT_ROWS_SHARE = (
    "Rows are correlated. In the split, name the column that orders them (time:) or that holds those that belong "
    "together (groups:), and evaluate again: p-values and intervals then go by blocks of rows."
)

Kind = Literal["use", "recalibrate", "change the model", "bring more rows"]


@dataclass(frozen=True)
class Advice:
    """What to do: one of four kinds, and why, with what it gains."""

    kind: Kind
    reason: str

    @property
    def words(self) -> str:
        """The kind, as a heading has it."""
        return self.kind.capitalize()


def advise(
    verdict: Verdict, metrics: Mapping[str, MetricValue], preview: CorrectionPreview | None = None
) -> Advice | None:
    """What helps; None where nothing contradicts a version whose skill was not measured.

    "Use" is said of a version in which no fault was found and whose CRPS is below that of the distribution of all
    targets, beyond chance. "Recalibrate" is said where that gets a score of rows that it was not fitted on down by as
    much as ``WORTH_IT``, and by that better than ignoring the input.
    """
    if verdict.state == NOT_JUDGED:
        reason = NAME_WHAT_ROWS_SHARE if ROW_CORRELATION in metrics else f"No test was possible: {verdict.reason}."
        return Advice("bring more rows", reason)
    skill = metrics.get("crps_skill")
    if not verdict.is_wrong:
        return None if skill is None else _of_right(skill)
    if preview is not None and preview.improves and (gain := _gain(preview.table)):
        then = next((row.then for row in preview.table if row.name == "CRPS"), None)
        without = metrics.get("crps_uncertainty")
        if then is None or without is None or then < without.value:
            return Advice("recalibrate", f"Do not use it as it is. On rows that it was not fitted on, {gain}.")
        return Advice(
            "change the model",
            f"Recalibrated, its CRPS would be {significant(then)}: no better than ignoring the input "
            f"({significant(without.value)}).",
        )
    if skill is not None and (skill.value if skill.high is None else skill.high) <= 0.0:
        return Advice("change the model", "It scores no better than ignoring the input, and no correction helps.")
    tried = "" if preview is None else " On rows that it was not fitted on, no correction of its levels gains enough."
    return Advice("change the model", f"Do not use it as it is.{tried}")


def _of_right(skill: MetricValue) -> Advice:
    low, high = (skill.value if end is None else end for end in (skill.low, skill.high))
    if low > 0.0:
        return Advice("use", f"Its CRPS is {percent(skill.value)} below that of ignoring the input.")
    if high <= 0.0:
        return Advice("change the model", "It scores no better than ignoring the input.")
    return Advice("bring more rows", "Whether it scores better than ignoring the input, so few rows cannot show.")


def _gain(table: tuple[PreviewRow, ...]) -> str:
    """What a correction takes off, in words; "" where it is not worth it or another score gets worse."""
    rows = {row.name: row for row in table if row.name in WORTH_IT}
    if any(row.is_worse for row in rows.values()):
        return ""
    parts, is_worth_it = [], False
    if (crps := rows.get("CRPS")) is not None and crps.is_better:
        is_worth_it = crps.now - crps.then >= WORTH_IT["CRPS"] * crps.now
        share = percent(1.0 - crps.then / crps.now)
        parts.append(f"CRPS falls from {significant(crps.now)} to {significant(crps.then)} ({share})")
    if (nll := rows.get("NLL")) is not None and nll.is_better:
        is_worth_it |= nll.now - nll.then >= WORTH_IT["NLL"]
        parts.append(f"NLL falls from {significant(nll.now)} to {significant(nll.then)}")
    return " and ".join(parts) if is_worth_it else ""


def percent(share: float) -> str:
    """A share in whole percents, in tenths where these would say nothing."""
    return f"{100.0 * share:.{0 if abs(share) >= 0.02 else 1}f} %"
