"""Sections of an evaluation file: its encoder, its models, their versions and how their output is read, and MLflow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Field, field_validator

from congruence.kernels import distributions
from congruence.tasks.readers.base import parse_call
from congruence.tasks.settings.parts import Strict

if TYPE_CHECKING:  # a file with a mistake is refused before SciPy is loaded
    from congruence.kernels.distributions.base import Distribution

COMPACT = "compact"
RANDOM = "random"

Kind = Literal["open_clip", "open_clip_text", "timm", "statistics", "identity", "custom"]

_NEEDS_NO_MODEL = ("statistics", "identity", "custom")
_IDENTITY_ONLY = ("dimension", "mean", "scale", "standardise", "missing")
_TORCH_ONLY = ("pretrained", "precision", "device")


class EncoderSettings(Strict):
    """The encoder of an evaluation.

    kind: `open_clip` (images), `open_clip_text`, `timm` (image backbones), `statistics` (images without weights:
        brightness, contrast, layout, colour, edges, frequencies), `identity` (tabular features, standardised), `custom`
        (your own, by import path).
    model: for open_clip `compact` (shipped with the package; knows digits alone), a model such as `ViT-B-32`,
        `local-dir:/folder` or `hf-hub:owner/name`; for timm a model such as `resnet18.a1_in1k`.
    pretrained: a tag such as `laion2b_s34b_b79k`, the path of a checkpoint, or `random` for untrained weights
        (benchmarks, tests); timm models carry their tag in the name.
    precision: `fp32`; `bf16`, autocast on a GPU (the CPU runs it too, seldom faster); `pure_bf16`, weights and all.
    batch_size: rows of one forward pass, halved where memory runs out. `auto` measures once for each store which size
        is fastest and keeps it there for every worker and later run. By default `auto` on a GPU; on a CPU, whose rate
        hardly depends on it, 64, so that two stores of the same rows have the same bytes.
    device: `auto` takes a GPU where there is one.
    max_pixels: images with more are invalid rows; the header decides, before anything is decoded.
    mean, scale: of the tabular features; each feature becomes (value - mean) / scale. Where neither is given they are
        fitted to the evaluation's reference split, or to its first split where it has no reference.
    dimension: the number of features, where it is to be checked.
    standardise: false leaves the features as they are.
    missing: what nearness makes of a tabular feature without a value. `leave_out`: the row is left out. `mean`: the
        feature's mean stands in. `indicator`: the mean, and beside each feature one that is 1 where it is missing. With
        the last two the row stays, and models are given it as it is: for models that take missing values themselves.
    path, options: `package.module:callable`, called with the options, returns an `Encoder`.
    """

    kind: Kind = "open_clip"
    model: str | None = None
    pretrained: str | None = None
    precision: Literal["fp32", "bf16", "pure_bf16"] = "fp32"
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] | None = None
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    max_pixels: Annotated[int, Field(ge=1, le=178_956_970)] = 67_108_864
    dimension: Annotated[int, Field(ge=1)] | None = None
    mean: tuple[float, ...] | None = None
    scale: tuple[Annotated[float, Field(gt=0)], ...] | None = None
    standardise: bool = True
    missing: Literal["leave_out", "mean", "indicator"] = "leave_out"
    path: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    def _contradictions(self) -> Iterator[str]:
        # By value, not by presence: settings that went through JSON name every key.
        defaults = type(self).model_fields
        given = {key for key, value in self if value != defaults[key].get_default(call_default_factory=True)}
        if self.kind in _NEEDS_NO_MODEL and given & {"model", *_TORCH_ONLY}:
            wrong = ", ".join(sorted(given & {"model", *_TORCH_ONLY}))
            yield f"kind '{self.kind}' takes no {wrong}; leave it out"
        if self.kind == "timm" and self.model is None:
            yield "kind 'timm' needs a model, for example model: resnet18.a1_in1k"
        if self.kind == "custom" and self.path is None:
            yield "kind 'custom' needs a path, for example path: mypackage.encoders:make_encoder"
        if self.kind != "custom" and given & {"path", "options"}:
            yield f"path and options belong to kind 'custom', not to '{self.kind}'"
        if self.kind == "identity":
            yield from self._contradictions_of_features()
        elif given & set(_IDENTITY_ONLY):
            yield f"{', '.join(_IDENTITY_ONLY)} belong to kind 'identity', not to '{self.kind}'"

    def _contradictions_of_features(self) -> Iterator[str]:
        sizes = {name: len(given) for name, given in (("mean", self.mean), ("scale", self.scale)) if given is not None}
        if not self.standardise and sizes:
            yield "standardise: false contradicts mean and scale; leave one of them out"
        if not self.standardise and self.dimension is None:
            yield "standardise: false needs dimension, the number of features"
        if not self.standardise and self.takes_missing:
            yield f"missing: {self.missing} needs the mean of each feature; leave standardise on"
        if self.dimension is not None:
            sizes = {"dimension": self.dimension} | sizes
        if len(set(sizes.values())) > 1:
            yield f"the number of features differs: {', '.join(f'{name} {size}' for name, size in sizes.items())}"
        if 0 in sizes.values():
            yield "mean and scale must hold one number per feature, and at least one"

    @property
    def given_batch_size(self) -> int | None:
        """The batch size if it is a number."""
        return self.batch_size if isinstance(self.batch_size, int) else None

    @property
    def takes_missing(self) -> bool:
        """Whether a row stays where a tabular feature has no value."""
        return self.missing != "leave_out"

    @property
    def needs_statistics(self) -> bool:
        """Whether mean and scale of the features are to be fitted to data before there is an encoder."""
        return self.kind == "identity" and self.standardise and self.mean is None and self.scale is None


FITTED_ON = "congruence.fitted_on"
"""Tag of a version: the digest of the split of which it has seen targets."""

FITTED_UNTIL = "congruence.fitted_until"
"""Tag of a version: the last date of the rows it was fitted on, where these come by date. Looks at it begin after."""


@dataclass(frozen=True)
class ModelVersion:
    """One version of a registered model, or a logged model that nobody registered (``version`` is then empty).

    ``uri`` is exact: an alias in the request has become a version number, so a moved alias cannot change the meaning.
    ``model_id`` is MLflow's LoggedModel, to which metrics are attached; versions of MLflow 2 have none.
    """

    name: str
    version: str
    uri: str
    model_id: str | None = None
    run_id: str | None = None
    aliases: tuple[str, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """``name/version``, as people say it."""
        return f"{self.name}/{self.version}" if self.version else self.name

    def has_seen(self, split_digest: str) -> bool:
        """Whether it was fitted on targets of this split, so that it is not to be judged on all of it."""
        return self.tags.get(FITTED_ON) == fitted_on(split_digest)


def fitted_on(split_digest: str) -> str:
    """Returns the value of ``FITTED_ON`` for a split."""
    return split_digest[:32]


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


def _unknown_family(key: str, value: str, known: set[str]) -> Iterator[str]:
    if value not in known:
        yield f"{key}: {value!r} is not a family here; choose one of {', '.join(sorted(known))}"


class TrackingSettings(Strict):
    """Where and how evaluations are logged to MLflow.

    Attributes:
        uri: MLflow tracking server or database; MLflow's current one by default.
        registry_uri: the model registry, where it is another server; MLFLOW_REGISTRY_URI by default.
        experiment: evaluations go to the experiment ``<experiment>/evaluations``, with a view for each split;
            comparisons and decisions of the gate to ``<experiment>/comparisons``, new inputs to
            ``<experiment>/new-inputs``.
        artifact_location: folder or bucket of new experiments; for an SQLite database ``mlartifacts`` beside it.
        headline_split: the split whose numbers stand in the tags ``cce``, ``cce_status`` and ``what_is_wrong`` of a
            model version; by default the one evaluated last.
        source_run_metrics: write the headline metrics also to the run that trained the version (``<split>/cce_mean``)
            if no other version came from that run: MLflow's page that compares versions reads only those runs.
        report: log the HTML report and the plots.
        performance_report: log Dask's report of what its workers did (``dask-report.html``, an artifact of the run of
            the last version); needs Bokeh, here and where the scheduler runs.
        table_rows: points in each part of the small table that MLflow shows.
        patience: seconds for which a server that does not answer is asked again.
        link: base address of the MLflow page for people (``https://mlflow.example``), for links in tags; by default the
            tracking server's own.
    """

    uri: Annotated[str | None, Field(repr=False)] = None
    registry_uri: Annotated[str | None, Field(repr=False)] = None
    experiment: str = Field(default="congruence", min_length=1)
    artifact_location: str | None = None
    headline_split: str | None = None
    source_run_metrics: bool = True
    report: bool = True
    performance_report: bool = False
    table_rows: int = Field(default=50, ge=1, le=200)
    patience: float = Field(default=120.0, ge=0)
    link: str | None = None

    @field_validator("performance_report")
    @classmethod
    def _can_be_drawn(cls, asked: bool) -> bool:
        if asked and find_spec("bokeh") is None:
            raise ValueError(
                "Dask draws it with Bokeh, which is not installed; install it here and where the scheduler runs "
                "(pip install -c constraints.txt bokeh), or leave the key out"
            )
        return asked

    @property
    def registry(self) -> str | None:
        """The address of the registry; None where it is that of MLflow's current server."""
        return self.registry_uri or os.environ.get("MLFLOW_REGISTRY_URI") or self.uri

    @property
    def evaluations(self) -> str:
        """The experiment of evaluations."""
        return f"{self.experiment}/evaluations"

    @property
    def comparisons(self) -> str:
        """The experiment of comparisons and of the gate's decisions, so that the columns of evaluations stay clear."""
        return f"{self.experiment}/comparisons"

    @property
    def new_inputs(self) -> str:
        """The experiment of new inputs that were judged by a split."""
        return f"{self.experiment}/new-inputs"
