"""Pictures: how they are decoded, and plain numbers of their pixels where no trained encoder can be had."""

from __future__ import annotations

import io
import struct
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from congruence.tasks.encoders.base import Encoder, InputKind, InvalidRow
from congruence.tasks.runtime.files import text_digest
from congruence.tasks.settings.sections import EncoderSettings

DECODING = "decoding 2: first frame; upright by EXIF; 16 bits to 8 by the high byte; over white; to RGB or L"
"""Enters the preprocessing digest: change it with whatever changes the pixels that come out."""

# Only formats that Pillow decodes itself: others start external programs or have no pixels of their own.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")

MAX_ASPECT_RATIO = 200

# What Pillow raises for files that end early or lie about their contents.
_DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, OverflowError)

_TO_RGB = frozenset({"P", "CMYK", "YCbCr", "HSV", "RGBX"})
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def decode_image(raw: Any, max_pixels: int) -> Image.Image:
    """Decode one image; raises InvalidRow for anything that is not one whole image of at most `max_pixels` pixels.

    The picture is as a viewer shows it, in RGB or, where it is grey, in L: of an animation the first frame, turned
    upright where EXIF says so, over white where it is transparent, palettes and CMYK converted (colour profiles are not
    applied), of 16 bits the high byte. Every encoder, thumbnail and statistic sees this picture; models are given the
    bytes or the path, and may call this function.
    """
    if not isinstance(raw, (bytes, bytearray, memoryview)):
        raise InvalidRow(f"expected the bytes of an image, found {type(raw).__name__}")
    data = bytes(raw)
    if not data:
        raise InvalidRow("the image is empty (0 bytes)")
    try:
        image = Image.open(io.BytesIO(data), formats=_formats())
        _check_size(image.size, max_pixels)
        image.load()
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidRow(f"the image is too large: {error}") from error
    except UnidentifiedImageError as error:
        raise InvalidRow(f"not an image in a known format ({len(data)} bytes beginning with {data[:8]!r})") from error
    except _DECODING_ERRORS as error:
        raise InvalidRow(f"the image is damaged: {error}") from error
    return _as_shown(_upright(image))


@cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width < 1 or height < 1:
        raise InvalidRow(f"the image has no pixels ({width} x {height})")
    if width * height > max_pixels:
        raise InvalidRow(f"the image has {width} x {height} pixels, more than max_pixels = {max_pixels}")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        # Resizing its short side to the encoder's input would make the long one enormous.
        raise InvalidRow(f"the image has {width} x {height} pixels: sides differ by more than {MAX_ASPECT_RATIO} times")


def _upright(image: Image.Image) -> Image.Image:
    try:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # whatever Pillow raises of damaged EXIF data, which viewers ignore
        return image
    return image if turn is None else image.transpose(turn)


