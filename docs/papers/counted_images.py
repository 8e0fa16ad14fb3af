"""Images with a count each: handwritten digits with counts of a known distribution, and photographs of blood smears.

The photographs are BCCD's (github.com/Shenggan/BCCD_Dataset). No network that knows photographs is shipped, and the
shipped CLIP sees nothing of the cells: ridge regression on its embeddings explains none of the counts' variance, on
colours and textures 30 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
from experiment import Array
from PIL import Image, ImageFilter

from congruence.kernels import Binomial, Distribution
from congruence.tasks.digits.dataset import MAX_ANGLE, base_images, draw, encode_png, labels
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.settings.sections import EncoderSettings

Encode: TypeAlias = Callable[[Sequence[Image.Image]], Array]
"""Images to embeddings of unit norm (n, d)."""

TRIALS = 40  # of the digits' counts
SPLITS = ("train", "val", "test")
_SIZE = (112, 84)
_LEVELS, _RINGS = 16, 24
_PIXELS = 64  # of the encoder: a radius means the same on images of every size


@dataclass(frozen=True)
class CountedImages:
    """Images and a count y of each; ``truth`` is their distribution where the data are made."""

    images: tuple[Image.Image, ...]
    y: Array
    truth: Distribution | None = None

    def __getitem__(self, rows: slice) -> CountedImages:
        """Return some of the rows."""
        return CountedImages(self.images[rows], self.y[rows], None if self.truth is None else self.truth[rows])


def embedded(images: Sequence[Image.Image]) -> Array:
    """Return embeddings of unit norm (n, d) by the compact CLIP that is shipped."""
    encoder = load_encoder(EncoderSettings(kind="open_clip", model="compact", device="cpu"))
    ready = [encoder.preprocess(encode_png(image)) for image in images]
    parts = [encoder.encode(ready[start : start + 64]) for start in range(0, len(ready), 64)]
    rows = np.concatenate(parts).astype(np.float64)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def blurred(images: Sequence[Image.Image], radius: float) -> list[Image.Image]:
    """Return the images under Gaussian blur by ``radius`` 64ths of an image's shorter side."""
    return [image.filter(ImageFilter.GaussianBlur(float(radius) * min(image.size) / _PIXELS)) for image in images]


def mixed(images: Sequence[Image.Image], y: Array, share: float, seed: int) -> tuple[list[Image.Image], Array]:
    """Return the mixup of images and targets with other rows, (1 - share) and share; counts are rounded."""
    others = np.random.default_rng(seed).permutation(len(images))
    pictures = [Image.blend(image, images[other], float(share)) for image, other in zip(images, others, strict=True)]
    return pictures, np.round((1.0 - share) * y + share * y[others])


def counted_digits(rows: int, seed: int) -> CountedImages:
    """Return ``rows`` digits of scikit-learn's test share, each turned by up to 60 degrees.

    Their counts are y ~ Binomial(40, (digit + 1) / 12): underdispersed, as ages are.
    """
    rng = np.random.default_rng([seed, rows])
    base = rng.choice(base_images("test"), rows)
    angles = rng.uniform(-MAX_ANGLE, MAX_ANGLE, rows)
    images = tuple(draw(int(b), float(a)) for b, a in zip(base, angles, strict=True))
    truth = Binomial(np.full(rows, TRIALS), (labels()[base].astype(np.float64) + 1.0) / 12.0)
    return CountedImages(images, truth.sample(1, seed=rng)[:, 0], truth)


def read_blood_cells(folder: Path) -> dict[str, CountedImages]:
    """Return the data set's own splits, without the photographs whose red cells nobody counted.

    ``folder`` holds ``labels.csv`` (path, rbc, split, rbc_unlabelled) and the photographs that it names.
    """
    table = pd.read_csv(folder / "labels.csv")
    table = table[table["rbc_unlabelled"] == 0]
    return {name: _read(folder, table[table["split"] == name]) for name in SPLITS}


def _read(folder: Path, table: pd.DataFrame) -> CountedImages:
    images = []
    for path in table["path"]:
        with Image.open(folder / path) as file:
            images.append(file.convert("RGB"))
    return CountedImages(tuple(images), table["rbc"].to_numpy(np.float64))


def colours_and_textures(fitted: Sequence[Image.Image]) -> Encode:
    """Return an encoder by shares of colours and log power by frequency, standardised on ``fitted``, of unit norm."""
    known = _described(fitted)
    center, scale = known.mean(axis=0), np.maximum(known.std(axis=0), 1e-6)

    def encode(images: Sequence[Image.Image]) -> Array:
        rows = (_described(images) - center) / scale
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    return encode


def _described(images: Sequence[Image.Image]) -> Array:
    """Return (n, 3 (16 + 24)) numbers of each image's three colours."""
    colours = np.stack([np.asarray(image.resize(_SIZE), dtype=np.float64) / 255.0 for image in images])
    planes = np.moveaxis(colours, 3, 1)
    height, width = planes.shape[2:]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    ring = np.digitize(frequency, np.linspace(0.0, 0.5, _RINGS + 1))
    power = np.abs(np.fft.rfft2(planes - planes.mean(axis=(2, 3), keepdims=True))) ** 2
    texture = [np.log(power[:, :, ring == place].mean(axis=2) + 1e-9) for place in range(1, _RINGS + 1)]
    level = np.minimum((planes * _LEVELS).astype(int), _LEVELS - 1)
    shares = [(level == place).mean(axis=(2, 3)) for place in range(_LEVELS)]
    return np.concatenate([*shares, *texture], axis=1)
