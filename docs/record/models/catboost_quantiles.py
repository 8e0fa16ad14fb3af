"""Quantile boosting by CatBoost: all levels in one model."""

from catboost import CatBoostRegressor
from table import Table

from models.lightgbm_quantiles import LEVELS

NAME = "CatBoost quantiles"


def fit(table: Table) -> tuple[object, str]:
    """19 levels."""
    loss = f"MultiQuantile:alpha={','.join(map(str, LEVELS))}"
    model = CatBoostRegressor(loss_function=loss, iterations=300, verbose=0, allow_writing_files=False, thread_count=2)
    return model.fit(*table.fitted), "catboost"
