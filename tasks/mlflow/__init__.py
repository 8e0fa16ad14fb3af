"""The one place that writes to MLflow."""
