"""Sections of an evaluation file: its encoder, its models and their versions, MLflow, and the looks of a watch."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from congruence.tasks.contract.settings import PredictionSettings
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.parts import Strict

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


Isolation = Literal["none", "environment"]


class PredictSettings(Strict):
    """How versions are asked for their predictions.

    Attributes:
        isolation: every version runs in a process of its own. With ``none`` that has the worker's packages and
            environment variables. With ``environment`` it has the Python and the packages that were logged with the
            version (made once by uv or pyenv and kept in the home folder), and none of the worker's variables. That is
            no security boundary, as it is the same user on the same machine: run workers in a container of their own
            for models you do not trust.
        timeout: seconds that a version may take to load, and to answer one call (a shard of the split).
        build_timeout: seconds that making its environment may take.
    """

    isolation: Isolation = "none"
    timeout: float = Field(default=600.0, gt=0)
    build_timeout: float = Field(default=1800.0, gt=0)


class ModelEntry(Strict):
    """Versions that are read, or given rows, in a way of their own.

    Attributes:
        uri: which, as a text under ``models:`` says it.
        predictions: how their output is read, in place of the file's.
        model_inputs: the columns that they are given, among those of the split; else its signature chooses.
        name: what a model is called that nobody registered, in place of the name that it was logged under.
    """

    uri: str = Field(min_length=1)
    predictions: PredictionSettings | None = None
    model_inputs: list[str] | None = Field(default=None, min_length=1)
    name: str | None = Field(default=None, min_length=1)


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


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"^\s*(?P<number>\d+(\.\d+)?)\s*(?P<unit>[smhd])\s*$")


def parse_duration(value: Any) -> Any:
    """Seconds of ``90``, ``90s``, ``5m``, ``2h`` or ``1d``.

    Raises:
        ValueError: another form.
    """
    if not isinstance(value, str):
        return value
    if match := _DURATION.match(value):
        return float(match["number"]) * _UNITS[match["unit"]]
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"'{value}' is not a duration; write 90s, 5m, 2h or 1d") from None


def every_seconds(text: str) -> float:
    """Seconds of a duration on the command line.

    Raises:
        SettingsError: not a duration, or none above zero.
    """
    try:
        seconds = float(parse_duration(text))
    except ValueError as error:
        raise SettingsError(f"--every: {error}") from error
    if not seconds > 0:
        raise SettingsError(f"--every: must be greater than zero, found {text}; write 90s, 5m, 2h or 1d")
    return seconds


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]


class MonitorSettings(Strict):
    """When looks at a version on new dates, all together, call it wrong or changed.

    Attributes:
        level: the share of right versions, at most, that are ever called wrong, over any number of looks at a split.
        average_run_length: looks at a right version, on average and at least, until a change is called falsely.
        least_rows: a look waits until the new dates have so many rows.
    """

    level: float = Field(default=0.05, gt=0.0, lt=1.0)
    average_run_length: float = Field(default=1000.0, gt=1.0)
    least_rows: int = Field(default=100, ge=10)


class WatchSettings(Strict):
    """Which registry versions a watcher evaluates, and how often it looks.

    Attributes:
        models: names of registered models, with shell wildcards (``angle-*``); by default the file's ``models``.
        aliases: only versions that hold one of these aliases.
        tags: only versions that carry these tags with these values.
        in_use: the aliases that say which versions are in use; by default any alias does. These are looked at again
            on the new dates of a split that has ``new_dates_only``; other versions, once.
        monitor: when looks over time call a version wrong or changed.
        in_process_rows: splits of features that are no longer, and need no encoder, are evaluated in the watcher's own
            process, without a cluster; by default none is.
        every: time between two looks at the registry.
        retry_after: ``congruence watch`` tries a version that failed again after so long.
    """

    models: list[str] = []
    aliases: list[str] = []
    tags: dict[str, str] = {}
    in_use: list[str] = []
    monitor: MonitorSettings = MonitorSettings()
    in_process_rows: int = Field(default=0, ge=0)
    every: Seconds = 60.0
    retry_after: Seconds = 3600.0
