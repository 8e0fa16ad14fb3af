"""The papers' figures, drawn from arrays in the look of the other plots of these pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from experiment import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from congruence.kernels import CongruenceResult, Distribution, RejectionCurve, reliability_curve
from congruence.tasks.plots.style import BLUE, CYCLE, DPI, MUTED, ORANGE, SEQUENTIAL, dress, legend

_BAND = (0.025, 0.975)
_TICKS = 6
_MARKED = 20  # points of a line, up to which each is marked


def grid(rows: int, columns: int, *, width: float = 2.7, height: float = 2.4) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure of rows by columns of axes, each of ``width`` by ``height`` inches."""
    figure = Figure(figsize=(width * columns, height * rows), dpi=DPI, layout="constrained", facecolor="white")
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False)]


def samples_and_values(
    columns: Mapping[str, tuple[Array, Array]],
    truth: tuple[Array, Array],
    at: Array,
    values: Mapping[str, Array],
    means: Mapping[str, float],
) -> Figure:
    """Above samples of two distributions, below the distance between them along x: figures 2, 3 of the MCMD paper."""
    figure, (above, below) = grid(2, len(columns))
    highest = 1.3 * max(float(v.max()) for v in values.values())
    for top, bottom, (name, (x, y)) in zip(above, below, columns.items(), strict=True):
        dress(top, name, "", "y")
        top.scatter(*truth, s=3, color=BLUE, alpha=0.35, linewidth=0)
        top.scatter(x, y, s=3, color=ORANGE, alpha=0.45, linewidth=0)
        dress(bottom, "", "x", "MCMD")
        bottom.plot(at, values[name], color=BLUE, linewidth=1.8)
        bottom.text(0.03, 0.94, f"mean {means[name]:.3f}", transform=bottom.transAxes, va="top", fontsize=9)
        bottom.set_ylim(0.0, highest)
    return figure


def bands_and_errors(
    x: Array, y: Array, versions: Mapping[str, Distribution], errors: Mapping[str, Array], said: Mapping[str, str]
) -> Figure:
    """Above each model's mean and central 95 % interval with the targets, below its CCE: figure 2 of the CCE paper."""
    order = np.argsort(x)
    figure, (above, below) = grid(2, len(versions), width=3.0, height=2.7)
    highest = 1.05 * max(float(error.max()) for error in errors.values())
    for top, bottom, (name, distribution) in zip(above, below, versions.items(), strict=True):
        dress(top, name, "", "y")
        _fit(top, x, y, distribution)
        dress(bottom, said[name], "x", "CCE")
        bottom.plot(x[order], errors[name][order], color=BLUE, linewidth=1.8)
        bottom.set_ylim(0.0, highest)
    return figure


def _fit(axes: Axes, x: Array, y: Array, distribution: Distribution) -> None:
    """Targets with the mean and the central 95 % of their distribution along x."""
    order = np.argsort(x)
    low, high = (distribution.quantile(level)[order] for level in _BAND)
    axes.fill_between(x[order], low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.scatter(x, y, s=4, color=ORANGE, alpha=0.6, linewidth=0)
    axes.plot(x[order], distribution.mean()[order], color=BLUE, linewidth=1.6)


def calibration_columns(
    fits: Mapping[str, tuple[Array, Distribution]],
    pits: Mapping[str, Array],
    x: Array,
    errors: Mapping[str, CongruenceResult],
    said: Mapping[str, tuple[str, str]],
) -> Figure:
    """Targets with mean and central 95 %, PIT histogram, reliability diagram and CCE of each model in a column.

    Figure 13 of the CCE paper; dashed below is the noise floor, what a true model is expected to have.
    """
    figure, rows = grid(4, len(pits), width=2.7, height=2.3)
    order = np.argsort(x)
    highest = 1.3 * max(float(error.values.max()) for error in errors.values())
    for column, (name, pit) in enumerate(pits.items()):
        fit, histogram, diagram, curve = (row[column] for row in rows)
        titles = said[name]
        dress(fit, name, "x", "y")
        _fit(fit, x, *fits[name])
        dress(histogram, "PIT", "PIT", "density")
        histogram.hist(pit, bins=20, range=(0.0, 1.0), density=True, color=BLUE, alpha=0.75)
        histogram.axhline(1.0, color=MUTED, linestyle="--", linewidth=1.0)
        dress(diagram, titles[0], "level", "observed")
        diagram.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1.0)
        diagram.plot(*reliability_curve(pit), color=BLUE, linewidth=1.8)
        dress(curve, titles[1], "x", "CCE")
        curve.plot(x[order], errors[name].noise_floor_values[order], color=MUTED, linestyle="--", linewidth=1.0)
        curve.plot(x[order], errors[name].values[order], color=BLUE, linewidth=1.8)
        curve.set_ylim(0.0, highest)
    return figure


