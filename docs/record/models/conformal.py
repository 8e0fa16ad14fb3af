"""A conformal predictive system around a random forest, by crepes."""

from crepes import WrapRegressor
from sklearn.ensemble import RandomForestRegressor
from table import Table

NAME = "conformal predictive system"


def fit(table: Table) -> tuple[object, str]:
    """Half of the rows train the forest, 200 others calibrate it."""
    (x, y), half = table.fitted, len(table.fitted[0]) // 2
    model = WrapRegressor(RandomForestRegressor(100, random_state=0))
    model.fit(x[:half], y[:half])
    model.calibrate(x[half:][:200], y[half:][:200], cps=True)
    return model, "sklearn"
