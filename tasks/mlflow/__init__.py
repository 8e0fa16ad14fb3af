"""The one place that writes to MLflow."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.mlflow.baselines import IN_USE, baseline_version, gate_baseline
    from congruence.tasks.mlflow.comparisons import log_comparison
    from congruence.tasks.mlflow.conditions import Conditions
    from congruence.tasks.mlflow.connection import TrackingError
    from congruence.tasks.mlflow.evaluations import log_evaluation, write_artifacts
    from congruence.tasks.mlflow.gates import log_decision
    from congruence.tasks.mlflow.identity import EvaluationIdentity, find_evaluation
    from congruence.tasks.mlflow.links import place_of, run_link, web_page
    from congruence.tasks.mlflow.reading import logged_metrics, logged_versions, read_scores, read_version
    from congruence.tasks.mlflow.reliability import log_reliability
    from congruence.tasks.mlflow.runs import fail_run, open_run
    from congruence.tasks.mlflow.selecting import comparable_versions
    from congruence.tasks.mlflow.settings import TrackingSettings
    from congruence.tasks.mlflow.version_tags import Failure, alias_holder, log_failure, read_failure, set_alias
    from congruence.tasks.runtime.masking import mask_secrets, mask_text
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "IN_USE",
    "Conditions",
    "EvaluationIdentity",
    "Failure",
    "TrackingError",
    "TrackingSettings",
    "alias_holder",
    "baseline_version",
    "comparable_versions",
    "fail_run",
    "find_evaluation",
    "gate_baseline",
    "log_comparison",
    "log_decision",
    "log_evaluation",
    "log_failure",
    "log_reliability",
    "logged_metrics",
    "logged_versions",
    "mask_secrets",
    "mask_text",
    "open_run",
    "place_of",
    "read_failure",
    "read_scores",
    "read_version",
    "run_link",
    "set_alias",
    "web_page",
    "write_artifacts",
]
