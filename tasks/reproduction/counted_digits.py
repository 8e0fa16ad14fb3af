"""Image regression with a known law: counts that hang on a rotated handwritten digit, and what perturbs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageFilter

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Binomial, Distribution
from congruence.tasks.digits.images import MAX_ANGLE, base_images, draw, encode_png, labels
from congruence.tasks.encoders import EncoderSettings, load_encoder

TRIALS = 40


@dataclass(frozen=True)
class CountedDigits:
    """Images, the digit of each, and a count y ~ Binomial(40, (digit + 1) / 12): underdispersed, as ages are."""

    images: tuple[Image.Image, ...]
    digits: Array
    y: Array

    def law(self) -> Distribution:
        """The true law of the counts."""
        return Binomial(np.full(len(self.digits), TRIALS), (self.digits + 1.0) / 12.0)


def counted_digits(rows: int, seed: int) -> CountedDigits:
    """``rows`` digits of scikit-learn's test share, each turned by up to 60 degrees."""
    rng = np.random.default_rng([seed, rows])
    base = rng.choice(base_images("test"), rows)
    angles = rng.uniform(-MAX_ANGLE, MAX_ANGLE, rows)
    digits = labels()[base].astype(np.float64)
    images = tuple(draw(int(b), float(a)) for b, a in zip(base, angles, strict=True))
    y = Binomial(np.full(rows, TRIALS), (digits + 1.0) / 12.0).sample(1, seed=rng)[:, 0]
    return CountedDigits(images, digits, y)


def embedded(images: Sequence[Image.Image]) -> Array:
    """Embeddings of unit norm (n, d) by the compact CLIP that is shipped."""
    encoder = load_encoder(EncoderSettings(kind="open_clip", model="compact", device="cpu"))
    ready = [encoder.preprocess(encode_png(image)) for image in images]
    parts = [encoder.encode(ready[start : start + 64]) for start in range(0, len(ready), 64)]
    rows = np.concatenate(parts).astype(np.float64)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def blurred(images: Sequence[Image.Image], radius: float) -> list[Image.Image]:
    """Gaussian blur by ``radius`` pixels of 64."""
    return [image.filter(ImageFilter.GaussianBlur(float(radius))) for image in images]


def mixed(images: Sequence[Image.Image], y: Array, share: float, seed: int) -> tuple[list[Image.Image], Array]:
    """Mixup of images and targets with other rows, (1 - share) and share; counts are rounded."""
    others = np.random.default_rng(seed).permutation(len(images))
    pictures = [Image.blend(image, images[other], float(share)) for image, other in zip(images, others, strict=True)]
    return pictures, np.round((1.0 - share) * y + share * y[others])
