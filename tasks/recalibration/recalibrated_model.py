"""What MLflow runs to load a recalibrated version (models from code): no pickle."""

from mlflow.models import set_model

from congruence.tasks.recalibration.model import RecalibratedModel

set_model(RecalibratedModel())
