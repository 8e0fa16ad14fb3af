"""What the parts of an evaluation file have in common; and its protocol, store and cluster."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from congruence.kernels.errors import ProtocolError
from congruence.kernels.kernel_functions import RBF, Kernel, Laplacian, Linear, Matern, OutputScale, Polynomial
from congruence.kernels.protocol import PROTOCOLS, Downsampling, EvaluationProtocol
from congruence.tasks.runtime.errors import MASK, SettingsError, mask_text


class Strict(BaseModel):
    """A frozen settings model that refuses keys it does not know.

    Fields declared with ``repr=False`` may hold credentials: they are masked in JSON, which is what Prefect stores as
    a run's parameters and MLflow as provenance.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before", check_fields=False)
    @classmethod
    def _numbers_are_no_words(cls, value: Any, info: ValidationInfo) -> Any:
        """A number is not read of ``yes``: Python takes true for 1, and a limit of a gate would be that."""
        field = cls.model_fields.get(info.field_name or "")
        takes = "" if field is None else repr(field.annotation)
        is_number = re.search(r"\b(int|float)\b", takes) and not re.search(r"\b(bool|Any)\b", takes)
        for where, each in (value.items() if isinstance(value, dict) else [("", value)]) if is_number else ():
            if isinstance(each, bool):
                said = f"{where}: " if where else ""
                raise ValueError(f"{said}is {str(each).lower()}, as YAML reads yes and no; give a value of its kind")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for said in self._contradictions():
            raise ValueError(said)
        return self

    def _contradictions(self) -> Iterator[str]:
        """What does not fit together, each with the remedy; the first is raised."""
        yield from ()

    @field_serializer("*", mode="wrap", when_used="json", check_fields=False)
    def _masked(self, value: Any, handler: SerializerFunctionWrapHandler, info: FieldSerializationInfo) -> Any:
        declared = type(self).model_fields.get(info.field_name)
        if declared is None or declared.repr or value is None:
            return handler(value)
        is_address = info.field_name.endswith("uri")  # the host may be read; of other secrets nothing
        return mask_text(str(value)) if is_address else _without_secrets(value)


def _without_secrets(value: Any) -> Any:
    return {key: _without_secrets(item) for key, item in value.items()} if isinstance(value, dict) else MASK


Model = TypeVar("Model", bound=BaseModel)


