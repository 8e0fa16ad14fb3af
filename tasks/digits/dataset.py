"""A regression data set with a known conditional law: the angle of a rotated digit, seen through noise."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.runtime.files import whole_file

SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("image", pa.binary(), nullable=False),
        pa.field("angle", pa.float64(), nullable=False),
        pa.field("digit", pa.int64(), nullable=False),
        pa.field("target", pa.float64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class DigitRows:
    """The rows of a split without their pictures: base image, rotation (degrees), digit and noisy target (degrees)."""

    base: NDArray[np.int64]
    angle: NDArray[np.float64]
    digit: NDArray[np.int64]
    target: NDArray[np.float64]
    key: tuple[str, ...]


def noise_scale(digit: ArrayLike) -> NDArray[np.float64]:
    """Standard deviation of the target around the true angle, in degrees: 5 + 2.5 digit."""
    return np.asarray(5.0 + 2.5 * np.asarray(digit, dtype=np.float64))


def digit_rows(split: SplitName, rows: int = 4000, seed: int = 0) -> DigitRows:
    """Draw `rows` rotated digits of a split; more rows under the same seed begin with the same ones.

    Base images are taken in turn, so each is used `rows / len(base_images(split))` times, rounded up or down.
    """
    if rows < 1:
        raise InvalidInputError(f"rows is {rows}: a digits split needs at least one row")
    member = get_args(SplitName).index(split)
    # Angles and noise come from generators of their own: a longer draw of one must not move the other. Data under a
    # seed are published and stay what they are; the streams of an evaluation are apart from every such generator.
    angle = np.random.default_rng([seed, member, 0]).uniform(-MAX_ANGLE, MAX_ANGLE, rows)
    noise = np.random.default_rng([seed, member, 1]).standard_normal(rows)
    bases = base_images(split)
    base = bases[np.arange(rows) % bases.size]
    digit = labels()[base]
    key = tuple(f"{split}-{row:06d}-digit{b:04d}" for row, b in enumerate(base))
    return DigitRows(base, angle, digit, angle + noise_scale(digit) * noise, key)


def _table(rows: DigitRows, part: slice) -> pa.Table:
    pictures = [encode_png(draw(int(b), float(a))) for b, a in zip(rows.base[part], rows.angle[part], strict=True)]
    columns = [rows.key[part], pictures, rows.angle[part], rows.digit[part], rows.target[part]]
    return pa.table([pa.array(c, type=f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)


def write_digits(
    folder: Path, split: SplitName, *, rows: int = 4000, seed: int = 0, shard_rows: int = 1000
) -> list[Path]:
    """Write a split as `folder/{split}-00000.parquet`, ...: columns key, image (PNG), angle, digit, target.

    The files are byte-identical for the same arguments and the same versions of Pillow and pyarrow. A file appears
    under its name only when it is whole.
    """
    if shard_rows < 1:
        raise InvalidInputError(f"shard_rows is {shard_rows}: a shard needs at least one row")
    folder.mkdir(parents=True, exist_ok=True)
    drawn = digit_rows(split, rows, seed)
    written = []
    for index, start in enumerate(range(0, rows, shard_rows)):
        path = folder / f"{split}-{index:05d}.parquet"
        with whole_file(path) as file:
            pq.write_table(_table(drawn, slice(start, start + shard_rows)), file, compression="none")
        written.append(path)
    return written


SIZE = 64
MAX_ANGLE = 60.0

_MARGIN = 2  # empty cells around the 8 x 8 digit, so that a turn by 60 degrees cuts no stroke off
_CANVAS = 2 * SIZE
_SPLIT_SEED = 20250
_TRAINING_FRACTION = 0.6

SplitName = Literal["train", "test"]


@cache
def _digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    from sklearn.datasets import load_digits  # seconds, which a process that predicts need not take

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
