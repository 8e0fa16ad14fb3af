"""Decoding image bytes that nobody vouches for: a picture, or an InvalidRow that says why not."""

import io
import struct
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from congruence.tasks.encoders.errors import InvalidRow

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
