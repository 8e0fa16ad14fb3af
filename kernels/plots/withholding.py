"""What is gained by withholding the points of highest CCE, beside withholding at random."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from congruence.kernels.errors import InvalidInputError
from congruence.kernels.plots.style import BLUE, MUTED, dress, dressed, figure_or_new, legend
from congruence.kernels.rejection import RejectionCurve


def rejection_curves(
    curves: Mapping[str, RejectionCurve], *, criterion: str = "CCE", figure: Figure | None = None
) -> Figure:
    """One ``rejection_panel`` a curve, side by side.

    Args:
        curves: by what each loss is called, such as "mean CRPS".
        criterion: what the points are withheld by, for the title.
        figure: to draw on; by default a new one.

    Raises:
        InvalidInputError: there are none.
    """
    if not curves:
        raise InvalidInputError("curves: there are none; give a rejection_curve(cce, loss) by the name of its loss")
    figure = figure_or_new(figure, 3.4 * len(curves), 3.4)
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    for axes, (loss, curve) in zip(panels, curves.items(), strict=True):
        _draw(axes, curve, loss, "")
    legend(panels[0])
    figure.suptitle(f"Withholding by {criterion}", x=0.01, ha="left", fontsize=11, fontweight="bold")
    return figure


def rejection_panel(
    curve: RejectionCurve, loss: str = "mean loss", *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Mean loss of the kept points against the share withheld, highest CCE first, and under random rejection.

    Args:
        curve: from ``rejection_curve(criterion, loss)``.
        loss: what the loss is called.
        title: of the picture.
        axes: to draw on; by default those of a new figure.
    """
    axes = dressed(axes, "", "", "", width=3.4, height=3.4)
    _draw(axes, curve, loss, title)
    legend(axes)
    return axes


def _draw(axes: Axes, curve: RejectionCurve, loss: str, title: str) -> None:
    dress(axes, title, "share of points withheld", f"{loss} of the rest")
    axes.fill_between(curve.withheld, curve.random_low, curve.random_high, color=MUTED, alpha=0.2, linewidth=0)
    axes.axhline(curve.random_loss, color=MUTED, linewidth=1.2, linestyle="--", label="at random (95 % band)")
    axes.plot(curve.withheld, curve.kept_loss, color=BLUE, linewidth=2, label="highest CCE first")
    axes.set_xlim(0, 1)
    middle = curve.withheld <= 0.95  # the last few rows are noise and would set the scale
    low = min(float(curve.kept_loss[middle].min()), float(curve.random_low[middle].min()))
    high = max(float(curve.kept_loss[middle].max()), float(curve.random_high[middle].max()))
    margin = 0.05 * (high - low or 1.0)
    axes.set_ylim(low - margin, high + margin)
