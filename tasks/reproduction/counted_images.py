"""Images with a count each: how they are embedded, and what perturbs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.tasks.digits.images import encode_png
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.settings import EncoderSettings

Encode = Callable[[Sequence[Image.Image]], Array]
"""Images to embeddings of unit norm (n, d)."""

_PIXELS = 64  # of the encoder: a radius means the same on images of every size


@dataclass(frozen=True)
class CountedImages:
    """Images and a count y of each; ``law`` is the true law of the counts where the data are made."""

    images: tuple[Image.Image, ...]
    y: Array
    law: Distribution | None = None

    def __getitem__(self, rows: slice) -> CountedImages:
        """Some of the rows."""
        return CountedImages(self.images[rows], self.y[rows], None if self.law is None else self.law[rows])


def embedded(images: Sequence[Image.Image]) -> Array:
    """Embeddings of unit norm (n, d) by the compact CLIP that is shipped."""
    encoder = load_encoder(EncoderSettings(kind="open_clip", model="compact", device="cpu"))
    ready = [encoder.preprocess(encode_png(image)) for image in images]
    parts = [encoder.encode(ready[start : start + 64]) for start in range(0, len(ready), 64)]
    rows = np.concatenate(parts).astype(np.float64)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def blurred(images: Sequence[Image.Image], radius: float) -> list[Image.Image]:
    """Gaussian blur by ``radius`` 64ths of an image's shorter side."""
    return [image.filter(ImageFilter.GaussianBlur(float(radius) * min(image.size) / _PIXELS)) for image in images]


def mixed(images: Sequence[Image.Image], y: Array, share: float, seed: int) -> tuple[list[Image.Image], Array]:
    """Mixup of images and targets with other rows, (1 - share) and share; counts are rounded."""
    others = np.random.default_rng(seed).permutation(len(images))
    pictures = [Image.blend(image, images[other], float(share)) for image, other in zip(images, others, strict=True)]
    return pictures, np.round((1.0 - share) * y + share * y[others])
