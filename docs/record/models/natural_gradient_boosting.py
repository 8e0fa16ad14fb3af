"""NGBoost: boosting of a distribution's parameters."""

from ngboost import NGBRegressor
from ngboost.distns import LogNormal, Normal
from table import Table

NAME = "NGBoost"


def fit(table: Table) -> tuple[object, str]:
    """Normal, or log-normal where targets are positive."""
    family = LogNormal if table.target == "positive" else Normal
    model = NGBRegressor(family, n_estimators=300, learning_rate=0.02, verbose=False, random_state=0)
    return model.fit(*table.fitted), "sklearn"
