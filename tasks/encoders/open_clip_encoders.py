"""CLIP towers through open_clip: images and texts, of any model and tag, a local checkpoint, or the shipped one."""

import difflib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.compact_clip.location import model_name
from congruence.tasks.encoders.base import InputKind, text_digest
from congruence.tasks.encoders.checkpoints import UNREADABLE, hub_files, weights_from_hub, why_unreadable
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.open_clip_import import open_clip
from congruence.tasks.encoders.settings import COMPACT, RANDOM, EncoderSettings
from congruence.tasks.encoders.torch_encoder import ImageEncoder, TorchEncoder, fixed_seed, weights_digest

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


@dataclass(frozen=True)
class _Created:
    """The model in evaluation mode, its image transform, its names for open_clip and for people, and its files."""

    model: Any
    transform: Any
    name: str
    label: str
    files: tuple[Path, ...] | None


def _create(settings: EncoderSettings) -> _Created:
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
    label = f"{checkpoint.label}/{RANDOM}" if untrained else checkpoint.label
    return _Created(model.eval(), transform, checkpoint.name, label, checkpoint.files())


class OpenClipImageEncoder(ImageEncoder):
    """The image tower of a CLIP model; rows are encoded images (JPEG, PNG, ...)."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        created = _create(settings)
        model, label, self.weight_files = created.model, created.label, created.files
        self.use_transform(created.transform, settings.max_pixels)
        self.id = f"open_clip:{label}:{weights_digest(model.visual.state_dict())}:{self.precision}"
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
        created = _create(settings)
        model, label, self.weight_files = created.model, created.label, created.files
        try:
            self._tokenizer = open_clip.get_tokenizer(created.name)
        except ImportError as error:
            raise CongruenceError(
                f"the tokenizer of {label} needs another package ({error}); install it: pip install transformers"
            ) from error
        tower = {k: v for k, v in model.state_dict().items() if not k.startswith("visual.")}
        self.id = f"open_clip_text:{label}:{weights_digest(tower)}:{self.precision}"
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
