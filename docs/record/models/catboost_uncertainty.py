"""CatBoost with a normal distribution whose spread is learnt."""

from catboost import CatBoostRegressor
from table import Table

NAME = "CatBoost with uncertainty"


def fit(table: Table) -> tuple[object, str]:
    """As its documentation shows it."""
    loss = "RMSEWithUncertainty"
    model = CatBoostRegressor(loss_function=loss, iterations=300, verbose=0, allow_writing_files=False, thread_count=2)
    return model.fit(*table.fitted), "catboost"