def read_keys(path: Path, source: str, kind: str, keys: str, *, where_it_is_data: str = "") -> dict[str, Any]:
    """The keys of a YAML file.

    Args:
        path: of the file.
        source: what it is called in errors.
        kind: of file: evaluation or cluster.
        keys: such as it should have.
        where_it_is_data: what to do about a file that is no text.

    Raises:
        SettingsError: unreadable, not YAML, without keys, or a key that stands there twice, or a number to base 60.
    """
    import yaml  # a report in a notebook has settings of its own and reads no file

    try:
        text = path.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
    except IsADirectoryError as error:
        raise SettingsError(f"{source}: is a folder; give the path of {kind} file") from error
    except OSError as error:
        raise SettingsError(f"{source}: cannot be read ({error.strerror}); give the path of {kind} file") from error
    except UnicodeDecodeError as error:
        no_file = f"no {kind.rpartition(' ')[2]} file"
        raise SettingsError(f"{source}: is not text, so it is {no_file}{where_it_is_data}") from error
    except yaml.YAMLError as error:
        raise SettingsError(f"{source}: is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        found = "it is empty" if content is None else f"found {type(content).__name__}"
        raise SettingsError(f"{source}: expected keys such as {keys}, {found}")
    _require_plain(yaml.compose(text, yaml.SafeLoader), source)
    return content


def _require_plain(node: Any, source: str) -> None:
    """Raise SettingsError where YAML has a key twice, of which it takes the last, or 1:30, which it takes for 90."""
    seen = set()
    if node.id == "scalar" and ":" in node.value and node.tag.endswith((":int", ":float")):
        line, said = node.start_mark.line + 1, "is a number to base 60 in YAML; write it out, or in quotes"
        raise SettingsError(f"{source}, line {line}: {node.value} {said}")
    for part in node.value if node.id != "scalar" else ():
        if node.id == "mapping":
            key, part = part
            if key.value in seen:
                line = key.start_mark.line + 1
                raise SettingsError(f"{source}, line {line}: {key.value}: stands there twice; keep one of them")
            seen.add(key.value)
        _require_plain(part, source)


def checked(model: type[Model], content: Mapping[str, Any], source: str) -> Model:
    """The settings that ``content`` gives.

    Raises:
        SettingsError: wrong keys or values; one line for each of them.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems: dict[str, list[Any]] = {}
        for item in error.errors():
            item["loc"] = tuple(part for part in item["loc"] if not _KIND_TRIED.fullmatch(str(part)))
            problems.setdefault(".".join(map(str, item["loc"])), []).append(item)
        lines = []
        for first, *more in problems.values():
            if more:  # a key that may have several kinds of value
                first |= {"type": "", "msg": ", or ".join(item["msg"] for item in (first, *more))}
            lines.append(_described(model, source, first))
        raise SettingsError("\n".join(lines)) from error


_KIND_TRIED = re.compile(r"str|int|float|bool|constrained-\w+|(list|dict|literal|union)\[.*\]")
"""How pydantic names one of several kinds of value that a key may have, in the place of a problem."""


def _described(model: type[BaseModel], source: str, problem: Any) -> str:
    """One line for one pydantic error: file, key, what is wrong, the value and the remedy."""
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        known = _keys_at(model, problem["loc"][:-1])
        close = difflib.get_close_matches(str(problem["loc"][-1]), known, 1)
        remedy = f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(known)}"
        return f"{source}: {place}: there is no such key; {remedy}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{source}: {place}: is missing; add it"
    given = problem.get("input")
    if problem["type"] == "list_type":
        is_one = isinstance(given, (str, int, float))
        remedy = f"write [{given}]" if is_one else "begin each of its entries with a dash"
        return f"{source}: {place}: expected a list; {remedy}"
    if problem["type"] == "model_type":
        return f"{source}: {place}: is {given!r}, expected keys: {', '.join(_keys_at(model, problem['loc']))}"
    shown = "" if isinstance(given, (dict, list)) or problem["type"] == "value_error" else f" (found {given!r})"
    where = f"{source}: {place}" if place else source
    return f"{where}: {message[:1].lower()}{message[1:]}{shown}"


def _keys_at(model: Any, location: tuple[Any, ...]) -> list[str]:
    for part in location:
        if isinstance(part, int) or not hasattr(model, "model_fields") or part not in model.model_fields:
            continue
        model = _settings_model(model.model_fields[part].annotation)
    fields = getattr(model, "model_fields", {})
    return sorted(field.alias or name for name, field in fields.items())


def _settings_model(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [_settings_model(argument) for argument in getattr(annotation, "__args__", ())]
    return next((model for model in inner if model is not None), None)


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class KernelSettings(Strict):
    """A kernel by name, with scikit-learn's parameters: gamma, degree, coef0; nu and length_scale for Matern."""

    kind: Literal["rbf", "laplacian", "polynomial", "linear", "matern"]
    """Which kernel."""
    gamma: Positive | None = None
    """rbf: exp(-gamma |x - x'|^2); laplacian: of the L1 distance; polynomial: (gamma x.x' + coef0)^degree; linear:
    gamma x.x'. For the last two by default 1 / number of features."""
    degree: int = Field(default=3, ge=1)
    """Of a polynomial."""
    coef0: float = Field(default=1.0, ge=0)
    """Of a polynomial."""
    nu: float = 1.5
    """Of a Matern kernel: 0.5, 1.5 or 2.5."""
    length_scale: Positive = 1.0
    """Of a Matern kernel."""

    def _contradictions(self) -> Iterator[str]:
        if self.kind in ("rbf", "laplacian") and self.gamma is None:
            yield f"gamma: a {self.kind} kernel needs one, for example gamma: 0.5"
        if self.nu not in (0.5, 1.5, 2.5):
            yield f"nu: is {self.nu}; a Matern kernel has 0.5, 1.5 or 2.5 here"

    def kernel(self) -> Kernel:
        """The kernel as a value."""
        if self.kind == "polynomial":
            return Polynomial(self.degree, self.gamma, self.coef0)
        if self.kind == "linear":
            return Linear(self.gamma)
        if self.kind == "matern":
            return Matern(self.nu, self.length_scale)
        assert self.gamma is not None
        return RBF(self.gamma) if self.kind == "rbf" else Laplacian(self.gamma)


class DownsamplingSettings(Strict):
    """Estimate on ``rows`` random reference points, new in each of ``repeats``; all points are still evaluated."""

    rows: int = Field(ge=2)
    repeats: int = Field(default=5, ge=1)


class ProtocolSettings(Strict):
    """A protocol: one of the named ones (``base``), with what is to differ from it.

    Values of different protocols do not compare: each change gives another digest.
    """

    base: Literal["exact", "preprint", "ecai"] = "exact"
    name: str | None = None
    """What numbers under it are called."""
    normalize: bool | None = None
    """Embeddings are scaled to unit norm."""
    input_kernel: KernelSettings | None = None
    output_scale: OutputScale | None = None
    """Of the RBF on the targets: ``marginal`` is gamma = 1/(2 var y), ``residual`` takes the variance that a smooth fit
    leaves, ``multiscale`` is a sum of four gammas from the marginal one up."""
    output_kernel: KernelSettings | None = None
    regularization: Positive | None = None
    """Lambda; the system is K + n lambda I."""
    samples: int | None = Field(default=None, ge=1)
    """Draws from the version per row in place of exact kernel means."""
    draws: int | None = Field(default=None, ge=1)
    """How often these are redrawn, for mean and spread."""
    bootstraps: int | None = Field(default=None, ge=0)
    """Bootstrap samples of the reference split."""
    downsampling: DownsamplingSettings | None = None
    reference: Literal["test", "validation"] | None = None
    """The split that the conditional distribution is estimated on: the evaluated one, or ``reference:`` of the file."""

    def _contradictions(self) -> Iterator[str]:
        try:
            self.protocol()
        except ProtocolError as error:
            yield str(error)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"base": value} if isinstance(value, str) else value

    def protocol(self) -> EvaluationProtocol:
        """The protocol as a value."""
        given = {key: value for key, value in self if value is not None and key not in ("base", "name")}
        changes: dict[str, Any] = {
            key: value.kernel() if isinstance(value, KernelSettings) else value for key, value in given.items()
        }
        if self.downsampling is not None:
            changes["downsampling"] = Downsampling(**self.downsampling.model_dump())
        protocol = PROTOCOLS[self.base]
        if not changes:
            return protocol if self.name is None else replace(protocol, name=self.name)
        return replace(protocol, **changes, name=self.name or f"{self.base} (changed)")


