"""Encoders with trained weights, of open_clip and timm, and whether these weights are at hand."""

from __future__ import annotations

import difflib
import os
import pickle
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import huggingface_hub
import torch
from huggingface_hub import constants
from safetensors import SafetensorError

from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.compact_clip import model_name
from congruence.tasks.encoders.base import InputKind, InvalidRow
from congruence.tasks.encoders.open_clip_import import open_clip, timm
from congruence.tasks.encoders.torch_encoder import ImageEncoder, TorchEncoder, fixed_seed, weights_digest
from congruence.tasks.runtime.files import text_digest
from congruence.tasks.settings.sections import COMPACT, RANDOM, EncoderSettings

PROBE_SECONDS = 2.0

UNREADABLE = (
    RuntimeError,
    ValueError,
    TypeError,
    EOFError,
    LookupError,
    AttributeError,
    AssertionError,
    StopIteration,
    pickle.UnpicklingError,
    SafetensorError,
)
"""What the libraries raise for a checkpoint of another model, a broken one, or a pickle that would run code."""

_LONGEST = 300


def why_unreadable(error: Exception) -> str:
    """What is wrong with a checkpoint, in one line, by what a library raised (one of ``UNREADABLE``)."""
    said = " ".join(str(error).split())
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in said:  # torch advises to run what is in the file
        return "it holds more than tensors: a pickle that would run code, or a TorchScript archive"
    return f"{type(error).__name__}: {said[:_LONGEST]}"


class WeightsUnavailableError(CongruenceError):
    """An encoder whose weights are neither on this machine nor within reach: says how to get them."""


def hub_files(repository: str, filenames: Sequence[str]) -> tuple[Path, ...] | None:
    """The files of a hub repository in this machine's cache, and the one that says which revision they are of.

    None where the cache holds none of ``filenames``.
    """
    found = [huggingface_hub.try_to_load_from_cache(repository, name) for name in filenames]
    paths = [Path(item) for item in found if isinstance(item, str)]
    if not paths:
        return None
    snapshot = paths[0].parent  # <repository>/snapshots/<revision>
    revision = snapshot.parents[1] / "refs" / "main"
    beside = [item for item in snapshot.iterdir() if item.suffix == ".json"]
    return tuple(sorted({*paths, *beside, *([revision] if revision.is_file() else [])}))


