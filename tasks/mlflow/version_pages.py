"""The description of a model version on its page in the registry: its evaluations in words, with links."""

from __future__ import annotations

import re

from congruence.tasks.mlflow.pages import KEY, list_page, run_page
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.verdict import verdict

_HEADING = "**Evaluations by congruence**"


def described(text: str | None, evaluation: Evaluation, experiment: str, run_id: str, *, report: bool = True) -> str:
    """Returns ``text`` with a line for this evaluation, in place of an earlier one's on the same split.

    The lines stand under a heading of ours; what people wrote stays. ``experiment`` is the id of its run's; ``report``
    says whether the run holds one.
    """
    before, line = (text or "").rstrip(), _entry(evaluation, experiment, run_id, report)
    earlier = re.compile(rf"^- \*\*{re.escape(evaluation.split.name)}\*\*: .*$", re.MULTILINE)
    if _HEADING not in before:
        return f"{before}\n\n{_HEADING}\n\n{line}".lstrip()
    written, _, ours = before.partition(_HEADING)
    if earlier.search(ours):
        return written + _HEADING + earlier.sub(lambda _: line, ours, count=1)
    return f"{written}{_HEADING}\n\n{line}\n{ours.lstrip()}".rstrip()


def _entry(evaluation: Evaluation, experiment: str, run_id: str, report: bool) -> str:
    words = verdict(evaluation.metrics)
    if evaluation.wrong is not None:
        words += ". " + " ".join(evaluation.wrong.sentences)
    pages = {"Report": run_page(experiment, run_id, "artifacts/report.html")} if report else {}
    pages |= {"Run": run_page(experiment, run_id), "All versions on this split": list_page(experiment, KEY)}
    links = " | ".join(f"[{name}]({page})" for name, page in pages.items())
    said = mask_text(" ".join(words.split())).rstrip(".")
    return f"- **{evaluation.split.name}**: {said}. {links}"