def _as_shown(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.has_transparency_data:
        shown = Image.new("RGBA", image.size, "white")
        shown.alpha_composite((image.convert("LA") if mode == "La" else image).convert("RGBA"))
        return shown.convert("RGB")
    if mode in ("RGB", "L"):
        return image
    if mode == "1":
        return image.convert("L")
    if mode in _TO_RGB:
        return image.convert("RGB")
    raise InvalidRow(f"the image's mode is {mode}: its values have no known range; store it as RGB with 8 or 16 bits")


SIDE = 64
"""Pixels a side to which pictures are scaled, so that their size does not enter."""

_LUMINANCE = np.array([0.299, 0.587, 0.114])
_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_CELLS, _DIRECTIONS, _BANDS = 4, 8, 6
_LEAST_POWER = 1e-8
# What is taken off each group and what it is divided by: about the mean and the spread over photographs.
_SCALES = {
    "brightness": (0.45, 0.25),
    "contrast": (0.2, 0.08),
    "layout": (0.0, 0.12),
    "colour": (0.0, 0.06),
    "edges": (0.06, 0.04),
    "directions": (1 / _DIRECTIONS, 0.05),
    "frequencies": (-9.0, 2.0),
}


class PictureStatisticsEncoder(Encoder):
    """Brightness, contrast, layout, colour, edges and frequencies of a picture: how it looks, not what is on it.

    Of luminance in [0, 1] at 64 x 64 pixels: five quantiles; standard deviation; means of 4 x 4 cells less the overall
    mean; mean and standard deviation of red and of blue less luminance; mean and standard deviation of the gradient,
    and the share of each of 8 directions in it; log power in 6 bands of the spatial frequency. Each group is centred
    and scaled by fixed numbers, so that an embedding depends on its own picture alone.
    """

    input_kind: InputKind = "image"
    weight_files = ()

    def __init__(self, settings: EncoderSettings) -> None:
        self._max_pixels = settings.max_pixels
        self.batch_size = settings.given_batch_size or 1024
        self.dimension = len(statistics_of(np.zeros((SIDE, SIDE, 3))))
        self.id = f"statistics:{self.dimension}:1"
        self.preprocessing_digest = text_digest(DECODING, self._max_pixels, f"scaled to {SIDE} x {SIDE}", _SCALES)

    def preprocess(self, raw: Any) -> NDArray[np.float64]:
        """The numbers of one encoded picture; InvalidRow for bytes that are none."""
        picture = decode_image(raw, self._max_pixels).convert("RGB")
        scaled = picture.resize((SIDE, SIDE), Image.Resampling.BOX)
        return statistics_of(np.asarray(scaled, dtype=np.float64) / 255.0)

    def encode(self, batch: list[Any]) -> NDArray[np.float32]:
        """The rows as one array."""
        return np.asarray(batch, dtype=np.float32).reshape(len(batch), self.dimension)


def statistics_of(pixels: NDArray[np.float64]) -> NDArray[np.float64]:
    """The statistics of pixels (SIDE, SIDE, 3) in [0, 1], (features,)."""
    grey = pixels @ _LUMINANCE
    cells = grey.reshape(_CELLS, SIDE // _CELLS, _CELLS, SIDE // _CELLS).mean(axis=(1, 3))
    apart = pixels[:, :, [0, 2]] - grey[:, :, None]
    down, across = np.gradient(grey)
    steepness = np.hypot(down, across)
    groups = {
        "brightness": np.quantile(grey, _QUANTILES),
        "contrast": [grey.std()],
        "layout": (cells - grey.mean()).ravel(),
        "colour": [*apart.mean(axis=(0, 1)), *apart.std(axis=(0, 1))],
        "edges": [steepness.mean(), steepness.std()],
        "directions": _directions(down, across, steepness),
        "frequencies": np.log(_powers(grey) + _LEAST_POWER),
    }
    parts = [(np.asarray(values) - _SCALES[name][0]) / _SCALES[name][1] for name, values in groups.items()]
    return np.concatenate(parts)


def _directions(
    down: NDArray[np.float64], across: NDArray[np.float64], steepness: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The share of each direction of the gradient, (8,); all alike of a picture without one."""
    # From 0 to pi: from light to dark and from dark to light is one direction. Rounding must not move it by a turn.
    which = np.rint(np.arctan2(down, across) / np.pi * _DIRECTIONS).astype(int) % _DIRECTIONS
    found = np.bincount(which.ravel(), steepness.ravel(), _DIRECTIONS)
    total = found.sum()
    return found / total if total > 1e-9 else np.full(_DIRECTIONS, 1 / _DIRECTIONS)


def _powers(grey: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean power of luminance less its mean in bands of the spatial frequency, an octave each at most, (6,)."""
    frequency = np.fft.fftfreq(SIDE) * SIDE
    radius = np.hypot(frequency[:, None], frequency[None, :])
    power = np.abs(np.fft.fft2(grey - grey.mean())) ** 2 / SIDE**4
    edges = np.geomspace(1.0, SIDE / 2, _BANDS + 1)
    bands = [(radius >= low) & (radius < high) for low, high in pairwise(edges)]
    return np.array([power[band].mean() for band in bands])
