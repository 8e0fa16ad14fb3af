"""Rotated handwritten digits: scikit-learn's 8 x 8 images, smoothly enlarged, turned and drawn as 64 x 64 PNG."""

import io
from functools import cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

SIZE = 64
MAX_ANGLE = 60.0

_MARGIN = 2  # empty cells around the 8 x 8 digit, so that a turn by 60 degrees cuts no stroke off
_CANVAS = 2 * SIZE
_SPLIT_SEED = 20250
_TRAINING_FRACTION = 0.6

SplitName = Literal["train", "test"]


@cache
def _digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    bunch = load_digits()
    return np.asarray(bunch.images, dtype=np.float64), np.asarray(bunch.target, dtype=np.int64)


def labels() -> NDArray[np.int64]:
    """The digit (0-9) of each of the 1,797 base images."""
    return _digits()[1]


@cache
def base_images(split: SplitName) -> NDArray[np.int64]:
    """Row numbers, in scikit-learn's order, of the base images of a split; the two splits share none.

    The cut does not depend on any seed of the caller: the shipped compact CLIP was trained on the training images,
    so a test split drawn otherwise would hold images that the encoder has seen.
    """
    digits = labels()
    # The shipped encoder was trained on this very split.
    rng = np.random.default_rng(_SPLIT_SEED)
    chosen: list[int] = []
    for digit in range(10):
        of_digit = rng.permutation(np.flatnonzero(digits == digit))
        cut = round(_TRAINING_FRACTION * of_digit.size)
        chosen.extend(of_digit[:cut] if split == "train" else of_digit[cut:])
    found = rng.permutation(np.sort(chosen)).astype(np.int64)
    found.flags.writeable = False  # one array for all who ask
    return found


@cache
def _enlarged(base: int) -> Image.Image:
    cells = np.pad(_digits()[0][base] / 16.0, _MARGIN)
    canvas = Image.fromarray(cells.astype(np.float32)).resize((_CANVAS, _CANVAS), Image.Resampling.BICUBIC)
    # A smooth step makes strokes of the blurred enlargement while it keeps their antialiased edges.
    ink = np.clip((np.asarray(canvas) - 0.3) / 0.45, 0.0, 1.0)
    ink = ink * ink * (3.0 - 2.0 * ink)
    return Image.fromarray(np.round(255.0 * ink).astype(np.uint8))


def draw(base: int, angle: float) -> Image.Image:
    """Base image number `base` turned by `angle` degrees (positive: to the left), 64 x 64 grey levels on black."""
    turned = _enlarged(base).rotate(angle, resample=Image.Resampling.BICUBIC)
    return turned.resize((SIZE, SIZE), Image.Resampling.BOX)


def encode_png(image: Image.Image) -> bytes:
    """The image as PNG bytes; the same image gives the same bytes under one version of Pillow."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=6)
    return buffer.getvalue()
