"""The pictures of a report for people with arrays: Matplotlib axes in and out, one function a picture.

Each takes results of ``congruence.kernels``, or the tables that their ``to_frame()`` gives (a run's logged scores have
the same columns), draws on ``axes`` (or ``figure``, where a picture has several panels), or on a figure of its own, and
gives back what it drew on. ``axes.figure.savefig("picture.png")`` writes it. Nothing here touches pyplot.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.plots.along import congruence_along, predictions_along
    from congruence.kernels.plots.by_slice import cce_by_slice
    from congruence.kernels.plots.calibration import local_reliability, pit_histogram, reliability_diagram
    from congruence.kernels.plots.errors import congruence_histogram, inputs_histogram
    from congruence.kernels.plots.frequencies import rootogram
    from congruence.kernels.plots.images import extremes
    from congruence.kernels.plots.interpreted import pit_interpretation
    from congruence.kernels.plots.maps import embedding_map, fault_map, order_maps
    from congruence.kernels.plots.side_by_side import Measured, versions
    from congruence.kernels.plots.withholding import rejection_curves, rejection_panel
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "Measured",
    "cce_by_slice",
    "congruence_along",
    "congruence_histogram",
    "embedding_map",
    "extremes",
    "fault_map",
    "inputs_histogram",
    "local_reliability",
    "order_maps",
    "pit_histogram",
    "pit_interpretation",
    "predictions_along",
    "rejection_curves",
    "rejection_panel",
    "reliability_diagram",
    "rootogram",
    "versions",
]
