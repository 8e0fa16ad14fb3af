"""Quantile boosting by XGBoost: all levels in one model."""

from table import Table
from xgboost import XGBRegressor

from models.lightgbm_quantiles import LEVELS

NAME = "XGBoost quantiles"


def fit(table: Table) -> tuple[object, str]:
    """19 levels."""
    model = XGBRegressor(objective="reg:quantileerror", quantile_alpha=LEVELS, n_estimators=100, max_depth=4, n_jobs=2)
    return model.fit(*table.fitted), "xgboost"
