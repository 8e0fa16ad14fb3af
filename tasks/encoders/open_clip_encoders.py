"""CLIP towers through open_clip: images and texts, of any model and tag, a local checkpoint, or the shipped one."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks import compact_clip
from congruence.tasks.encoders.base import InputKind, text_digest
from congruence.tasks.encoders.checkpoints import weights_from_hub
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.pixels import PixelPreprocessing
from congruence.tasks.encoders.settings import COMPACT, RANDOM, EncoderSettings
from congruence.tasks.encoders.torch_encoder import TorchEncoder, weights_digest
from congruence.tasks.open_clip_import import open_clip

_LOCAL = "local-dir:"
_HUB = "hf-hub:"
_HUB_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


def _check_tag(model: str, pretrained: str | None) -> None:
    tags = open_clip.list_pretrained_tags_by_model(model)
    if pretrained is None:
        raise InvalidInputError(
            f"encoder.model {model} needs encoder.pretrained: one of {', '.join(tags) or '(no tags known)'}, "
            f"the path of a checkpoint, or '{RANDOM}' for untrained weights"
        )
    if pretrained not in tags and not Path(pretrained).is_file():
        raise InvalidInputError(
            f"encoder.pretrained '{pretrained}' is neither a file nor a tag of {model}; "
            f"its tags are {', '.join(tags) or '(none)'}"
        )


def _check_model(model: str) -> None:
    known = open_clip.list_models()
    if model not in known:
        near = difflib.get_close_matches(model, known, n=3) or known[:3]
        raise InvalidInputError(
            f"encoder.model '{model}' is unknown to open_clip {open_clip.__version__}; near it are {', '.join(near)}; "
            f"'{COMPACT}' ships with the package, and '{_LOCAL}/folder' loads your own"
        )


def _check_folder(folder: Path) -> None:
    if not (folder / "open_clip_config.json").is_file():
        raise InvalidInputError(
            f"encoder.model: {folder} holds no open_clip_config.json; expected a saved open_clip model"
        )


@contextmanager
def _seeded_by(settings: EncoderSettings) -> Iterator[None]:
    # Untrained weights are a fixed function of torch's version; nobody else's random numbers move.
    with torch.random.fork_rng(enabled=settings.pretrained == RANDOM):
        if settings.pretrained == RANDOM:
            torch.manual_seed(0)
        yield


def _create(settings: EncoderSettings) -> tuple[Any, Any, str, str]:
    """The model in evaluation mode, its image transform, its name for open_clip, and its name for people."""
    asked = settings.model or COMPACT
    pretrained = settings.pretrained
    untrained = pretrained == RANDOM
    name, label = (compact_clip.model_name(), COMPACT) if asked == COMPACT else (asked, asked)
    hub: Any = nullcontext()
    if name.startswith((_LOCAL, _HUB)) and pretrained is not None and not untrained:
        raise InvalidInputError(f"encoder.model {label} brings its own weights: leave encoder.pretrained out")
    if name.startswith(_LOCAL):
        folder = Path(name.removeprefix(_LOCAL))
        _check_folder(folder)
        label = label if label == COMPACT else folder.name
    elif name.startswith(_HUB):
        hub = weights_from_hub(asked, name.removeprefix(_HUB), _HUB_WEIGHTS)
    else:
        _check_model(name)
        if not untrained:
            _check_tag(name, pretrained)
            label = f"{name}/{Path(str(pretrained)).name}"
            if not Path(str(pretrained)).is_file():
                hub = _hub_of_tag(name, str(pretrained))
    precision = "pure_bf16" if settings.precision == "pure_bf16" else "fp32"
    with hub, _seeded_by(settings):
        try:
            model, _, transform = open_clip.create_model_and_transforms(
                name,
                pretrained=None if untrained or name.startswith((_LOCAL, _HUB)) else pretrained,
                load_weights=not untrained,
                require_pretrained=not untrained,
                precision=precision,
            )
        except FileNotFoundError as error:
            raise CongruenceError(f"encoder.model {label}: {error}") from error
        except RuntimeError as error:
            raise CongruenceError(f"encoder.model {label} could not be loaded: {error}") from error
    return model.eval(), transform, name, f"{label}/{RANDOM}" if untrained else label


def _hub_of_tag(model: str, tag: str) -> Any:
    source = str(open_clip.get_pretrained_cfg(model, tag).get("hf_hub", ""))
    repository, _, filename = source.rpartition("/")
    return weights_from_hub(f"{model}/{tag}", repository, (filename, *_HUB_WEIGHTS) if filename else _HUB_WEIGHTS)


class OpenClipImageEncoder(TorchEncoder):
    """The image tower of a CLIP model; rows are encoded images (JPEG, PNG, ...)."""

    input_kind: InputKind = "image"

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        model, transform, _, label = _create(settings)
        self._pixels = PixelPreprocessing(transform, settings.max_pixels)
        self.preprocessing_digest = self._pixels.digest
        self.id = f"open_clip:{label}:{weights_digest(model.visual.state_dict())}:{self.precision}"
        self._model = model.to(self.device)
        self._dtype = next(model.visual.parameters()).dtype
        height, width = _image_size(model)
        self.dimension = self.measure_dimension(torch.zeros((height, width, 3), dtype=torch.uint8))

    def preprocess(self, raw: Any) -> torch.Tensor:
        """Image bytes to an 8-bit tensor (height, width, 3)."""
        return self._pixels.row(raw)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Raw (not normalised) image embeddings."""
        features: torch.Tensor = self._model.encode_image(self._pixels.batch(batch).to(self._dtype))
        return features


def _image_size(model: Any) -> tuple[int, int]:
    """Height and width of the images that an open_clip model takes."""
    size = model.visual.image_size
    return (int(size), int(size)) if isinstance(size, int) else (int(size[0]), int(size[1]))


class OpenClipTextEncoder(TorchEncoder):
    """The text tower of a CLIP model; rows are strings, cut off where the model's context ends."""

    input_kind: InputKind = "text"

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        model, _, name, label = _create(settings)
        try:
            self._tokenizer = open_clip.get_tokenizer(name)
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
        self._model = model.to(self.device)
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
