"""Decoding image bytes that nobody vouches for: a picture, or an InvalidRow that says why not."""

import io
import struct
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from congruence.tasks.encoders.errors import InvalidRow

DECODING = "decoding 1: first frame; 16 bits to 8 by the high byte; palettes and bitmaps expanded; no EXIF rotation"
"""Enters the preprocessing digest: change it with whatever changes the pixels that come out."""

# Only formats that Pillow decodes itself: others start external programs or have no pixels of their own.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF")

MAX_ASPECT_RATIO = 200

# What Pillow raises for files that end early or lie about their contents.
_DECODING_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, OverflowError)

_KEPT_MODES = frozenset({"RGB", "RGBA", "L", "LA", "CMYK", "YCbCr", "HSV", "LAB", "RGBX", "La", "RGBa"})


def decode_image(raw: Any, max_pixels: int) -> Image.Image:
    """Decode one image; raises InvalidRow for anything that is not one whole image of at most `max_pixels` pixels.

    Of an animation the first frame is taken. 16-bit images lose their low byte and palettes are expanded, since the
    usual resizing treats both badly; every other mode is left to the encoder's own conversion.
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
    return _eight_bits(image)


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


def _eight_bits(image: Image.Image) -> Image.Image:
    mode = image.mode
    if mode in _KEPT_MODES:
        return image
    if mode == "1":
        return image.convert("L")
    if mode in ("P", "PA"):
        # By way of RGBA: Pillow warns when a palette with transparency is flattened directly.
        return image.convert("RGBA").convert("RGB")
    if mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    raise InvalidRow(f"the image's mode is {mode}: its values have no known range; store it with 8 or 16 bits")
