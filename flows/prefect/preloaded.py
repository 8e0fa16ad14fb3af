"""What workers of this machine load before they are forked; see ``tasks.dask.preloading``."""

from __future__ import annotations

import gc

from congruence.tasks.runtime.collector import collector_paused

with collector_paused():
    import mlflow.pyfunc  # noqa: F401

    import congruence.flows.evaluation.pipeline
    import congruence.tasks.mlflow.evaluations
    import congruence.tasks.scores.points  # noqa: F401

gc.freeze()  # what is loaded stays, and its pages are shared by all workers as long as nobody writes to them
