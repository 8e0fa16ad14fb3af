"""Squared distances as matrix products, and from differences where a product has lost their digits."""

from __future__ import annotations

from typing import Any

import numpy as np

from congruence.kernels.arrays import array_namespace

NEAR = 1e-4  # of |x|^2 + |z|^2: squared distances below it are computed from differences where the kernel needs them


def squared_distances(x: Any, z: Any, *, exact_near: bool = False) -> Any:
    """[|x_i - z_j|^2] for x (n, d) and z (m, d); exactly 0 on the diagonal where z is x.

    ``exact_near``: those far below |x|^2 + |z|^2 are computed from differences, see ``recompute_near``.
    """
    xp = array_namespace(x, z)
    same = z is x
    x_norms = xp.einsum("ij,ij->i", x, x)
    center = x.mean(axis=0) if x.shape[0] else x.sum(axis=0)
    if 2.0 * float(center @ center) * x.shape[0] > float(x_norms.sum()):  # an offset: its digits would be lost
        x, z = x - center, z - center
        x_norms = xp.einsum("ij,ij->i", x, x)
    z_norms = x_norms if same else xp.einsum("ij,ij->i", z, z)
    distances = x @ (x if same else z).T
    distances *= -2
    distances += x_norms[:, None]
    distances += z_norms[None, :]
    if exact_near:
        recompute_near(distances, x, z, x_norms, z_norms)
    # |x|^2 - 2 x.z + |z|^2 cancels for near points: rounding may leave a small negative number there.
    xp.maximum(distances, 0, out=distances)
    if same:
        xp.fill_diagonal(distances, 0)
    return distances


def l1_distances(x: Any, z: Any) -> Any:
    """[|x_i - z_j|_1] for x (n, d) and z (m, d), in their precision; on a card one feature after the other."""
    xp = array_namespace(x, z)
    if xp is np:
        from scipy.spatial.distance import cdist  # half a second that a settings file need not wait for

        return cdist(x, z, metric="cityblock").astype(np.result_type(x, z), copy=False)
    distances = xp.zeros((len(x), len(z)), dtype=x.dtype)
    for left, right in zip(x.T, z.T, strict=True):
        distances += xp.abs(left[:, None] - right[None, :])
    return distances


def recompute_near(distances: Any, x: Any, z: Any, x_norms: Any, z_norms: Any, scale: float = 1.0) -> None:
    """Replace entries of ``distances`` = scale |x - z|^2 that are far below scale (|x|^2 + |z|^2), from differences.

    Rounding is a share of the sum, and its root, which a kernel of the distance itself sees, is 1,000 times larger:
    copies of a point would be apart.
    """
    xp = array_namespace(distances)
    if distances.size == 0 or float(distances.min()) >= NEAR * scale * (float(x_norms.max()) + float(z_norms.max())):
        return
    limits = (NEAR * scale) * x_norms[:, None] + (NEAR * scale) * z_norms[None, :]
    rows, columns = xp.nonzero(distances <= limits)
    if xp is np and 8 * len(rows) > distances.size:
        from scipy.spatial.distance import cdist  # half a second that a settings file need not wait for

        distances[...] = scale * cdist(x, z, metric="sqeuclidean")
        return
    at_once = max(1, 2**22 // int(x.shape[1]))
    for start in range(0, int(rows.shape[0]), at_once):
        left, right = rows[start : start + at_once], columns[start : start + at_once]
        difference = x[left] - z[right]
        distances[left, right] = scale * xp.einsum("ij,ij->i", difference, difference)
