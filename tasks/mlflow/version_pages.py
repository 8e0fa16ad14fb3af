"""The description of a model version on its page in the registry: its evaluations in words, with links.

Our part of the text stands between two marks, one entry for each split; what people wrote around it stays.
"""

from __future__ import annotations

import math
import re

from congruence.tasks.mlflow.links import list_page, run_page
from congruence.tasks.mlflow.views import KEY
from congruence.tasks.runtime.masking import mask_text
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.meanings import verdict

_BEGIN, _END = "**Evaluations by congruence**", "<!-- end of congruence -->"
_BLOCK = re.compile(rf"\n*{re.escape(_BEGIN)}\n(?P<entries>.*?)\n*{re.escape(_END)}", re.DOTALL)
_ENTRY = re.compile(r"^- \*\*(?P<split>.+?)\*\*: .*<!-- (?P<excess>\S+) -->$", re.MULTILINE)
_REPORT = "artifacts/report.html"


def described(text: str | None, evaluation: Evaluation, experiment: str, run_id: str, *, report: bool = True) -> str:
    """``text`` with the entry of this evaluation in place of an earlier one's on the same split.

    Entries stand in the order of the excess CCE, so that the split which the version fits best comes first.
    ``experiment`` is the id of its run's; ``report`` says whether the run holds one.
    """
    before = text or ""
    found = _BLOCK.search(before)
    entries: dict[str, tuple[float, str]] = {}
    for match in _ENTRY.finditer(found["entries"]) if found else ():
        entries[match["split"]] = (float(match["excess"]), match[0])
    entries[evaluation.split.name] = (_excess(evaluation), _entry(evaluation, experiment, run_id, report))
    lines = [line for _, line in sorted(entries.values())]
    block = "\n".join([_BEGIN, "", *lines, "", _END])
    if found is None:
        return f"{before.rstrip()}\n\n{block}".lstrip()
    return f"{before[: found.start()]}\n\n{block}{before[found.end() :]}".lstrip()


def _entry(evaluation: Evaluation, experiment: str, run_id: str, report: bool) -> str:
    words = verdict(evaluation.metrics)
    if evaluation.wrong is not None:
        words += ". " + " ".join(evaluation.wrong.sentences)
    pages = {"Report": run_page(experiment, run_id, _REPORT)} if report else {}
    pages |= {"Run": run_page(experiment, run_id), "All versions on this split": list_page(experiment, KEY)}
    links = " | ".join(f"[{name}]({page})" for name, page in pages.items())
    said = mask_text(" ".join(words.split())).rstrip(".")
    return f"- **{evaluation.split.name}**: {said}. {links} <!-- {_excess(evaluation):.6g} -->"


def _excess(evaluation: Evaluation) -> float:
    metric = evaluation.metrics.get("cce_excess")
    return math.inf if metric is None else metric.value