def curves(
    panels: Sequence[tuple[str, str, str, Mapping[str, tuple[Array, Array]]]],
    *,
    columns: int | None = None,
    errors: Mapping[str, Array] | None = None,
    level: float | None = None,
    log: str = "",
) -> Figure:
    """Panels (title, x label, y label, {name: (x, y)}) of lines, with error bars by name, and a level to compare with.

    ``log`` names the axes in logarithms: "x", "y" or "xy".
    """
    across = columns or len(panels)
    figure, rows = grid(-(-len(panels) // across), across, width=3.4 if across > 1 else 5.2, height=2.9)
    flat = [axes for row in rows for axes in row]
    shared = len(panels) > 1 and all(list(lines) == list(panels[0][3]) for *_, lines in panels)
    for axes, (title, x_label, y_label, lines) in zip(flat, panels, strict=False):
        dress(axes, title, x_label, y_label)
        for color, (name, (x, y)) in zip(CYCLE, lines.items(), strict=False):
            bars = None if errors is None else errors.get(name)
            marker = "o" if len(x) <= _MARKED else None
            axes.errorbar(x, y, yerr=bars, color=color, marker=marker, markersize=3.5, linewidth=1.6, label=name)
        if not shared:
            legend(axes)
        if level is not None:
            axes.axhline(level, color=MUTED, linestyle="--", linewidth=1.0)
        if "x" in log:
            _log_ticks(axes, np.unique(np.concatenate([x for x, _ in lines.values()])))
        if "y" in log:
            axes.set_yscale("log")
    for axes in flat[len(panels) :]:
        axes.set_axis_off()
    if shared:  # one legend for all panels, where it hides no line
        figure.legend(
            *flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(panels[0][3]), frameon=False
        )
    return figure


def _log_ticks(axes: Axes, places: Array) -> None:
    """A logarithmic axis with a tick at each place, where they are few."""
    axes.set_xscale("log")
    if len(places) <= _TICKS:
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.minorticks_off()


def rejection_pictures(curves_by_loss: Mapping[str, RejectionCurve]) -> Figure:
    """Mean loss of the kept rows against the share withheld, by CCE and at random: figure 7 of the CCE paper."""
    figure, (panels,) = grid(1, len(curves_by_loss), width=4.2, height=3.2)
    for axes, (loss, curve) in zip(panels, curves_by_loss.items(), strict=True):
        dress(axes, "", "share withheld", f"{loss} of the rest")
        axes.fill_between(curve.withheld, curve.random_low, curve.random_high, color=MUTED, alpha=0.2, linewidth=0)
        axes.axhline(curve.random_loss, color=MUTED, linestyle="--", linewidth=1.2, label="at random (95 %)")
        axes.plot(curve.withheld, curve.kept_loss, color=BLUE, linewidth=2.0, label="largest CCE first")
        legend(axes)
    return figure


def maps(places: Array, layers: Mapping[str, Array]) -> Figure:
    """Points on a plane, coloured by one quantity in each panel: figure 14 of the CCE paper."""
    figure, (panels,) = grid(1, len(layers), width=4.0, height=3.4)
    for axes, (name, values) in zip(panels, layers.items(), strict=True):
        dress(axes, name, "", "")
        low, high = np.quantile(values, [0.01, 0.99])
        shown = axes.scatter(
            places[:, 0], places[:, 1], c=values, s=7, cmap=SEQUENTIAL, vmin=low, vmax=high, linewidth=0
        )
        axes.set_xticks([])
        axes.set_yticks([])
        figure.colorbar(shown, ax=axes, shrink=0.85)
    return figure


def fit_and_quantiles(x: Array, y: Array, line: Array, spread: float, pit: Array) -> Figure:
    """A least squares fit with its interval, and the distribution function of its PIT values (figures 1, 2 of SKCE)."""
    figure, ((left, right),) = grid(1, 2, width=4.2, height=3.4)
    order = np.argsort(x)
    dress(left, "Training rows and the predicted 95 % interval", "x", "y")
    at, center = x[order], line[order]
    left.fill_between(at, center - 1.96 * spread, center + 1.96 * spread, color=BLUE, alpha=0.2, linewidth=0)
    left.plot(at, center, color=BLUE, linewidth=1.6)
    left.scatter(x, y, s=8, color=ORANGE, linewidth=0)
    dress(right, "Quantile levels of the validation rows", "quantile level", "cumulative probability")
    right.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1.0, label="ideal")
    right.ecdf(pit, color=BLUE, linewidth=1.8, label="data")
    legend(right)
    return figure


def example_images(rows: Mapping[str, Sequence[tuple[str, Image.Image]]]) -> Figure:
    """Rows of images with what is said of each: figures 4 and 5 of the CCE paper."""
    figure, grids = grid(len(rows), max(len(row) for row in rows.values()), width=1.5, height=1.75)
    for axes_row, (name, row) in zip(grids, rows.items(), strict=True):
        for axes, (said, image) in zip(axes_row, row, strict=True):
            axes.imshow(np.asarray(image), cmap="gray")
            axes.set_title(said, fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
        axes_row[0].set_ylabel(name, fontsize=9)
    return figure


def trap(x: Array, y: Array, drawn: Array, marginal: Distribution, pit: Array, error: Array, ece: float) -> Figure:
    """The four panels of figure 1 of the CCE paper: joint samples, marginals, reliability, CCE along x."""
    figure, (panels,) = grid(1, 4, width=2.9, height=2.7)
    joint, histogram, diagram, curve = panels
    dress(joint, "Samples of both", "x", "y")
    joint.scatter(x, y, s=3, color=BLUE, alpha=0.5, linewidth=0, label="data")
    joint.scatter(x, drawn, s=3, color=ORANGE, alpha=0.5, linewidth=0, label="model")
    legend(joint, markerscale=3)
    dress(histogram, "Marginal of the targets", "y", "density")
    at = np.linspace(y.min(), y.max(), 200)
    histogram.hist(y, bins=30, density=True, color=BLUE, alpha=0.5)
    histogram.plot(at, np.exp(marginal[:1].log_prob(at[None, :]))[0], color=ORANGE, linewidth=1.8)
    dress(diagram, f"ECE {ece:.4f}", "level", "observed")
    diagram.plot([0, 1], [0, 1], color=MUTED, linestyle="--", linewidth=1.0)
    diagram.plot(*reliability_curve(pit), color=BLUE, linewidth=1.8)
    order = np.argsort(x)
    dress(curve, f"mean CCE {error.mean():.3f}", "x", "CCE")
    curve.plot(x[order], error[order], color=BLUE, linewidth=1.8)
    curve.set_ylim(0.0, None)
    return figure
