"""What a card does to a tile beyond its matrix product: one kernel each, so that the tile is read and written once.

The elementwise part of a kernel function as NumPy's operations is four to eight passes over a tile; on a card each of
them costs as much memory traffic as the whole. The sources are CUDA C++ that CuPy compiles at their first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

L1_ROWS = 64
L1_THREADS = 256


@dataclass(frozen=True)
class ElementwiseSource:
    """The source of a CuPy ElementwiseKernel; ``T`` is the type of the tile.

    Comparisons are written so that a NaN stays one: fmin and fmax would hide it.
    """

    name: str
    inputs: str
    outputs: str
    operation: str

    def compiled(self) -> Any:
        """The kernel on the current device; compiled at its first call, once per dtype."""
        return _elementwise(self)


POLYNOMIAL = ElementwiseSource(
    "congruence_polynomial",
    "T coef0, int32 degree",
    "T block",
    """
    const T base = block + coef0;
    T value = base;
    for (int power = 1; power < degree; ++power) value *= base;
    block = value;
    """,
)
"""(block + coef0)^degree for block = gamma x.z."""

RBF_TILE = ElementwiseSource(
    "congruence_rbf",
    "T x_norm, T z_norm, T gamma",
    "T block",
    """
    const T exponent = block - gamma * x_norm - gamma * z_norm;
    block = exp(exponent > (T)0 ? (T)0 : exponent);
    """,
)
"""exp(block - gamma |x|^2 - gamma |z|^2) for block = 2 gamma x.z; rounding may leave a small positive exponent."""

MATERN = ElementwiseSource(
    "congruence_matern",
    "T x_norm, T z_norm, T weight, T near, int32 twice_nu, raw T x, raw T z, int64 columns, int64 features",
    "T block",
    """
    T square = block + weight * x_norm + weight * z_norm;
    if (twice_nu == 1 && square <= near * weight * x_norm + near * weight * z_norm) {
        const long long row = (long long)i / columns, column = (long long)i % columns;
        T total = 0;
        for (long long k = 0; k < features; ++k) {
            const T difference = x[row * features + k] - z[column * features + k];
            total += difference * difference;
        }
        square = weight * total;
    }
    const T t = sqrt(square < (T)0 ? (T)0 : square);
    const T decay = exp(-t);
    block = twice_nu == 1 ? decay : (twice_nu == 3 ? ((T)1 + t) * decay : ((T)1 + t + t * t / (T)3) * decay);
    """,
)
"""Matern of smoothness twice_nu / 2 at t^2 = block + weight |x|^2 + weight |z|^2, block = -2 weight x.z; for nu = 1/2 a
square far below the norms is computed again from differences (see ``recompute_near``), without asking the host."""

PIT_SCORES = ElementwiseSource(
    "congruence_pit_scores",
    "T u, T root1, T root2, T root3, T root4",
    "T bias, T spread, T skew, T tails",
    """
    const T t = (T)2 * u - (T)1;
    const T square = t * t;
    bias = root1 * t;
    spread = root2 * ((T)1.5 * square - (T)0.5);
    skew = root3 * ((T)2.5 * square - (T)1.5) * t;
    tails = root4 * (((T)4.375 * square - (T)3.75) * square + (T)0.375);
    """,
)
"""sqrt(2j + 1) P_j(2u - 1) for j = 1 to 4, see ``pit_scores``; root_j = sqrt(2j + 1)."""

ELEMENTWISE = (POLYNOMIAL, RBF_TILE, MATERN, PIT_SCORES)

L1_SOURCE = r"""
extern "C" __global__ void congruence_laplacian(
    const T* __restrict__ x, const T* __restrict__ z, T* __restrict__ out,
    const int n, const int m, const int d, const T gamma)
{
    __shared__ T left[64][17];
    __shared__ T right[64][17];
    const int column = threadIdx.x % 16, row = threadIdx.x / 16;
    const long long first_row = (long long)blockIdx.y * 64, first_column = (long long)blockIdx.x * 64;
    T sum[4][4];
    for (int i = 0; i < 4; ++i) for (int j = 0; j < 4; ++j) sum[i][j] = 0;
    for (int start = 0; start < d; start += 16) {
        for (int p = threadIdx.x; p < 1024; p += 256) {
            const int r = p / 16, c = p % 16;
            const bool inside = start + c < d;
            left[r][c] = inside && first_row + r < n ? x[(first_row + r) * d + start + c] : (T)0;
            right[r][c] = inside && first_column + r < m ? z[(first_column + r) * d + start + c] : (T)0;
        }
        __syncthreads();
        for (int c = 0; c < 16; ++c)
            for (int i = 0; i < 4; ++i)
                for (int j = 0; j < 4; ++j) {
                    const T difference = left[row + 16 * i][c] - right[column + 16 * j][c];
                    sum[i][j] += difference < (T)0 ? -difference : difference;
                }
        __syncthreads();
    }
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) {
            const long long r = first_row + row + 16 * i, c = first_column + column + 16 * j;
            if (r < n && c < m) out[r * m + c] = exp(-gamma * sum[i][j]);
        }
}
"""
"""exp(-gamma |x - z|_1) by tiles of 64 x 64 in shared memory; NumPy's operations would write the tile d times."""


def l1_source(dtype: Any) -> str:
    """``L1_SOURCE`` for float32 or float64."""
    name = {4: "float", 8: "double"}[np.dtype(dtype).itemsize]
    return f"typedef {name} T;\n{L1_SOURCE}"


def laplacian_tile(x: Any, z: Any, gamma: float) -> Any:
    """[exp(-gamma |x_i - z_j|_1)] for x (n, d) and z (m, d) on a card."""
    import cupy

    left, right = cupy.ascontiguousarray(x), cupy.ascontiguousarray(z)
    n, d = left.shape
    m = right.shape[0]
    block = cupy.empty((n, m), dtype=left.dtype)
    if block.size:
        grid = (-(-m // L1_ROWS), -(-n // L1_ROWS))
        shape = (np.int32(n), np.int32(m), np.int32(d))
        _laplacian(left.dtype.char)(grid, (L1_THREADS,), (left, right, block, *shape, left.dtype.type(gamma)))
    return block


@cache
def _elementwise(source: ElementwiseSource) -> Any:
    import cupy

    return cupy.ElementwiseKernel(source.inputs, source.outputs, source.operation, source.name)


@cache
def _laplacian(char: str) -> Any:
    import cupy

    return cupy.RawKernel(l1_source(np.dtype(char)), "congruence_laplacian")
