"""From settings to an encoder."""

import importlib
from functools import lru_cache
from importlib.util import find_spec

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.features import FeatureEncoder
from congruence.tasks.encoders.settings import EncoderSettings

_OF_TORCH = {"open_clip": "open_clip", "open_clip_text": "open_clip", "timm": "timm"}  # the packages of kinds


def load_encoder(settings: EncoderSettings) -> Encoder:
    """The encoder of the settings, weights and all.

    Raises:
        WeightsUnavailableError: weights that are neither on this machine nor within reach.
        InvalidInputError: a model, tag, path or device that does not exist; names those that do. Features whose
            statistics are not fitted yet.
    """
    # torch, open_clip and timm take seconds to import, and only these encoders need them.
    if settings.kind in _OF_TORCH:
        require_image_packages(f"encoder.kind {settings.kind}", "torch", _OF_TORCH[settings.kind])
    if settings.kind == "open_clip":
        from congruence.tasks.encoders.open_clip_encoders import OpenClipImageEncoder

        return OpenClipImageEncoder(settings)
    if settings.kind == "open_clip_text":
        from congruence.tasks.encoders.open_clip_encoders import OpenClipTextEncoder

        return OpenClipTextEncoder(settings)
    if settings.kind == "timm":
        from congruence.tasks.encoders.timm_encoder import TimmImageEncoder

        return TimmImageEncoder(settings)
    if settings.kind == "statistics":
        from congruence.tasks.encoders.picture_statistics import PictureStatisticsEncoder

        return PictureStatisticsEncoder(settings)
    if settings.needs_statistics:
        raise InvalidInputError(
            "encoder: mean and scale of the features are neither given nor fitted; fit them with "
            "congruence.tasks.encoders.moments.standardisation, give them, or set standardise: false"
        )
    if settings.kind == "identity":
        return FeatureEncoder(settings)
    return _custom(settings)


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
            f"encoder.path '{path}' returned {type(encoder).__name__}; expected a congruence.tasks.encoders.Encoder"
        )
    if settings.given_batch_size is not None:
        encoder.use_batch_size(settings.given_batch_size)
        encoder.searches_batch_size = False
    return encoder
