"""The one place that writes to MLflow.

Whatever asks MLflow raises ``TrackingError`` where it refuses, or does not answer within ``tracking.patience`` seconds.
"""
