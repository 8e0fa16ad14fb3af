"""Which encoder embeds the inputs, and how."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

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

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> Self:
        # By value, not by presence: settings that went through JSON name every key.
        defaults = type(self).model_fields
        given = {key for key, value in self if value != defaults[key].get_default(call_default_factory=True)}
        if self.kind in _NEEDS_NO_MODEL and given & {"model", *_TORCH_ONLY}:
            wrong = ", ".join(sorted(given & {"model", *_TORCH_ONLY}))
            raise ValueError(f"kind '{self.kind}' takes no {wrong}; leave it out")
        if self.kind == "timm" and self.model is None:
            raise ValueError("kind 'timm' needs a model, for example model: resnet18.a1_in1k")
        if self.kind == "custom" and self.path is None:
            raise ValueError("kind 'custom' needs a path, for example path: mypackage.encoders:make_encoder")
        if self.kind != "custom" and given & {"path", "options"}:
            raise ValueError(f"path and options belong to kind 'custom', not to '{self.kind}'")
        if self.kind != "identity" and given & set(_IDENTITY_ONLY):
            raise ValueError(f"{', '.join(_IDENTITY_ONLY)} belong to kind 'identity', not to '{self.kind}'")
        if self.kind == "identity":
            self._check_identity()
        return self

    def _check_identity(self) -> None:
        sizes = {name: len(given) for name, given in (("mean", self.mean), ("scale", self.scale)) if given is not None}
        if self.dimension is not None:
            sizes = {"dimension": self.dimension} | sizes
        if not self.standardise and (self.mean is not None or self.scale is not None):
            raise ValueError("standardise: false contradicts mean and scale; leave one of them out")
        if not self.standardise and self.dimension is None:
            raise ValueError("standardise: false needs dimension, the number of features")
        if not self.standardise and self.takes_missing:
            raise ValueError(f"missing: {self.missing} needs the mean of each feature; leave standardise on")
        if len(set(sizes.values())) > 1:
            said = ", ".join(f"{name} {size}" for name, size in sizes.items())
            raise ValueError(f"the number of features differs: {said}")
        if 0 in sizes.values():
            raise ValueError("mean and scale must hold one number per feature, and at least one")

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
