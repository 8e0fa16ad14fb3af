"""Watching a registry: which versions to evaluate, when, and by whom.

Whatever asks MLflow raises ``TrackingError``, as in ``tasks.mlflow``.
"""
