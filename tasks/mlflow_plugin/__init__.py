"""The evaluator that mlflow.models.evaluate finds under the name congruence."""
