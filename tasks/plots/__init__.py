"""The pictures of a report for people with arrays: Matplotlib axes in and out, one function a picture.

Each takes results of ``congruence.kernels``, or the tables that their ``to_frame()`` gives (a run's logged scores have
the same columns), draws on ``axes`` (or ``figure``, where a picture has several panels), or on a figure of its own, and
gives back what it drew on. ``axes.figure.savefig("picture.png")`` writes it. Nothing here touches pyplot.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.plots.comparison import Measured as Measured
    from congruence.tasks.plots.comparison import cce_by_slice as cce_by_slice
    from congruence.tasks.plots.comparison import inputs_histogram as inputs_histogram
    from congruence.tasks.plots.comparison import rejection_panel as rejection_panel
    from congruence.tasks.plots.comparison import versions as versions
    from congruence.tasks.plots.evaluation import congruence_histogram as congruence_histogram
    from congruence.tasks.plots.evaluation import local_reliability as local_reliability
    from congruence.tasks.plots.evaluation import pit_histogram as pit_histogram
    from congruence.tasks.plots.evaluation import pit_interpretation as pit_interpretation
    from congruence.tasks.plots.evaluation import rejection_curves as rejection_curves
    from congruence.tasks.plots.evaluation import reliability_diagram as reliability_diagram
    from congruence.tasks.plots.evaluation import rootogram as rootogram
    from congruence.tasks.plots.maps import congruence_along as congruence_along
    from congruence.tasks.plots.maps import embedding_map as embedding_map
    from congruence.tasks.plots.maps import extremes as extremes
    from congruence.tasks.plots.maps import fault_map as fault_map
    from congruence.tasks.plots.maps import order_maps as order_maps
    from congruence.tasks.plots.maps import predictions_along as predictions_along
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
