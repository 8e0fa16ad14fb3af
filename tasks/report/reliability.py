"""What `congruence score` writes: all scores as Parquet, a page, its pictures, and a summary that programs can read."""

from __future__ import annotations

import json
from pathlib import Path

from congruence.tasks.plots import png, rejection_panels
from congruence.tasks.plots.inputs import inputs_figure
from congruence.tasks.reliability import Reliability
from congruence.tasks.report.rendering import inline_png, records, render

SCORES_FILE, REPORT_FILE, SUMMARY_FILE = "scores.parquet", "report.html", "summary.json"
_ROWS = 15
_SHOWN = ("key", "cce", "cce_noise_floor", "cce_p_value", "mean", "std", "target", "absolute_error")


def write_reliability(found: Reliability, folder: Path) -> None:
    """Write scores, report, pictures and summary into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    scores = found.valid_scores
    title = f"{found.model.label} on {found.inputs.rows:,} new inputs"
    cce, floor = scores["cce"].to_numpy(), scores["cce_noise_floor"].to_numpy()
    pictures = {"inputs": png(inputs_figure(cce, floor, found.threshold, title))}
    captions = {"inputs": "Inputs whose CCE is at the noise floor are as reliable as this reference split can tell."}
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


def summary(found: Reliability) -> dict[str, object]:
    """The headline numbers as plain values."""
    scores = found.valid_scores
    return {
        "model": found.model.uri,
        "reference": {"name": found.reference.name, "digest": found.reference.digest},
        "inputs": {"rows": found.inputs.rows, "valid": found.inputs.valid_rows, "digest": found.inputs.digest},
        "protocol": {"name": found.protocol.name, "digest": found.protocol.digest},
        "cce_mean": float(scores["cce"].mean()),
        "cce_noise_floor": float(scores["cce_noise_floor"].mean()),
        "threshold": found.threshold,
        "withheld": found.withheld,
        "rejection_gain": {name: curve.gain for name, curve in found.curves.items()},
    }