class SolverSettings(Strict):
    """How the Gram system is solved; ``auto`` takes the cheapest answer whose certificate meets the aim.

    ``kind``: ``auto`` or ``cholesky``. ``auto`` is exact up to 5,000 rows; beyond, the answer stands on ``landmarks``;
    where none are named, on 512 to 4,096, as many as bring its certificate to a thousandth of the mean CCE or its noise
    floor, or promise to. ``cholesky`` is exact at any number of rows: beyond 10,000 by a tiled factorisation on the
    cluster, whose factor takes 4 n^2 bytes of its workers; ``memory`` (for example ``8 GiB``) is what it may take.
    """

    kind: Literal["auto", "cholesky"] = "auto"
    landmarks: int | None = Field(default=None, ge=1)
    memory: str | None = None

    @field_validator("memory")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None:
            from dask.utils import parse_bytes  # not at the start: a file is refused in a fraction of its import

            parse_bytes(value)
        return value


class TlsSettings(Strict):
    """PEM files with which a client shows who it is, and tells whether a scheduler is its own.

    Attributes:
        ca_file: certificates of those who sign for schedulers and workers.
        cert_file: this client's certificate.
        key_file: its private key.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path


CARD_SHARE_VARIABLE = "CONGRUENCE_CARD_SHARE"


class ClusterSettings(Strict):
    """Which Dask cluster an evaluation runs on.

    ``kind``: ``threads`` (in this process), ``local`` (worker processes on this machine), ``cuda`` (one worker per GPU,
    needs the [gpu] extra), ``address`` (an existing scheduler), ``kubernetes`` (the Dask operator, needs the
    [kubernetes] extra), ``spec`` (any Dask cluster class with its arguments, in a file).
    """

    kind: Literal["threads", "local", "cuda", "address", "kubernetes", "spec"] = "local"
    workers: int | None = Field(default=None, ge=1, description="worker processes; by default one per core (at most 8)")
    memory_per_worker: str | None = Field(default=None, description='for example "8 GiB"; by default an even share')
    address: str | None = Field(
        default=None, description="scheduler address of kind address: tcp://host:8786, or tls://host:8786"
    )
    tls: TlsSettings | None = Field(default=None, description="certificates for an address that begins with tls://")
    file: Path | None = Field(default=None, description="of kind spec: a cluster file, with class: and arguments:")
    image: str | None = Field(default=None, description="container image of kind kubernetes")
    namespace: str = Field(default="default", description="of kind kubernetes")
    card_memory: float = Field(
        default=0.8, gt=0, le=0.95, description="share of a card that evaluations may take together (kind cuda)"
    )
    evaluations_per_card: int = Field(
        default=1, ge=1, description="evaluations that may run on a card at a time and share card_memory (kind cuda)"
    )
    protocol: Literal["tcp", "ucx"] | None = Field(
        default=None,
        description="of kind cuda; by default ucx between several cards, tcp to one; with ucx the process that starts "
        "the cluster has a context on the first card, too",
    )
    dashboard: bool = Field(default=False, description="serve the Dask dashboard on a free loopback port")

    def _contradictions(self) -> Iterator[str]:
        if self.kind == "address" and self.address is None:
            yield "kind 'address' needs address: tcp://host:8786"
        if self.tls is not None and not (self.kind == "address" and str(self.address).startswith("tls://")):
            yield "tls belongs to kind 'address' with an address that begins with tls://, as tls://host:8786"
        given = {"card_memory", "evaluations_per_card", "protocol"} & {
            name for name, value in self if value != type(self).model_fields[name].default
        }
        if given and self.kind != "cuda":
            yield (
                f"{', '.join(sorted(given))} belong to kind 'cuda'; workers that others start get their share of "
                f"a card by the environment variable {CARD_SHARE_VARIABLE}"
            )
        if self.kind == "kubernetes" and self.image is None:
            yield "kind 'kubernetes' needs image: a container image with congruence installed"
        if (self.kind == "spec") != (self.file is not None):
            yield "kind 'spec' needs file: a cluster file with class: and arguments:; no other kind takes one"
        if self.kind == "spec" and (self.workers or self.memory_per_worker or self.image):
            yield "kind 'spec' takes workers, memory and image from its file; leave them out here"

    @property
    def card_share(self) -> float:
        """The part of a card that one evaluation may take."""
        return self.card_memory / self.evaluations_per_card

    @property
    def has_cards_of_its_own(self) -> bool:
        """Whether each of its workers has a card where there are some: a local cluster's share what is there."""
        return self.kind in ("cuda", "address", "kubernetes", "spec")


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
