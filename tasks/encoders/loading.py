"""From settings to an encoder; its name, known without loading it, and what it knows of inputs."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.encoders.base import Encoder, InputKind, InvalidRow
from congruence.tasks.runtime.files import digest_of, load_record, save_record, text_digest
from congruence.tasks.settings.sections import EncoderSettings

_DIGITS = 12

Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and scale of each feature, for EncoderSettings."""

_as_list = PlainSerializer(lambda values: values.tolist())
_Floats = Annotated[NDArray[np.float64], PlainValidator(partial(np.array, dtype=np.float64)), _as_list]
_Counts = Annotated[NDArray[np.int64], PlainValidator(partial(np.array, dtype=np.int64)), _as_list]
"""As lists where pydantic writes them into a manifest."""


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of each feature, (d,) each; sums of them are those of all their rows.

    Attributes:
        origin: a value of each feature, which ``mean`` is counted from: large offsets then cost no digits, and a
            feature that never varies is exactly 0.
        count: values of it; rows may lack some (NaN).
        mean: less the origin.
        squares: sum of squared deviations from the mean.
    """

    origin: _Floats
    count: _Counts
    mean: _Floats
    squares: _Floats

    @classmethod
    def of(cls, rows: NDArray[np.float64]) -> Moments:
        """Of finite or missing values, (n, d)."""
        known = ~np.isnan(rows)
        count = known.sum(axis=0)
        if not len(rows):
            return cls(np.zeros(rows.shape[1]), count, np.zeros(rows.shape[1]), np.zeros(rows.shape[1]))
        first = rows[np.argmax(known, axis=0), np.arange(rows.shape[1])]
        origin = np.where(count > 0, first, 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            values = rows - origin
            whole = bool(known.all())
            mean = (values if whole else np.where(known, values, 0.0)).sum(axis=0) / np.maximum(count, 1)
            values -= mean
            np.square(values, out=values)
            squares = (values if whole else np.where(known, values, 0.0)).sum(axis=0)
        return cls(origin, count, mean, squares)

    def __add__(self, other: Moments) -> Moments:
        """Of both together (Chan, Golub and LeVeque 1979, equations 2.1)."""
        count = self.count + other.count
        some = np.maximum(count, 1)
        origin = np.where(self.count > 0, self.origin, other.origin)
        with np.errstate(over="ignore", invalid="ignore"):
            delta = other.mean + (other.origin - origin) - self.mean
            mean = self.mean + delta * (other.count / some)
            squares = self.squares + other.squares + delta**2 * (self.count * other.count / some)
        return Moments(origin, count, mean, squares)


def statistics(found: Moments | None, dimension: int | None = None) -> Statistics:
    """Mean and scale of features by their moments, the scale of one that never varies being 1.

    Rounded to twelve digits of the scale, so that how rows are read hardly shows.

    Raises:
        InvalidInputError: no row can be used, or a feature's squares overflow.
    """
    if found is None or dimension not in (None, len(found.count)) or not found.count.any():
        expected = "" if dimension is None else f" with {dimension} values"
        raise InvalidInputError(f"no row of finite features{expected} to standardise by")
    never = np.flatnonzero(found.count == 0)
    if never.size:
        raise InvalidInputError(f"feature {never[0]} has no value in any row; leave it out of the input")
    overflow = np.flatnonzero(~np.isfinite(found.squares))
    if overflow.size:
        raise InvalidInputError(f"feature {overflow[0]} is too large to standardise by; rescale it")
    deviation = np.sqrt(found.squares / found.count)
    scale = [float(f"{value:.{_DIGITS}g}") or 1.0 for value in deviation.tolist()]
    mean = [
        round(value, _DIGITS - math.floor(math.log10(unit)))
        for value, unit in zip((found.origin + found.mean).tolist(), scale, strict=True)
    ]
    return tuple(mean), tuple(scale)


class FeatureEncoder(Encoder):
    """(features - mean) / scale, feature by feature; rows are 1-D arrays of numbers, see ``EncoderSettings.missing``.

    Attributes:
        features: how many there are; ``dimension`` is twice that with indicators of the missing ones.
    """

    input_kind: InputKind = "features"

    def __init__(self, settings: EncoderSettings) -> None:
        known = (settings.dimension, settings.mean and len(settings.mean), settings.scale and len(settings.scale))
        self.features = next(int(size) for size in known if size)
        self.takes_missing = settings.takes_missing
        self._indicates = settings.missing == "indicator"
        self.dimension = self.features * (2 if self._indicates else 1)
        self._mean = np.asarray(settings.mean or np.zeros(self.features), dtype=np.float64)
        self._scale = np.asarray(settings.scale or np.ones(self.features), dtype=np.float64)
        self.batch_size = settings.given_batch_size or 4096
        self.preprocessing_digest = text_digest(
            "standardisation",
            [float(m).hex() for m in self._mean],
            [float(s).hex() for s in self._scale],
            *([f"missing {settings.missing}"] if settings.takes_missing else []),
        )
        self.id = f"identity:{self.dimension}"

    def preprocess(self, raw: Any) -> NDArray[np.float64]:
        """The standardised row; InvalidRow where it has another length or a value that cannot be used."""
        try:
            row = np.asarray(raw, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InvalidRow(f"the features are not numbers: {error}") from error
        if row.shape != (self.features,):
            raise InvalidRow(f"the features have shape {row.shape}; expected ({self.features},)")
        wrong = np.flatnonzero(np.isinf(row) if self.takes_missing else ~np.isfinite(row))
        if wrong.size:
            more = f" and {wrong.size - 1} more" if wrong.size > 1 else ""
            raise InvalidRow(f"feature {wrong[0]} is {row[wrong[0]]}{more}")
        return self._standardised(row)

    def encode(self, batch: list[Any]) -> NDArray[np.float32]:
        """The rows as one array; a number too large for float32 becomes infinite."""
        with np.errstate(over="ignore"):
            return np.asarray(batch, dtype=np.float32).reshape(len(batch), self.dimension)

    def encode_matrix(self, rows: NDArray[np.float64]) -> NDArray[np.float32]:
        """Many raw rows at once, to the same bytes as one by one; not finite where `preprocess` refuses the row."""
        if rows.shape[1] != self.features:
            return np.full((len(rows), self.dimension), np.nan, dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self._standardised(rows), dtype=np.float32)

    def _standardised(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of (..., features); the mean, which is 0 here, stands in for what is missing."""
        values = np.asarray((rows - self._mean) / self._scale)
        if not self.takes_missing:
            return values
        absent = np.isnan(rows)
        values[absent] = 0.0
        return np.concatenate([values, absent.astype(np.float64)], axis=-1) if self._indicates else values


