"""How much memory there is, and how much of it a Gram matrix may take to be kept between passes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import psutil

from congruence.kernels.arrays import array_namespace

KEPT_SHARE = 8  # one part in so many of the free memory of this machine
KEPT_LIMIT = 2**31
CARD_SHARE_VARIABLE = "CONGRUENCE_CARD_SHARE"
CARD_SHARE = 0.8  # of a card, where the variable says nothing else; the rest is its context's and other programs'
KEPT_PART = 0.5  # of that share: Gram tiles; embeddings and columns have what is left
VECTORS_PART = 0.25  # of that share: the vectors of a solve


def available_memory() -> int:
    """Memory of the machine that is free or can be freed (the page cache), in bytes."""
    return int(psutil.virtual_memory().available)


def card_share() -> float:
    """The part of a card that this process may take, in (0, 1]: what CONGRUENCE_CARD_SHARE says, or CARD_SHARE."""
    try:
        share = float(os.environ.get(CARD_SHARE_VARIABLE, CARD_SHARE))
    except ValueError:
        return CARD_SHARE
    return share if 0.0 < share <= 1.0 else CARD_SHARE


def card_bytes(x: Any) -> int:
    """What this process may take of the card that holds x."""
    return int(card_share() * x.device.mem_info[1])


def keepable_bytes(x: Any) -> int:
    """What one triangle of the Gram matrix of x may take to be kept: an eighth of the free memory and 2 GiB at most.

    On a GPU, half of this process's share of the card that holds x.
    """
    if array_namespace(x) is np:
        return min(KEPT_LIMIT, available_memory() // KEPT_SHARE)
    return int(KEPT_PART * card_bytes(x))
