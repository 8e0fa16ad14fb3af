"""Kinds of registered models on real tables: table and picture of the record ``tests/benchmarks/regressors.json``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from matplotlib.ticker import ScalarFormatter

from congruence.tasks.plots.style import dress, legend, new_figure, png

RECORD = Path(__file__).parents[1] / "tests" / "benchmarks" / "regressors.json"
PICTURE = "kinds-of-models.png"
_MARKERS = "osD^v"
_LEVEL = 0.05


@cache
def _tables() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(RECORD.read_text())["tables"]
    return found


def page() -> str:
    """For each model and table: its CRPS over the best one's, and p of calibration given the input."""
    tables = _tables()
    lines = ["| model | " + " | ".join(table["name"] for table in tables) + " |", "|---" * (len(tables) + 1) + "|"]
    for number, row in enumerate(tables[0]["models"]):
        cells = [_cell(table["models"][number], _best(table)) for table in tables]
        lines.append(f"| {row['model']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: dict[str, Any], best: float) -> str:
    p = "p < 0.001" if row["p"] < 1e-3 else f"p = {row['p']:.2g}"
    text = f"{row['crps'] / best:.2f}, {p}"
    return f"**{text}**" if row["p"] > _LEVEL else text


def _best(table: dict[str, Any]) -> float:
    return float(min(row["crps"] for row in table["models"]))


def write(folder: Path) -> str:
    """CRPS against the largest effect, a point a model and table; the name of the file in ``folder``."""
    figure = new_figure(7.5, 4.6)
    axes = figure.add_subplot()
    dress(axes, "CRPS and calibration given the input", "CRPS over the best of the table", "largest effect")
    for table, marker in zip(_tables(), _MARKERS, strict=True):
        ratios = [row["crps"] / _best(table) for row in table["models"]]
        effects = [max(0.01, *row["effects"].values()) for row in table["models"]]
        passed = [row["p"] > _LEVEL for row in table["models"]]
        (line,) = axes.plot(ratios, effects, marker, alpha=0.7, label=table["name"])
        right = [(x, y) for x, y, true in zip(ratios, effects, passed, strict=True) if true]
        if right:
            axes.plot(*zip(*right, strict=True), "o", markersize=13, fillstyle="none", color=line.get_color())
    axes.plot([], [], "o", markersize=11, fillstyle="none", color="gray", label="no fault found")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([1.0, 1.1, 1.2, 1.5, 2.0])
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(lambda *_: "")
    legend(axes, loc="lower right")
    (folder / PICTURE).write_bytes(png(figure))
    return PICTURE