_OF_TORCH = {"open_clip": "open_clip", "open_clip_text": "open_clip", "timm": "timm"}  # the packages of kinds
_CLASSES = {
    "open_clip": ("pretrained", "OpenClipImageEncoder"),
    "open_clip_text": ("pretrained", "OpenClipTextEncoder"),
    "timm": ("pretrained", "TimmImageEncoder"),
    "statistics": ("images", "PictureStatisticsEncoder"),
    "identity": ("loading", "FeatureEncoder"),
}
"""The module and the class of each kind, imported where it is asked for: torch, open_clip and timm take seconds."""


def load_encoder(settings: EncoderSettings) -> Encoder:
    """The encoder of the settings, weights and all.

    Raises:
        WeightsUnavailableError: weights that are neither on this machine nor within reach.
        InvalidInputError: a model, tag, path or device that does not exist; names those that do. Features whose
            statistics are not fitted yet.
    """
    if settings.kind in _OF_TORCH:
        require_image_packages(f"encoder.kind {settings.kind}", "torch", _OF_TORCH[settings.kind])
    if settings.needs_statistics:
        raise InvalidInputError(
            "encoder: mean and scale of the features are neither given nor fitted; give them, or set standardise: false"
        )
    if settings.kind not in _CLASSES:
        return _custom(settings)
    module, name = _CLASSES[settings.kind]
    made: Encoder = getattr(importlib.import_module(f"congruence.tasks.encoders.{module}"), name)(settings)
    return made


