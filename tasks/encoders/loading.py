"""From settings to an encoder; its name, known without loading it, and what it knows of inputs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.runtime.files import digest_of, load_record, save_record
from congruence.tasks.settings.sections import EncoderSettings

_OF_TORCH = {"open_clip": "open_clip", "open_clip_text": "open_clip", "timm": "timm"}  # the packages of kinds
_CLASSES = {
    "open_clip": ("pretrained", "OpenClipImageEncoder"),
    "open_clip_text": ("pretrained", "OpenClipTextEncoder"),
    "timm": ("pretrained", "TimmImageEncoder"),
    "statistics": ("images", "PictureStatisticsEncoder"),
    "identity": ("base", "FeatureEncoder"),
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
