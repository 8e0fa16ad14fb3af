"""Pictures as the bytes of a file."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image


def saved(picture: Image.Image | np.ndarray, form: str = "PNG", **options: Any) -> bytes:
    """A picture, or its pixels, in a format of Pillow's."""
    stream = io.BytesIO()
    (picture if isinstance(picture, Image.Image) else Image.fromarray(picture)).save(stream, form, **options)
    return stream.getvalue()


def noise(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Pixels of random colours, (height, width, 3)."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png_header(width: int, height: int) -> bytes:
    """A valid header of a PNG file of that size, and a few bytes of data."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (b"IHDR" + header, b"IDAT" + zlib.compress(b"nothing"), b"IEND")
    framed = (struct.pack(">I", len(each) - 4) + each + struct.pack(">I", zlib.crc32(each)) for each in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)