def require_image_packages(what: str, *packages: str) -> None:
    """Raise InvalidInputError where packages that ``what`` needs are not installed: tables are evaluated without."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InvalidInputError(
            f"{what} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not installed; "
            "run: pip install 'congruence[images]'"
        )


def warm_encoder(settings: EncoderSettings) -> Encoder:
    """The encoder of these settings, loaded at most once in this process while it is one of the two asked last."""
    return _warm(settings.model_dump_json(exclude_unset=True))


@lru_cache(maxsize=2)
def _warm(settings: str) -> Encoder:
    return load_encoder(EncoderSettings.model_validate_json(settings))


def asking_encoder(settings: EncoderSettings) -> Encoder:
    """The encoder as a process needs it that embeds nothing and asks for its names alone: on the processor.

    A flow beside a card would take memory of it that its workers then lack; or has no card, where they have.
    """
    if settings.device != "cpu" and settings.kind in _OF_TORCH:
        require_image_packages(f"encoder.kind {settings.kind}", "torch", _OF_TORCH[settings.kind])
        import torch

        if settings.device != "auto" or torch.cuda.is_available():
            settings = settings.model_copy(update={"device": "cpu"})
    return warm_encoder(settings)


def _custom(settings: EncoderSettings) -> Encoder:
    path = str(settings.path)
    module_name, separator, name = path.partition(":")
    if not (module_name and separator and name):
        raise InvalidInputError(f"encoder.path '{path}' is not of the form package.module:callable")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidInputError(
            f"encoder.path '{path}': {module_name} cannot be imported ({error}); install it, or put its folder on "
            "PYTHONPATH, of every worker too (a file in this folder: PYTHONPATH=. congruence ...)"
        ) from error
    make = getattr(module, name, None)
    if not callable(make):
        raise InvalidInputError(f"encoder.path '{path}': {module_name} has no callable '{name}'")
    encoder = make(**settings.options)
    if not isinstance(encoder, Encoder):
        raise InvalidInputError(
            f"encoder.path '{path}' returned {type(encoder).__name__}; "
            "expected a congruence.tasks.encoders.base.Encoder"
        )
    if settings.given_batch_size is not None:
        encoder.use_batch_size(settings.given_batch_size)
        encoder.searches_batch_size = False
    return encoder


_FORMAT = 1
_LIBRARIES = ("torch", "torchvision", "open_clip_torch", "timm", "transformers", "pillow", "numpy")


@dataclass(frozen=True)
class EncoderIdentity:
    """What embeddings and protocols are named by: see ``Encoder.id`` and ``Encoder.preprocessing_digest``."""

    id: str
    preprocessing_digest: str


def encoder_identity(settings: EncoderSettings, folder: Path) -> EncoderIdentity:
    """The identity of the encoder of ``settings``, from ``folder`` where it was kept there, else by loading it.

    Kept for every encoder whose weights come from files that are known: until one of them, the settings, a library or
    the code of our encoders changes. Loading an encoder takes seconds, looking at its files none.

    Of tabular features the settings hold the statistics.

    Raises:
        CongruenceError: not kept, and an encoder that cannot be loaded.
    """
    if settings.kind == "identity":
        made = load_encoder(settings)
        return EncoderIdentity(made.id, made.preprocessing_digest)
    path = _path(settings, folder)
    content = load_record(path)
    with suppress(OSError):  # a file that is gone
        if content is not None and content["files"] == _states(content["files"]):
            return EncoderIdentity(**content["encoder"])
    encoder = asking_encoder(settings)  # held by this process, which asks it for more
    found = EncoderIdentity(encoder.id, encoder.preprocessing_digest)
    if encoder.weight_files is not None:  # one of the user's own may depend on anything
        with suppress(OSError):  # it only saves time
            save_record(path, {"encoder": asdict(found), "files": _states(encoder.weight_files)})
    return found


def _path(settings: EncoderSettings, folder: Path) -> Path:
    """Named by everything but the files: the settings that matter, the libraries, and the code of our encoders."""
    described = settings.model_dump_json(exclude={"batch_size", "device"})
    parts = [str(_FORMAT), described, *(f"{name} {_version(name)}" for name in _LIBRARIES), _own_code()]
    return folder / f"{digest_of(parts)}.json"


def _states(files: Iterable[str | Path]) -> dict[str, str]:
    """Size, times and inode of each file, by its path: what tells whether it changed without reading it.

    Raises:
        OSError: a file that is not there.
    """
    states = {}
    for file in files:
        found = os.stat(file)
        states[str(file)] = f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino} {found.st_dev}"
    return states


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


@cache
def _own_code() -> str:
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


_KNOWN = {
    "open_clip": "CLIP {}, which knows what its training pictures and their captions say",
    "open_clip_text": "the text tower of CLIP {}, which knows short captions of pictures",
    "timm": "{}, which knows the classes that it was trained on",
    "statistics": "plain picture statistics, which know how a picture looks and not what is on it",
    "identity": "the features themselves",
}


def what_it_knows(encoder_id: str) -> str:
    """Which encoder looked at the inputs, by its id, and what it knows of them."""
    kind, _, rest = encoder_id.partition(":")
    model = rest.partition(":")[0]
    if model.endswith("/random"):
        return f"{model} without training, which knows nothing"
    if kind == "open_clip" and model == "compact":
        return "the compact CLIP, which knows handwritten digits and nothing else"
    return _KNOWN[kind].format(model) if kind in _KNOWN else f"{encoder_id}, an encoder of your own"
