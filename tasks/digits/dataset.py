"""A regression data set with a known conditional law: the angle of a rotated digit, seen through noise.

target = angle + N(0, (5 + 2.5 digit)^2) degrees, angle ~ U(-60, 60). A model that names this law for each image is
congruent with the data, so the data tells how small a Conditional Congruence Error can get.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.digits.images import MAX_ANGLE, SplitName, base_images, draw, encode_png, labels
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
