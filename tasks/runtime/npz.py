"""Arrays by name as one NPZ file in memory; nothing in it is ever pickled or unpickled."""

from __future__ import annotations

import io
from collections.abc import Mapping

import numpy as np

from congruence.kernels.arrays import Array


def to_npz(arrays: Mapping[str, Array]) -> bytes:
    """The file: the same bytes for the same arrays."""
    stream = io.BytesIO()
    np.savez(stream, allow_pickle=False, **arrays)
    return stream.getvalue()


def from_npz(data: bytes) -> dict[str, Array]:
    """The arrays of a file.

    Raises:
        ValueError: it is none, or damaged.
    """
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and NumPy each have their own
        raise ValueError(f"no NPZ file: {error}") from error
