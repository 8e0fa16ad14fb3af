"""A quantile regression forest, by quantile-forest."""

from quantile_forest import RandomForestQuantileRegressor
from table import Table

NAME = "quantile forest"


def fit(table: Table) -> tuple[object, str]:
    """100 trees whose leaves hold five rows or more."""
    return RandomForestQuantileRegressor(100, min_samples_leaf=5, random_state=0).fit(*table.fitted), "sklearn"
