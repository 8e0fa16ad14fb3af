"""Image backbones of timm, without their classifier."""

import difflib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.encoders.checkpoints import UNREADABLE, hub_files, weights_from_hub, why_unreadable
from congruence.tasks.encoders.open_clip_import import timm
from congruence.tasks.encoders.settings import RANDOM, EncoderSettings
from congruence.tasks.encoders.torch_encoder import ImageEncoder, fixed_seed, weights_digest

_HUB_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


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


def _create(name: str, pretrained: str | None) -> Any:
    _check_model(name)
    if pretrained == RANDOM:
        with fixed_seed():
            return timm.create_model(name, pretrained=False, num_classes=0)
    hub: Any = nullcontext()
    overlay = {}
    if pretrained is None:
        configuration = timm.get_pretrained_cfg(name)
        repository = configuration.hf_hub_id if configuration is not None else None
        if not repository:
            raise InvalidInputError(
                f"encoder.model '{name}' has no published weights: set encoder.pretrained to the path of a checkpoint"
            )
        hub = weights_from_hub(name, repository, _HUB_WEIGHTS)
    elif Path(pretrained).is_file():
        overlay = {"pretrained_cfg_overlay": {"file": pretrained}}
    else:
        raise InvalidInputError(
            f"encoder.pretrained '{pretrained}' is no file; timm models carry their tag in encoder.model, "
            f"for example one of {', '.join(timm.list_pretrained(name.partition('.')[0] + '.*')[:3])}"
        )
    try:
        with hub:
            return timm.create_model(name, pretrained=True, num_classes=0, **overlay)
    except UNREADABLE as error:
        raise CongruenceError(f"encoder.model '{name}' could not be loaded: {why_unreadable(error)}") from error


def _files(name: str, pretrained: str | None) -> tuple[Path, ...] | None:
    """The files that the weights were read from."""
    if pretrained == RANDOM:
        return ()
    if pretrained is not None:
        return (Path(pretrained).resolve(),)
    return hub_files(timm.get_pretrained_cfg(name).hf_hub_id, _HUB_WEIGHTS)


class TimmImageEncoder(ImageEncoder):
    """Pooled features of a timm backbone; rows are encoded images."""

    def __init__(self, settings: EncoderSettings) -> None:
        super().__init__(settings)
        name = str(settings.model)
        model = _create(name, settings.pretrained).eval()
        self.weight_files = _files(name, settings.pretrained)
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
