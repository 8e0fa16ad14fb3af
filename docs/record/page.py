"""The page of the record: who is honest where, before and after recalibration, with what is learned by kind."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from judged import TRUTH
from learned import AFTER, NO_FAULT, NOT_JUDGED, WRONG, learned, state

from congruence.tasks.plots.style import dress, new_figure, png

DOCS = Path(__file__).resolve().parents[1]
PAGE, PICTURE = DOCS / "record.md", DOCS / "record.png"
MARK = "<!-- what follows is written by: make record -->"
COLORS = {NO_FAULT: "#2a7f62", AFTER: "#8fc7a9", WRONG: "#d9764a", NOT_JUDGED: "#cccccc"}


def write_page(tables: list[dict[str, Any]]) -> None:
    """Write picture and page below what is written by hand."""
    by_hand = PAGE.read_text().split(MARK)[0] if PAGE.exists() else "# The record\n\n"
    _picture(tables)
    parts = [by_hand + MARK, "", "## What is learned", "", *(f"- {sentence}" for sentence in learned(tables)), ""]
    parts += _by_kind(tables)
    for table in tables:
        parts += _of_table(table)
    PAGE.write_text("\n".join(parts).rstrip() + "\n")


def _by_kind(tables: list[dict[str, Any]]) -> list[str]:
    rows: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for table in tables:
        for row in table["models"]:
            if row["model"] != TRUTH:
                rows.setdefault(row["model"], []).append((table, row))
    lines = [f"## By kind, on {len(tables)} tables", "", "![state of each kind on each table](record.png)", ""]
    columns = ("no fault", "after recalibration", "wrong", "distance beyond noise, median")
    lines += [f"| kind | {' | '.join(columns)} | CRPS over the best, median | after | seconds to fit |"]
    lines += ["|---|---:|---:|---:|---:|---:|---:|---:|"]
    for kind, found in rows.items():
        states = Counter(state(row) for _, row in found)
        ratios = [_crps(row) / _best(table) for table, row in found if "metrics" in row]
        after = [
            _crps(row.get("recalibrated", {}), _crps(row)) / _best(table) for table, row in found if "metrics" in row
        ]
        seconds = [row["fit_seconds"] for _, row in found if row["fit_seconds"] is not None]
        distances = [_distance(row["metrics"]) for _, row in found if "cce_mean" in row.get("metrics", {})]
        far = f"{np.median(distances):.3f}" if distances else ""
        counts = f"{states[NO_FAULT]} | {states[AFTER]} | {states[WRONG]} | {far}"
        middle = f"{np.median(ratios):.2f} | {np.median(after):.2f}" if ratios else " | "
        lines.append(
            f"| {kind} | {counts} | {middle} | {np.median(seconds):.1f} |"
            if seconds
            else f"| {kind} | {counts} | {middle} | |"
        )
    return [*lines, ""]


def _of_table(table: dict[str, Any]) -> list[str]:
    lines = [f"## {table['name'].replace('-', ' ').capitalize()}", "", f"{table['about']}.", ""]
    lines += ["| model | CRPS over the best | NLL | verdict and largest fault | recalibrated | CRPS then |"]
    lines += ["|---|---:|---:|---|---|---:|"]
    best = _best(table)
    for row in sorted(table["models"], key=lambda each: _crps(each, np.inf)):
        if "metrics" not in row:
            lines.append(f"| {row['model']} | | | {row['failed']} | | |")
            continue
        after = row.get("recalibrated") or {}
        said = after.get("verdict") or after.get("left") or ("could not be" if "failed" in after else "")
        then = f"{_crps(after) / best:.3f}" if "metrics" in after else ""
        nll = f"{row['metrics']['nll_mean']:.4g}" if "nll_mean" in row["metrics"] else ""
        fault = row["fault"] or row["verdict"]
        lines.append(f"| {row['model']} | {_crps(row) / best:.3f} | {nll} | {_cell(fault)} | {_cell(said)} | {then} |")
    return [*lines, ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _crps(row: dict[str, Any], otherwise: float = float("nan")) -> float:
    return float(row.get("metrics", {}).get("crps_mean", otherwise))


def _distance(metrics: dict[str, float]) -> float:
    """The root of the mean squared CCE beyond what noise alone would be."""
    return float(np.sqrt(max(metrics["cce_mean"] ** 2 - metrics["cce_expected"] ** 2, 0.0)))


def _best(table: dict[str, Any]) -> float:
    return min(_crps(row, np.inf) for row in table["models"] if row["model"] != TRUTH)


def _picture(tables: list[dict[str, Any]]) -> None:
    kinds = list(dict.fromkeys(row["model"] for table in tables for row in table["models"]))
    figure = new_figure(2.4 + 0.62 * len(tables), 1.6 + 0.3 * len(kinds))
    axes = figure.add_subplot()
    dress(axes, "What was found of each kind", "", "")
    for column, table in enumerate(tables):
        for row in table["models"]:
            color = COLORS[state(row)]
            axes.plot(column, len(kinds) - kinds.index(row["model"]), "s", markersize=11, color=color)
    axes.set_xticks(range(len(tables)), [table["name"] for table in tables], rotation=40, ha="right")
    axes.set_yticks(range(len(kinds), 0, -1), kinds)
    for name, color in COLORS.items():
        axes.plot([], [], "s", color=color, label=name)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    PICTURE.write_bytes(png(figure))
