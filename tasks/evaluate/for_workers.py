"""What every worker of an evaluation needs, loaded: imported by the one process that workers are forks of."""

from __future__ import annotations

import os

import distributed.nanny as distributed_nanny
import mlflow.pyfunc as mlflow_pyfunc

from congruence.tasks.contract import predictors
from congruence.tasks.evaluate import pieces
from congruence.tasks.mlflow import evaluations
from congruence.tasks.models.processes import fork_nursery
from congruence.tasks.scores import version

__all__ = ["distributed_nanny", "evaluations", "mlflow_pyfunc", "pieces", "predictors", "version"]

# Only ever imported where there is one thread and nothing but workers is forked.
os.register_at_fork(after_in_child=fork_nursery)
