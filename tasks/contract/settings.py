"""How a model's output columns spell a predictive distribution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import AliasChoices, Field, field_validator

from congruence.kernels import distributions
from congruence.tasks.readers.base import parse_call
from congruence.tasks.settings.parts import Strict

if TYPE_CHECKING:  # a file with a mistake is refused before SciPy is loaded
    from congruence.kernels.distributions.base import Distribution

Column = str | float | list[str]
"""A column name, a constant for every row, or several columns that form the matrix of one parameter."""

Transform = Literal["exp", "sqrt", "square", "reciprocal", "softplus", "softmax"]

AUTO = "auto"
"""The family of what is read as the model returns it."""

SHARED = {"quantiles": "levels", "histogram": "borders", "weighted_samples": "support"}
"""What all rows of a family share, and settings give: of quantiles always, of the others where no column has it."""
RATES = {
    "poisson": "rate",
    "negative_binomial": "mean",
    "double_poisson": "mean",
    "zero_inflated_poisson": "rate",
    "zero_inflated_negative_binomial": "mean",
    "zero_inflated_double_poisson": "mean",
}
"""The families of counts that an exposure multiplies, and the parameter that it multiplies."""
_VALUES_OF_A_ROW = ("samples", "quantiles")
_GIVEN_WITH = {
    "levels": ("quantiles", AUTO),
    "borders": ("histogram",),
    "support": ("weighted_samples",),
    "crossing": ("quantiles", AUTO),
    "tails": ("quantiles", AUTO),
    "draws_axis": ("samples",),
}


class Family(Protocol):
    """How a family is made from its parameters."""

    def parameter_names(self) -> tuple[str, ...]:
        """The names of the parameters, in order."""

    def __call__(self, *values: Any, **named: Any) -> Distribution:
        """The distribution with parameters by place or by name."""


@cache
def families() -> dict[str, Family]:
    """Every family of ``congruence.kernels.distributions`` by its name in settings: StudentT is ``student_t``.

    Every family of counts is there with more zeros and with other ones, too: ``zero_inflated_poisson``.
    """
    from congruence.kernels.distributions.base import Distribution, snake_case
    from congruence.kernels.distributions.counts import Count, Hurdle, ZeroInflated, ZeroModified, ZeroModifiedFamily

    members = (getattr(distributions, name) for name in dir(distributions))
    kinds = [kind for kind in members if isinstance(kind, type) and issubclass(kind, Distribution)]
    plain = [kind for kind in kinds if not issubclass(kind, ZeroModified) and is_dataclass(kind)]
    known: dict[str, Family] = {snake_case(kind.__name__): kind for kind in plain}
    for base in (kind for kind in plain if issubclass(kind, Count)):
        for wrapper in (ZeroInflated, Hurdle):
            known[snake_case(wrapper.__name__ + base.__name__)] = ZeroModifiedFamily(wrapper, base)
    return known


def parameter_names(family: str) -> tuple[str, ...]:
    """The parameters of a family, in the order of its constructor."""
    return families()[family].parameter_names()


class PredictionSettings(Strict):
    """The family of the predictive distributions and where its parameters are in the model's output.

    ``columns`` maps each parameter of the family to an output column (an array-valued column gives a matrix), to a list
    of columns, or to a number that holds for every row. A parameter without an entry is the column of its own name, or
    the columns NAME_0, NAME_1, ...; samples and quantiles (parameter ``values``) may also be all columns in order.
    ``transforms`` serve models that give a variance (``sqrt``) or a logarithm (``exp``). Quantiles need ``levels``; the
    ``borders`` of a histogram and the ``support`` of weighted samples may be given here or be columns. A mixture names
    the family of its ``component``; its ``weights`` and each parameter are then matrices (n, K).

    Quantiles that cross are sorted (Chernozhukov et al. 2010), or refused with ``crossing: refuse``; ``tails`` says how
    they go on beyond the outer levels.

    ``exposure`` names the column by which predicted rates are multiplied: a rate model is one of counts with it.

    ``method`` asks the model behind MLflow's wrapper: "pred_dist", or "predict(return_std=True)" with literal
    arguments. Family "auto", the default, reads what comes back by its structure (``congruence.tasks.readers``).
    """

    family: str = AUTO
    """Of the distributions that the output spells."""
    method: str | None = None
    """Of the native model, asked in place of the logged ``predict``."""
    columns: dict[str, Column] = Field(default_factory=dict)
    transforms: dict[str, Transform] = Field(default_factory=dict)
    levels: list[float] | None = None
    borders: list[float] | None = None
    support: list[float] | None = None
    draws_axis: Literal[0, 1] | None = None
    """Of an array of samples: 1 where it is (rows, draws), 0 where it is (draws, rows)."""
    component: str | None = None
    crossing: Literal["sort", "refuse"] | None = None
    """Of quantiles that fall as the level rises: sort by default."""
    tails: Literal["normal", "exponential", "none"] | None = None
    """Of quantiles beyond the outer levels: normal by default, through the outer two on each side."""
    exposure: str | None = None
    """Column of how long, or of how much, each count is: the predicted mean is multiplied by it."""

    @field_validator("family", "component", mode="before")
    @classmethod
    def _spelled_as_here(cls, name: Any) -> Any:
        """``lognormal``, ``LogNormal`` and ``log-normal`` are ``log_normal``."""
        if not isinstance(name, str) or name == AUTO:
            return name
        return {_letters(known): known for known in families()}.get(_letters(name), name)

    def _contradictions(self) -> Iterator[str]:
        yield from _unknown_family("family", self.family, {AUTO, *families()})
        if self.method is not None:
            parse_call(self.method)  # which says itself what is wrong with it
        if (self.component is not None) != (self.family == "mixture"):
            yield f"component: is {self.component!r} with family {self.family!r}; only a mixture has one"
        if self.component is not None:
            yield from _unknown_family("component", self.component, set(families()) - {"mixture", "samples", *SHARED})
        for name, (family, *others) in _GIVEN_WITH.items():
            lacks = name == "levels" and self.family == family and self.levels is None
            if lacks or (getattr(self, name) is not None and self.family not in (family, *others)):
                verb = "are" if name in SHARED.values() else "is"
                yield f"{name}: {verb} given with family {family!r}, and only with it"
        if self.exposure is not None and self.family not in (AUTO, *RATES):
            yield f"exposure: multiplies the mean of a distribution of counts, one of {', '.join(RATES)}"
        steps = pairwise([0.0, *(self.levels or ()), 1.0])
        if self.levels is not None and not (self.levels and all(low < high for low, high in steps)):
            shares = [round(level / 100.0, 12) for level in self.levels]
            percents = max(self.levels, default=0.0) > 1.0 and all(
                low < high for low, high in pairwise([0.0, *shares, 1.0])
            )
            more = f"; of percentages give the shares {shares}" if percents else ""
            yield f"levels: {self.levels} must increase strictly and lie inside (0, 1){more}"
        for key, entries in (("columns", self.columns), ("transforms", self.transforms)):
            for name in entries:
                if name not in self.parameters:
                    if self.family == AUTO:
                        yield f"{key}: are those of a family; give family: normal, for example"
                    known = ", ".join(self.parameters)
                    yield f"{key}.{name}: {self.family} has no such parameter; its parameters are {known}"

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters that the output must give."""
        if self.component is not None:
            return ("weights", *parameter_names(self.component))
        if self.family in _VALUES_OF_A_ROW:
            return ("values",)
        if self.family == AUTO:
            return ()
        return tuple(name for name in parameter_names(self.family) if name not in self.shared)

    def digested(self) -> dict[str, Any]:
        """What a digest covers: what is given, and the tails of quantiles also where they are the default."""
        tails = {"tails": self.tails or "normal"} if self.family == "quantiles" else {}
        return self.model_dump(mode="json", exclude_none=True) | tails

    @property
    def shared(self) -> dict[str, list[float]]:
        """What all rows share and these settings give, by the family's name for it."""
        name = SHARED.get(self.family)
        value = getattr(self, name) if name is not None else None
        return {} if name is None or value is None else {name: value}


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