def _answers(url: str) -> bool:
    """Whether the host answers at all; a refusal is an answer, silence and an unknown name are not."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True
    except urllib.error.URLError as error:
        # A certificate that this interpreter does not know says that somebody is there.
        return isinstance(error.reason, ssl.SSLError)
    except (OSError, ValueError):
        return False


def _reachable(url: str) -> bool:
    answers: list[bool] = []
    # In a thread, since looking up a name obeys no timeout.
    probe = threading.Thread(target=lambda: answers.append(_answers(url)), daemon=True)
    probe.start()
    probe.join(PROBE_SECONDS + 0.5)
    return bool(answers and answers[0])


@contextmanager
def _without_network() -> Iterator[None]:
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


@contextmanager
def weights_from_hub(model: str, repository: str, filenames: Sequence[str]) -> Iterator[None]:
    """Load weights of a hub repository inside this context: from the cache where it holds them, else by download.

    Raises:
        WeightsUnavailableError: at once where neither is possible; and where a download breaks off.
    """
    if hub_files(repository, filenames) is not None:
        # No look-up of a newer revision: the same machine keeps embedding with the same weights.
        with _without_network():
            yield
        return
    if constants.HF_HUB_OFFLINE:
        raise WeightsUnavailableError(_remedy(model, repository, "HF_HUB_OFFLINE forbids a download"))
    if not _reachable(constants.ENDPOINT):
        raise WeightsUnavailableError(_remedy(model, repository, f"{constants.ENDPOINT} does not answer"))
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise WeightsUnavailableError(_remedy(model, repository, f"the download failed: {error}")) from error


def _remedy(model: str, repository: str, cause: str) -> str:
    cache = os.environ.get("HF_HUB_CACHE", constants.HF_HUB_CACHE)
    return (
        f"the weights of {model} are not on this machine and {cause}: run `hf download {repository}` where there is a "
        f"network and copy its cache to {cache}, or set encoder.pretrained to the path of a checkpoint, or use "
        "encoder: {kind: statistics}, which needs no weights (model: compact, which ships with the package, knows "
        "digits alone)"
    )


_LOCAL = "local-dir:"
_HUB = "hf-hub:"
_HUB_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


@dataclass(frozen=True)
class _Checkpoint:
    """What open_clip is asked for, what people call it, and which files hold it once it is loaded."""

    name: str
    pretrained: str | None
    label: str
    hub: AbstractContextManager[None]
    files: Callable[[], tuple[Path, ...] | None]


def _local(name: str, label: str) -> _Checkpoint:
    folder = Path(name.removeprefix(_LOCAL))
    if not (folder / "open_clip_config.json").is_file():
        raise InvalidInputError(f"encoder.model: {folder} holds no open_clip_config.json, so it is no open_clip model")
    files = tuple(sorted(item for item in folder.iterdir() if item.is_file()))
    return _Checkpoint(name, None, label, nullcontext(), lambda: files)


def _named(model: str, pretrained: str | None) -> _Checkpoint:
    tags = open_clip.list_pretrained_tags_by_model(model)
    if pretrained is None:
        raise InvalidInputError(
            f"encoder.model {model} needs encoder.pretrained: one of {', '.join(tags) or '(no tags known)'}, "
            f"the path of a checkpoint, or '{RANDOM}' for untrained weights"
        )
    if pretrained == RANDOM:
        return _Checkpoint(model, None, model, nullcontext(), lambda: ())
    if pretrained in tags:
        source = str(open_clip.get_pretrained_cfg(model, pretrained).get("hf_hub", ""))
        repository, _, filename = source.rpartition("/")
        filenames = (filename, *_HUB_WEIGHTS) if filename else _HUB_WEIGHTS
        label = f"{model}/{pretrained}"
        hub = weights_from_hub(label, repository, filenames)
        return _Checkpoint(model, pretrained, label, hub, lambda: hub_files(repository, filenames))
    if Path(pretrained).is_file():
        file = Path(pretrained)
        return _Checkpoint(model, pretrained, f"{model}/{file.name}", nullcontext(), lambda: (file.resolve(),))
    raise InvalidInputError(
        f"encoder.pretrained '{pretrained}' is neither a file nor a tag of {model}; "
        f"its tags are {', '.join(tags) or '(none)'}"
    )


def _checkpoint(settings: EncoderSettings) -> _Checkpoint:
    model = settings.model or COMPACT
    brings_weights = model == COMPACT or model.startswith((_LOCAL, _HUB))
    if brings_weights and settings.pretrained not in (None, RANDOM):
        raise InvalidInputError(f"encoder.model {model} brings its own weights: leave encoder.pretrained out")
    if model == COMPACT:
        return _local(model_name(), COMPACT)
    if model.startswith(_LOCAL):
        return _local(model, Path(model.removeprefix(_LOCAL)).name)
    if model.startswith(_HUB):
        repository = model.removeprefix(_HUB)
        hub = weights_from_hub(model, repository, _HUB_WEIGHTS)
        return _Checkpoint(model, None, model, hub, lambda: hub_files(repository, _HUB_WEIGHTS))
    known = open_clip.list_models()
    if model not in known:
        near = difflib.get_close_matches(model, known, n=3) or known[:3]
        raise InvalidInputError(
            f"encoder.model '{model}' is unknown to open_clip {open_clip.__version__}; near it are {', '.join(near)}; "
            f"'{COMPACT}' ships with the package, and '{_LOCAL}/folder' loads your own"
        )
    return _named(model, settings.pretrained)


def _create(settings: EncoderSettings) -> tuple[Any, Any, _Checkpoint]:
    """The model in evaluation mode, its image transform, and what it was made of."""
    checkpoint = _checkpoint(settings)
    untrained = settings.pretrained == RANDOM
    try:
        with checkpoint.hub, fixed_seed():
            model, _, transform = open_clip.create_model_and_transforms(
                checkpoint.name,
                pretrained=checkpoint.pretrained,
                load_weights=not untrained,
                require_pretrained=not untrained,
                precision="pure_bf16" if settings.precision == "pure_bf16" else "fp32",
            )
    except (FileNotFoundError, *UNREADABLE) as error:
        raise CongruenceError(
            f"encoder.model {checkpoint.label} could not be loaded ({why_unreadable(error)}); its weights must be the "
            "state dict of that architecture, as safetensors or as torch.save(model.state_dict(), ...) leaves it"
        ) from error
    return (
        model.eval(),
        transform,
        replace(checkpoint, label=f"{checkpoint.label}/{RANDOM}") if untrained else checkpoint,
    )


class OpenClipImageEncoder(ImageEncoder):
    """The image tower of a CLIP model; rows are encoded images (JPEG, PNG, ...)."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        model, transform, checkpoint = _create(settings)
        self.weight_files = checkpoint.files()
        self.use_transform(transform, settings.max_pixels)
        self.id = f"open_clip:{checkpoint.label}:{weights_digest(model.visual.state_dict())}:{self.precision}"
        self._model = self.placed(model)
        self._dtype = next(model.visual.parameters()).dtype
        size = model.visual.image_size
        height, width = (size, size) if isinstance(size, int) else size
        self.dimension = self.measure_dimension(torch.zeros((height, width, 3), dtype=torch.uint8))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Raw (not normalised) image embeddings."""
        features: torch.Tensor = self._model.encode_image(self.pixels(batch))
        return features


class OpenClipTextEncoder(TorchEncoder):
    """The text tower of a CLIP model; rows are strings, cut off where the model's context ends."""

    input_kind: InputKind = "text"

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        model, _, checkpoint = _create(settings)
        self.weight_files = checkpoint.files()
        try:
            self._tokenizer = open_clip.get_tokenizer(checkpoint.name)
        except ImportError as error:
            raise CongruenceError(
                f"the tokenizer of {checkpoint.label} needs another package ({error}); install it: "
                "pip install transformers"
            ) from error
        tower = {k: v for k, v in model.state_dict().items() if not k.startswith("visual.")}
        self.id = f"open_clip_text:{checkpoint.label}:{weights_digest(tower)}:{self.precision}"
        self.preprocessing_digest = text_digest(
            type(self._tokenizer).__name__,
            self._tokenizer.context_length,
            *(self._tokenizer([sample]).tolist() for sample in ("The quick brown fox.", "éß 42", "a " * 200)),
        )
        self._model = self.placed(model)
        self.dimension = self.measure_dimension(self.preprocess("a text"))

    def preprocess(self, raw: Any) -> torch.Tensor:
        """A string to its tokens, an integer tensor (context_length,)."""
        if not isinstance(raw, str):
            raise InvalidRow(f"expected a text, found {type(raw).__name__}")
        if not raw.strip():
            raise InvalidRow("the text is empty")
        tokens: torch.Tensor = self._tokenizer([raw])[0]
        return tokens

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Raw (not normalised) text embeddings."""
        features: torch.Tensor = self._model.encode_text(batch)
        return features


_TIMM_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


def _check_model(name: str) -> None:
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        near = difflib.get_close_matches(architecture, timm.list_models(), n=3) or timm.list_models()[:3]
        raise InvalidInputError(
            f"encoder.model '{name}' is unknown to timm {timm.__version__}; near it are {', '.join(near)}"
        )
    tags = [known.partition(".")[2] for known in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        raise InvalidInputError(f"encoder.model '{name}': {architecture} has no tag '{tag}'; it has {', '.join(tags)}")


def _create_timm(name: str, pretrained: str | None) -> tuple[Any, tuple[Path, ...] | None]:
    """The model, and the files that its weights were read from."""
    _check_model(name)
    if pretrained == RANDOM:
        with fixed_seed():
            return timm.create_model(name, pretrained=False, num_classes=0), ()
    hub: Any = nullcontext()
    overlay, repository = {}, None
    if pretrained is None:
        configuration = timm.get_pretrained_cfg(name)
        repository = configuration.hf_hub_id if configuration is not None else None
        if not repository:
            raise InvalidInputError(
                f"encoder.model '{name}' has no published weights: set encoder.pretrained to the path of a checkpoint"
            )
        hub = weights_from_hub(name, repository, _TIMM_WEIGHTS)
    elif Path(pretrained).is_file():
        overlay = {"pretrained_cfg_overlay": {"file": pretrained}}
    else:
        raise InvalidInputError(
            f"encoder.pretrained '{pretrained}' is no file; timm models carry their tag in encoder.model, "
            f"for example one of {', '.join(timm.list_pretrained(name.partition('.')[0] + '.*')[:3])}"
        )
    try:
        with hub:
            model = timm.create_model(name, pretrained=True, num_classes=0, **overlay)
    except UNREADABLE as error:
        raise CongruenceError(f"encoder.model '{name}' could not be loaded: {why_unreadable(error)}") from error
    return model, hub_files(str(repository), _TIMM_WEIGHTS) if pretrained is None else (Path(pretrained).resolve(),)


class TimmImageEncoder(ImageEncoder):
    """Pooled features of a timm backbone; rows are encoded images."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        name = str(settings.model)
        model, self.weight_files = _create_timm(name, settings.pretrained)
        model.eval()
        data = timm.data.resolve_model_data_config(model)
        self.use_transform(timm.data.create_transform(**data, is_training=False), settings.max_pixels)
        self._dtype = torch.bfloat16 if self.precision == "pure_bf16" else torch.float32
        self._model = self.placed(model.to(self._dtype))
        source = "" if settings.pretrained is None else f"/{Path(settings.pretrained).name}"
        self.id = f"timm:{name}{source}:{weights_digest(model.state_dict())}:{self.precision}"
        _, height, width = data["input_size"]
        self.dimension = self.measure_dimension(torch.zeros((height, width, 3), dtype=torch.uint8))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Pooled features (b, dimension)."""
        features: torch.Tensor = self._model(self.pixels(batch))
        return features
