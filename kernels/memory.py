"""How much memory there is, and how much of it a Gram matrix may take to be kept between passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil

from congruence.kernels.arrays import array_namespace

KEPT_SHARE = 8  # one part in so many of the free memory of this machine
KEPT_LIMIT = 2**31
KEPT_SHARE_OF_GPU = 0.4  # of the whole card: its pool holds the rest for embeddings, columns and vectors


def available_memory() -> int:
    """Memory of this machine that is free or can be freed (the page cache), in bytes."""
    return int(psutil.virtual_memory().available)


def keepable_bytes(x: Any) -> int:
    """What one triangle of the Gram matrix of x may take to be kept: an eighth of the free memory and 2 GiB at most.

    On a GPU, two fifths of the card that holds x.
    """
    if array_namespace(x) is np:
        return min(KEPT_LIMIT, available_memory() // KEPT_SHARE)
    return int(KEPT_SHARE_OF_GPU * x.device.mem_info[1])
