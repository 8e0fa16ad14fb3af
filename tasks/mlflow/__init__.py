"""The one place that writes to MLflow."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.mlflow.baselines import IN_USE as IN_USE
    from congruence.tasks.mlflow.baselines import baseline_version as baseline_version
    from congruence.tasks.mlflow.baselines import gate_baseline as gate_baseline
    from congruence.tasks.mlflow.comparisons import log_comparison as log_comparison
    from congruence.tasks.mlflow.conditions import Conditions as Conditions
    from congruence.tasks.mlflow.connection import TrackingError as TrackingError
    from congruence.tasks.mlflow.evaluations import log_evaluation as log_evaluation
    from congruence.tasks.mlflow.evaluations import write_artifacts as write_artifacts
    from congruence.tasks.mlflow.gates import log_decision as log_decision
    from congruence.tasks.mlflow.identity import EvaluationIdentity as EvaluationIdentity
    from congruence.tasks.mlflow.identity import find_evaluation as find_evaluation
    from congruence.tasks.mlflow.links import place_of as place_of
    from congruence.tasks.mlflow.links import run_link as run_link
    from congruence.tasks.mlflow.links import web_page as web_page
    from congruence.tasks.mlflow.reading import logged_metrics as logged_metrics
    from congruence.tasks.mlflow.reading import logged_versions as logged_versions
    from congruence.tasks.mlflow.reading import read_scores as read_scores
    from congruence.tasks.mlflow.reading import read_version as read_version
    from congruence.tasks.mlflow.reliability import log_reliability as log_reliability
    from congruence.tasks.mlflow.runs import fail_run as fail_run
    from congruence.tasks.mlflow.runs import open_run as open_run
    from congruence.tasks.mlflow.selecting import comparable_versions as comparable_versions
    from congruence.tasks.mlflow.settings import TrackingSettings as TrackingSettings
    from congruence.tasks.mlflow.version_tags import Failure as Failure
    from congruence.tasks.mlflow.version_tags import alias_holder as alias_holder
    from congruence.tasks.mlflow.version_tags import log_failure as log_failure
    from congruence.tasks.mlflow.version_tags import read_failure as read_failure
    from congruence.tasks.mlflow.version_tags import set_alias as set_alias
    from congruence.tasks.runtime.masking import mask_secrets as mask_secrets
    from congruence.tasks.runtime.masking import mask_text as mask_text
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
