"""How a block of an array becomes a column: numbers and texts as they are, vectors as lists, images as PNG."""

from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from congruence.kernels.arrays import Array
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.stored_arrays import StoredArray


def arrow_type(array: StoredArray, name: str, location: str) -> Any:
    """The type of the column of that name.

    Raises:
        SplitError: an array that is no column.
    """
    kind, rank = array.dtype.kind, len(array.shape)
    if rank == 1 and kind in "biuf":
        return pa.from_numpy_dtype(array.dtype)
    if rank == 1 and kind in "UST":
        return pa.string()
    if rank == 2 and kind in "biuf":
        return pa.list_(pa.from_numpy_dtype(array.dtype), array.shape[1])
    if array.dtype == np.uint8 and (rank == 3 or (rank == 4 and array.shape[3] in (1, 3, 4))):
        return pa.binary()
    raise SplitError(
        f"{location}: array {name!r} of {array.dtype} with shape {array.shape} is no column; use (n,), (n, d) or, for "
        "images, uint8 (n, height, width) or (n, height, width, channels)"
    )


def to_arrow(block: Array, kind: Any) -> Any:
    """Some rows as a column of that type."""
    if block.dtype.byteorder == ">":
        block = block.astype(block.dtype.newbyteorder("="))
    if pa.types.is_binary(kind):
        return pa.array([_png(image) for image in block], kind)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(block).reshape(-1)), kind.list_size)
    if pa.types.is_string(kind):
        texts = [text.decode(errors="replace") if isinstance(text, bytes) else str(text) for text in block.tolist()]
        return pa.array(texts, kind)
    return pa.array(block, kind)


def _png(image: Array) -> bytes:
    stream = BytesIO()
    Image.fromarray(image.squeeze(-1) if image.ndim == 3 and image.shape[-1] == 1 else image).save(
        stream, "PNG", compress_level=0
    )
    return stream.getvalue()
