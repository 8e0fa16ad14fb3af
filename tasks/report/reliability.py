"""What `congruence score` writes: all scores as Parquet, a page, its pictures, and a summary that programs can read."""

from __future__ import annotations

import json
from pathlib import Path

from congruence.kernels.plots import inputs_histogram
from congruence.kernels.plots.style import figure_of
from congruence.tasks.plots import png, rejection_panels
from congruence.tasks.report.rendering import inline_png, records, render
from congruence.tasks.scores.reliability import LOSSES, Reliability

SCORES_FILE, REPORT_FILE, SUMMARY_FILE = "scores.parquet", "report.html", "summary.json"
_ROWS = 15
_SHOWN = ("key", "cce", "cce_noise_floor", "cce_p_value", "mean", "std", "target", "absolute_error")


def write_reliability(found: Reliability, folder: Path) -> list[Path]:
    """Write scores, report, pictures and summary into ``folder``, in place of an earlier call's; gives their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rejection.png").unlink(missing_ok=True)  # an earlier call may have had labels
    scores = found.valid_scores
    title = f"{found.model.label} on {found.inputs.rows:,} new inputs"
    pictures = {"inputs": png(figure_of(inputs_histogram(scores, found.threshold, title=title)))}
    captions = {"inputs": "Inputs whose CCE is that of a true version are as reliable as the reference split can tell."}
    if found.curves:
        pictures["rejection"] = png(rejection_panels(found.curves, f"CCE of {found.model.label}"))
        captions["rejection"] = "Mean loss of the inputs that stay, withholding those of highest CCE or at random."
    for name, picture in pictures.items():
        (folder / f"{name}.png").write_bytes(picture)
    shown = [name for name in _SHOWN if name in scores]
    ordered = scores.sort_values("cce", ascending=False, kind="stable")[shown]
    page = render(
        "reliability.html",
        title=title,
        inputs=found.inputs,
        reference=found.reference,
        protocol=found.protocol,
        threshold=found.threshold,
        withheld=found.withheld,
        figures=[(name, inline_png(picture), captions[name]) for name, picture in pictures.items()],
        worst=records(ordered.head(_ROWS)),
        best=records(ordered.tail(_ROWS).iloc[::-1]),
    )
    (folder / REPORT_FILE).write_text(page)
    (folder / SUMMARY_FILE).write_text(json.dumps(summary(found), indent=1))
    found.scores.to_parquet(folder / SCORES_FILE, index=False)
    return [folder / name for name in (REPORT_FILE, SUMMARY_FILE, SCORES_FILE, *(f"{name}.png" for name in pictures))]


def headlines(found: Reliability) -> dict[str, float]:
    """The headline numbers. Where the inputs have targets, each loss over all of them and over those that stay."""
    scores = found.valid_scores
    values = {
        "cce_mean": float(scores["cce"].mean()),
        "cce_noise_floor": float(scores["cce_noise_floor"].mean()),
        "withheld_share": found.withheld / max(1, found.inputs.valid_rows),
    }
    if found.threshold is not None:
        values["threshold"] = found.threshold
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
    return {
        "model": found.model.uri,
        "reference": {"name": found.reference.name, "digest": found.reference.digest},
        "inputs": {"rows": found.inputs.rows, "valid": found.inputs.valid_rows, "digest": found.inputs.digest},
        "protocol": {"name": found.protocol.name, "digest": found.protocol.digest},
        "threshold": found.threshold,
        "withheld": found.withheld,
        "rejection_gain": {name: curve.gain for name, curve in found.curves.items()},
        **headlines(found),
    }
