"""What `congruence score` writes: all scores as Parquet and CSV, a page, its pictures, and a summary for programs."""

from __future__ import annotations

import json
from pathlib import Path

from congruence.tasks.plots import png, rejection_panels, risk_coverage
from congruence.tasks.report.rendering import inline_png, records, render
from congruence.tasks.scores.reliability import LOSSES, TABLE, Reliability

SCORES_FILE, CSV_FILE, REPORT_FILE, SUMMARY_FILE = "scores.parquet", "scores.csv", "report.html", "summary.json"
_ROWS = 200
_SHOWN = ("support_p_value", "effective_rows", "cce", "cce_expected", "cce_p_value", "mean", "std", "target")


def write_reliability(found: Reliability, folder: Path) -> list[Path]:
    """Write scores, report, pictures and summary into ``folder``, in place of an earlier call's; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("rejection", "risk-coverage"):
        (folder / f"{name}.png").unlink(missing_ok=True)  # an earlier call may have had labels
    title = f"{found.model.label} on {found.inputs.rows:,} new inputs"
    pictures, captions = {}, {}
    if found.judgement.curves:
        pictures["risk-coverage"] = png(risk_coverage(found.judgement.curves))
        captions["risk-coverage"] = (
            "Mean loss of the labelled rows that stay, each judged by rows that do not hold its target "
            f"({found.judgement.rows:,} rows of {found.reference.name}). A line below the band is better than chance."
        )
    if found.curves:
        pictures["rejection"] = png(rejection_panels(found.curves, f"CCE of {found.model.label}"))
        captions["rejection"] = "Mean loss of the new inputs that stay, withholding those of highest CCE or at random."
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture)
    withheld = found.withheld_scores
    shown = [name for name in _SHOWN if name in withheld]
    page = render(
        "reliability.html",
        title=title,
        inputs=found.inputs,
        reference=found.reference,
        protocol=found.protocol,
        judgement=str(found.judgement),
        rule=str(found.rule),
        withheld=found.withheld,
        unusual=found.unusual,
        left_out=found.inputs.rows - found.inputs.valid_rows,
        figures=[(name, inline_png(picture), captions[name]) for name, picture in pictures.items()],
        columns=shown,
        rows=records(withheld.head(_ROWS)[["key", *shown, "reason"]]),
        more=max(0, len(withheld) - _ROWS),
        table=SCORES_FILE,
    )
    (folder / REPORT_FILE).write_text(page)
    (folder / SUMMARY_FILE).write_text(json.dumps(summary(found), indent=1))
    found.scores.to_parquet(folder / SCORES_FILE, index=False)
    found.scores[list(TABLE)].to_csv(folder / CSV_FILE, index=False)
    written = (REPORT_FILE, SUMMARY_FILE, SCORES_FILE, CSV_FILE, *(f"{name}.png" for name in pictures))
    return [folder / name for name in written]


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
            "sentence": str(judgement),
            "helps": judgement.helps,
            "rows": judgement.rows,
            "withheld": judgement.withheld,
            "losses": {name: vars(loss) for name, loss in judgement.losses.items()},
        },
        "rejection_gain": {name: curve.gain for name, curve in found.curves.items()},
        **headlines(found),
    }
