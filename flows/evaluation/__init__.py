"""One evaluation, from an evaluation file to the runs in MLflow."""
