"""The one place that writes to MLflow."""

from congruence.tasks.masking import mask_secrets, mask_text
from congruence.tasks.tracking.connection import TrackingError
from congruence.tasks.tracking.evaluations import log_evaluation, write_artifacts
from congruence.tasks.tracking.identity import EvaluationIdentity, find_evaluation
from congruence.tasks.tracking.runs import fail_run, open_run
from congruence.tasks.tracking.settings import TrackingSettings
from congruence.tasks.tracking.version_tags import Failure, log_failure, read_failure

__all__ = [
    "EvaluationIdentity",
    "Failure",
    "TrackingError",
    "TrackingSettings",
    "fail_run",
    "find_evaluation",
    "log_evaluation",
    "log_failure",
    "mask_secrets",
    "mask_text",
    "open_run",
    "read_failure",
    "write_artifacts",
]
