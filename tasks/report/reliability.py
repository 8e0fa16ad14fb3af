"""What `congruence score` writes: all scores as Parquet and CSV, a page, its pictures, and a summary for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from congruence.kernels.trust.judgement import RejectionCurve
from congruence.tasks.plots.comparison import SHOWN_SHARE, risk_coverage
from congruence.tasks.plots.evaluation import rejection_panels
from congruence.tasks.plots.style import png
from congruence.tasks.report.rendering import as_json, records, render, rounded
from congruence.tasks.scores.metrics.registry import column_labels
from congruence.tasks.scores.reliability import LOSSES, TABLE, Reliability
from congruence.tasks.sentences.inputs import withholding_sentence

SCORES_FILE, CSV_FILE, REPORT_FILE, SUMMARY_FILE = "scores.parquet", "scores.csv", "report.html", "summary.json"
SCRIPTS = ("page", "tables", "charts", "trust")
_ROWS = 1000
_SHOWN = ("support_p_value", "effective_rows", "cce", "cce_expected", "cce_p_value", "mean", "std", "target")
_LABELS = column_labels() | {
    "support_p_value": "support p",
    "effective_rows": "effective rows",
    "cce_expected": "CCE if true",
    "cce_p_value": "CCE p",
}


def write_reliability(found: Reliability, folder: Path) -> list[Path]:
    """Write scores, report, pictures and summary into ``folder``, in place of an earlier call's; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("rejection", "risk-coverage"):
        (folder / f"{name}.png").unlink(missing_ok=True)  # an earlier call may have had labels
    pictures = {}
    if found.judgement.curves:
        pictures["risk-coverage"] = png(risk_coverage(found.judgement.curves))
    if found.curves:
        pictures["rejection"] = png(rejection_panels(found.curves, f"CCE of {found.model.label}"))
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture)
    (folder / REPORT_FILE).write_text(reliability_page(found))
    (folder / SUMMARY_FILE).write_text(json.dumps(summary(found), indent=1))
    found.scores.to_parquet(folder / SCORES_FILE, index=False)
    found.scores[list(TABLE)].to_csv(folder / CSV_FILE, index=False)
    written = (REPORT_FILE, SUMMARY_FILE, SCORES_FILE, CSV_FILE, *(f"{name}.png" for name in pictures))
    return [folder / name for name in written]


def reliability_page(found: Reliability) -> str:
    """A self-contained HTML page: whether withholding helps, by how much, and the inputs that are withheld."""
    withheld = found.withheld_scores
    shown = [name for name in _SHOWN if name in withheld]
    curves = {
        "labelled": [_panel(loss, by_criterion) for loss, by_criterion in found.judgement.curves.items()],
        "inputs": [_panel(_LABELS[name], {"highest CCE": curve}) for name, curve in found.curves.items()],
    }
    return render(
        "reliability.html",
        title=f"{found.model.label} on {found.inputs.rows:,} new inputs",
        inputs=found.inputs,
        reference=found.reference,
        protocol=found.protocol,
        judgement=withholding_sentence(found.judgement),
        notes=_notes(found),
        judged=found.judgement.rows,
        rule=str(found.rule),
        withheld=found.withheld,
        unusual=found.unusual,
        left_out=found.inputs.rows - found.inputs.valid_rows,
        has_labelled=bool(curves["labelled"]),
        has_inputs=bool(curves["inputs"]),
        columns=shown,
        labels=_LABELS,
        rows=records(withheld.head(_ROWS)[["key", *shown, "reason"]]),
        more=max(0, len(withheld) - _ROWS),
        table=SCORES_FILE,
        json=as_json(curves),
        scripts=SCRIPTS,
    )


def _notes(found: Reliability) -> list[str]:
    """What could not be drawn of the inputs, and why."""
    if "nll" not in found.scores:
        return []
    impossible = int(np.isinf(found.valid_scores["nll"].to_numpy(float)).sum())
    some = f"{impossible:,} of the {found.inputs.valid_rows:,} targets of the inputs"
    are = "is" if impossible == 1 else "are"
    return [f"No curve of NLL: {some} {are} impossible under the version."] if impossible else []


def _panel(loss: str, curves: Mapping[str, RejectionCurve]) -> dict[str, Any]:
    """The curves of one loss, by what is withheld first, as the page's script reads them."""
    first = next(iter(curves.values()))
    drawn = first.withheld <= SHOWN_SHARE
    return {
        "loss": loss,
        "share": rounded(first.withheld[drawn]),
        "random": first.random_loss,
        "low": rounded(first.random_low[drawn]),
        "high": rounded(first.random_high[drawn]),
        "lines": [{"name": name, "kept": rounded(curve.kept_loss[drawn])} for name, curve in curves.items()],
    }


def headlines(found: Reliability) -> dict[str, float]:
    """The headline numbers. Where the inputs have targets, each loss over all of them and over those that stay."""
    scores, judged = found.valid_scores, max(1, found.inputs.valid_rows)
    values = {
        "unusual_share": found.unusual / judged,
        "withheld_share": found.withheld / judged,
        "withholding_helps": float(found.judgement.helps),
    }
    if scores["cce"].notna().any():
        values |= {"cce_mean": float(scores["cce"].mean()), "cce_expected": float(scores["cce_expected"].mean())}
    for name, metric in LOSSES.items():
        if name in found.curves:
            values[metric] = float(scores[name].mean())
            values[f"{metric}_rejection_gain"] = found.curves[name].gain
            kept = scores.loc[~scores["withhold"].astype(bool), name]
            if len(kept):
                values[f"{metric}_kept"] = float(kept.mean())
    return values


def summary(found: Reliability) -> dict[str, object]:
    """What was scored, and the headline numbers, as plain values."""
    judgement = found.judgement
    return {
        "model": found.model.uri,
        "reference": {"name": found.reference.name, "digest": found.reference.digest},
        "inputs": {"rows": found.inputs.rows, "valid": found.inputs.valid_rows, "digest": found.inputs.digest},
        "protocol": {"name": found.protocol.name, "digest": found.protocol.digest},
        "rule": str(found.rule),
        "withheld": found.withheld,
        "unusual": found.unusual,
        "judgement": {
            "sentence": withholding_sentence(judgement),
            "helps": judgement.helps,
            "rows": judgement.rows,
            "withheld": judgement.withheld,
            "losses": {name: vars(loss) for name, loss in judgement.losses.items()},
        },
        "rejection_gain": {name: curve.gain for name, curve in found.curves.items()},
        **headlines(found),
    }
