"""What the real CuPy is run with where there is no card: its kernels' parameters, the libraries, what NVRTC says."""

from __future__ import annotations

import ctypes
import importlib
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg

PROVE = Path(__file__).parents[1] / "gpu" / "prove"

SOURCE = """
typedef float T;
extern "C" __global__ void congruence_sum(const CArray<float, 2, 0, 1> _raw_x, const T* __restrict__ y, const int n) {
    __shared__ T held[4];
    held[threadIdx.x] = y[4 * blockIdx.x + threadIdx.x];
    __syncthreads();
    T total = 0;
    for (int i = 0; i < n; ++i) total += held[i];
    const_cast<T*>(y)[4 * blockIdx.x + threadIdx.x] = total + __shfl_xor_sync(0xffffffff, T(threadIdx.x), 1);
}
"""


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the proof, which is no package, and forgets what came with it."""
    monkeypatch.syspath_prepend(str(PROVE))
    before = set(sys.modules)
    yield importlib.import_module
    for name in ({path.stem for path in PROVE.glob("*.py")} & set(sys.modules)) - before:
        sys.modules.pop(name)


@pytest.fixture
def host_card(module: Callable[[str], Any]) -> Any:
    return module("host_card")


def pointer(array: np.ndarray) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_libraries_compute_what_they_are_documented_to(host_card: Any, dtype: Any) -> None:
    rng, letter = np.random.default_rng(0), "s" if dtype is np.float32 else "d"
    a, b, c = (np.asfortranarray(rng.standard_normal(shape), dtype=dtype) for shape in ((3, 5), (5, 4), (3, 4)))
    alpha, beta = (np.array([value], dtype=dtype) for value in (2.0, 0.5))
    expected, places = 2.0 * a @ b + 0.5 * c, [pointer(each) for each in (alpha, a, b, beta, c)]
    host_card.CUBLAS[f"{letter}gemm"](
        1, 0, 0, 3, 4, 5, places[0], places[1], 3, places[2], 5, places[3], places[4], 3, 0
    )
    np.testing.assert_allclose(c, expected, rtol=1e-5)
    matrix = np.asfortranarray(a.T @ a + 5.0 * np.eye(5), dtype=dtype)
    factor, info = matrix.copy(order="F"), np.full(1, -1, dtype=np.int32)
    host_card.CUSOLVER[f"{letter}potrf"](1, 0, 5, pointer(factor), 5, 0, 0, pointer(info), 0)
    lower = np.asfortranarray(np.tril(factor))
    np.testing.assert_allclose(lower @ lower.T, matrix, rtol=1e-4, atol=1e-5)
    assert info[0] == 0
    matrix[2, 2] = -1.0
    host_card.CUSOLVER[f"{letter}potrf"](1, 0, 5, pointer(matrix), 5, 0, 0, pointer(info), 0)
    assert info[0] == 3
    solved, one = b.copy(order="F"), np.ones(1, dtype=dtype)
    host_card.CUBLAS[f"{letter}trsm"](1, 0, 0, 1, 0, 5, 4, pointer(one), pointer(lower), 5, pointer(solved), 5, 0)
    exact = scipy.linalg.solve_triangular(lower, b, lower=True, trans=1)
    np.testing.assert_allclose(solved, exact, rtol=1e-4, atol=1e-5)


def test_a_kernel_with_threads_that_wait_for_each_other_is_run(host_card: Any, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    types = host_card.parameter_types(SOURCE, "congruence_sum")
    assert types == ["CArray<float, 2, 0, 1>", "T*", "int"]
    host_card.includes = list
    launches = host_card.Launches(tmp_path)
    source = "template <typename, int, bool, bool> struct CArray {};\n" + SOURCE
    module = launches.driver["moduleLoadData"](source.encode())
    function = launches.driver["moduleGetFunction"](module, "congruence_sum")
    y, count, empty = np.arange(8, dtype=np.float32), ctypes.c_int(4), ctypes.create_string_buffer(64)
    expected = np.repeat(y.reshape(2, 4).sum(axis=1), 4) + np.tile([1, 0, 3, 2], 2)
    place = ctypes.c_void_p(pointer(y))
    given = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in (empty, place, count)))
    launches.driver["launchKernel"](function, 2, 1, 1, 4, 1, 1, 0, 0, ctypes.addressof(given), 0)
    assert launches.failures == []
    np.testing.assert_allclose(y, expected)