class LabelSettings(Strict):
    """Where outcomes lie that were learned after the predictions were stored, and how they are joined to these.

    Of several labels of one key the latest counts: by the column ``time``, else in the order of files and rows.
    """

    uri: str = Field(min_length=1)
    """A file, a folder or a glob, in any format that splits have."""
    format: str = "auto"
    """Where the ending of the files does not tell."""
    key: str = Field(min_length=1)
    """Column that holds the keys of the predictions."""
    target: str | list[str] = Field(min_length=1)
    """Column or columns of the outcome."""
    time: str | None = None
    """Column of when a label became known."""
    storage_options: dict[str, Any] = Field(default={}, repr=False)
    """Passed to the fsspec file system: endpoint, credentials. Never logged."""


class StoredPredictions(PredictionSettings):
    """How predictions are read: of what models return, or, with ``from``, of what production stored.

    Stored predictions are rows of inputs and predictions by one or several versions; no model is loaded. The columns of
    the predictions are read as those of a model's output are.
    """

    from_: str | None = Field(
        default=None,
        min_length=1,
        validation_alias=AliasChoices("from", "from_"),
        serialization_alias="from",
        description="stored predictions: a file, folder or glob of rows with inputs and predictions",
    )
    format: str | None = None
    """Of the files, where their ending does not tell."""
    key: str | None = None
    """Column that names what was predicted: labels are joined by it, and versions compared that scored the same."""
    version: str | None = None
    """Column that says by which version; without one all rows are of one version."""
    time: str | None = None
    """Column of when it was predicted: timestamps, dates or ISO 8601 texts."""
    model: str | None = Field(default=None, pattern="^[^/@:]+$")
    """Name of the model: its registered versions are those of the same number (3, v3, version 3), where MLflow has
    them."""
    targets: LabelSettings | None = None
    """Where the labels lie; by default in the rows themselves, under the target of the split."""
    period: Literal["day", "week", "month"] | None = None
    """What ``watch`` evaluates at a time; by default the week, from Monday."""
    late: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Share of new or corrected labels by which a period is evaluated again; by default 0.1."""
    storage_options: dict[str, Any] | None = Field(default=None, repr=False)
    """Passed to the fsspec file system of the predictions: endpoint, credentials. Never logged."""

    def _contradictions(self) -> Iterator[str]:
        yield from super()._contradictions()
        if self.from_ is None:
            for name in _OF_STORED:
                if getattr(self, name) is not None:
                    yield f"{name}: is of stored predictions, and there is no from; add from: their address"
            return
        if self.method is not None:
            yield "method: asks a model, and stored predictions have none; leave it out"
        if self.targets is not None and self.key is None:
            yield "key: is missing; name the column by which the labels of targets are joined"

    @property
    def read_by(self) -> StoredPredictions:
        """The same without where they lie: how the columns are read."""
        return self.model_copy(update=dict.fromkeys(("from_", *_OF_STORED)))


_OF_STORED = ("format", "key", "version", "time", "model", "targets", "period", "late", "storage_options")


def _unknown_family(key: str, value: str, known: set[str]) -> Iterator[str]:
    if value not in known:
        yield f"{key}: {value!r} is not a family here; choose one of {', '.join(sorted(known))}"
