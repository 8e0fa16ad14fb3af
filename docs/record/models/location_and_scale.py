"""A normal distribution whose mean and logarithm of scale are linear in the inputs: the plainest GAMLSS."""

from network import trained
from table import Table

NAME = "linear location and scale"


def fit(table: Table) -> tuple[object, str]:
    """By maximum likelihood."""
    return trained(table, 1, hidden=0), "pytorch"
