"""Products of a tile with a few columns, in the forms at which BLAS is fast.

A product with r columns costs the reading of the tile as long as r is small, and OpenBLAS reads it fastest where r
fills its registers (a multiple of 8: 13 columns cost more than 16) and the transposed product is asked for as V'T.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, to_numpy

WIDTH = 8  # columns that BLAS kernels for AVX2 and AVX-512 take at once, in single precision


def padded_columns(v: Array, like: Any) -> Any:
    """v (n, r) on the device and in the dtype of ``like``, with columns of zeros up to a multiple of 8 on the host.

    A single column stays one: its product is another, faster routine.
    """
    xp = array_namespace(like)
    r = v.shape[1]
    if xp is not np or r == 1 or r % WIDTH == 0:
        return xp.asarray(v, dtype=like.dtype)
    padded = np.zeros((len(v), -(-r // WIDTH) * WIDTH), dtype=like.dtype)
    padded[:, :r] = v
    return padded


def transposed_product(tile: Any, v: Any) -> Any:
    """tile' v, (columns of the tile, r)."""
    return (v.T @ tile).T


def product(block: Array, weights: Array) -> Array:
    """block weights, in the precision of the block."""
    return np.asarray((block @ padded_columns(weights, block))[:, : weights.shape[1]], dtype=np.float64)


def projected(block: Array, v: Array) -> Array:
    """block' v, in the precision of the block."""
    return np.asarray(transposed_product(block, padded_columns(v, block))[:, : v.shape[1]], dtype=np.float64)


def weighted_squares(vectors: Array, weights: Array | None = None) -> Array:
    """U' diag(w) U, (k, k), of U (n, k) and w >= 0 (n,), in the precision of U; U'U without weights.

    As the product of one array with itself, of which BLAS computes half.
    """
    scaled = vectors if weights is None else vectors * np.sqrt(weights).astype(vectors.dtype)[:, None]
    return np.asarray(scaled.T @ scaled, dtype=np.float64)


def squares_at(vectors: Array, inner: Array) -> Array:
    """U_j' M U_j for every row of U (m, k) and M (k, k), (m,)."""
    return np.asarray(np.einsum("jk,jk->j", vectors @ inner.astype(vectors.dtype), vectors), dtype=np.float64)


def times(scale: Array | None, v: Any) -> Any:
    """diag(scale) v, where v (n, r) is; v itself where nothing is scaled."""
    return v if scale is None else array_namespace(v).asarray(scale)[:, None] * v


def beside(v: Any, product: Any) -> Any:
    """``product`` where v is."""
    return to_numpy(product) if array_namespace(v) is np else product
