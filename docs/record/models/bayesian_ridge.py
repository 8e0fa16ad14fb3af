"""Bayesian ridge regression, by scikit-learn."""

from sklearn.linear_model import BayesianRidge
from table import Table

NAME = "Bayesian ridge"


def fit(table: Table) -> tuple[object, str]:
    """As it comes."""
    return BayesianRidge().fit(*table.fitted), "sklearn"
