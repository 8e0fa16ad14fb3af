"""How a model's output columns spell a predictive distribution."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from congruence.kernels import distributions
from congruence.kernels.distributions.base import Distribution
from congruence.tasks.settings.strict import Strict

Column = str | float | list[str]
"""A column name, a constant for every row, or several columns that form the matrix of one parameter."""

Transform = Literal["exp", "sqrt", "square", "reciprocal", "softplus", "softmax"]

_VALUES_OF_A_ROW = ("samples", "quantiles")


@cache
def families() -> dict[str, type[Distribution]]:
    """Every family of ``congruence.kernels.distributions`` by its name in settings: StudentT is ``student_t``."""
    members = (getattr(distributions, name) for name in dir(distributions))
    kinds = [kind for kind in members if isinstance(kind, type) and issubclass(kind, Distribution)]
    return {family_name(kind): kind for kind in kinds if is_dataclass(kind)}


def family_name(family: type[Distribution]) -> str:
    """The name of a family in settings: its class name in snake case."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", family.__name__).lower()


def parameter_names(family: str) -> tuple[str, ...]:
    """The parameters of a family, in the order of its constructor."""
    return families()[family].parameter_names()


class PredictionSettings(Strict):
    """The family of the predictive distributions and where its parameters are in the model's output.

    ``columns`` maps each parameter of the family to an output column (an array-valued column gives a matrix), to a list
    of columns, or to a number that holds for every row. A parameter without an entry is the column of its own name, or
    the columns NAME_0, NAME_1, ...; samples and quantiles (parameter ``values``) may also be all columns in order.
    ``transforms`` serve models that give a variance (``sqrt``) or a logarithm (``exp``). Quantiles need ``levels``. A
    mixture names the family of its ``component``; its ``weights`` and each parameter are then matrices (n, K).
    """

    family: str
    """Of the distributions that the output spells."""
    columns: dict[str, Column] = Field(default_factory=dict)
    transforms: dict[str, Transform] = Field(default_factory=dict)
    levels: list[float] | None = None
    component: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> PredictionSettings:
        _require_family("family", self.family, set(families()))
        if (self.component is not None) != (self.family == "mixture"):
            raise ValueError(f"component: is {self.component!r} with family {self.family!r}; only a mixture has one")
        if self.component is not None:
            _require_family("component", self.component, set(families()) - {"mixture", *_VALUES_OF_A_ROW})
        if (self.levels is not None) != (self.family == "quantiles"):
            raise ValueError("levels: are given with family 'quantiles', and only with it")
        if self.levels is not None and not _increasing_probabilities(self.levels):
            raise ValueError(f"levels: {self.levels} must increase strictly and lie inside (0, 1)")
        for key, entries in (("columns", self.columns), ("transforms", self.transforms)):
            for name in entries:
                if name not in self.parameters:
                    known = ", ".join(self.parameters)
                    raise ValueError(f"{key}.{name}: {self.family} has no such parameter; its parameters are {known}")
        return self

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters that the output must give."""
        if self.component is not None:
            return ("weights", *parameter_names(self.component))
        if self.family in _VALUES_OF_A_ROW:
            return ("values",)
        return parameter_names(self.family)


def _require_family(key: str, value: str, known: set[str]) -> None:
    if value not in known:
        raise ValueError(f"{key}: {value!r} is not a family here; choose one of {', '.join(sorted(known))}")


def _increasing_probabilities(levels: list[float]) -> bool:
    inside = all(0 < level < 1 for level in levels)
    return bool(levels) and inside and all(low < high for low, high in pairwise(levels))
