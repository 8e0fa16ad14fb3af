"""What a card computes, by the processor: CuPy's generated kernels compiled by g++, its library calls by LAPACK.

The sources are those that NVRTC is given, with CuPy's own headers; arguments come packed as for a launch. So what is
computed here went through the real CuPy but for the compiler, the libraries and the card. It is slow, and says nothing
of races, rounding of fused products, or memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg

HEADER = Path(__file__).with_name("host_card.h")
STAND_INS = {"complex.cuh": "#include <complex>\n", "atomics.cuh": ""}
"""Of CuPy's headers, those that need CUDA's own."""


class Launches:
    """Modules are sources here, and their functions are compiled at their first launch.

    Attributes:
        failures: what could not be computed; also in ``failures.txt`` of the folder, for other processes.
    """

    def __init__(self, folder: Path) -> None:
        self.failures: list[str] = []
        self._folder = folder
        self._modules: list[str] = []
        self._functions: list[tuple[str, str]] = []
        self._compiled: dict[tuple[str, str], Any] = {}

    @property
    def driver(self) -> dict[str, Callable[..., Any]]:
        """The driver's calls, by CuPy's names of them."""
        return {"moduleLoadData": self._load, "moduleGetFunction": self._function, "launchKernel": self._launch}

    def fail(self, what: str) -> None:
        """Keep that something was not computed."""
        self.failures.append(what)
        with (self._folder / "failures.txt").open("a") as kept:
            kept.write(what + "\n")

    def _load(self, source: Any, *_: Any) -> int:
        self._modules.append(bytes(source).decode())
        return len(self._modules)

    def _function(self, module: int, name: Any, *_: Any) -> int:
        found = name.decode() if isinstance(name, bytes) else str(name)
        self._functions.append((self._modules[module - 1], found))
        return len(self._functions)

    def _launch(self, function: int, gx: int, gy: int, gz: int, bx: int, *rest: Any) -> None:
        _, _, _, _, arguments, *_more = rest
        source, name = self._functions[function - 1]
        try:
            run = self._compiled.get((source, name))
            if run is None:
                run = self._compiled[source, name] = self._built(source, name)
            run(ctypes.c_void_p(arguments), (ctypes.c_uint * 3)(gx, gy, gz), ctypes.c_uint(bx))
        except (ValueError, subprocess.CalledProcessError) as error:
            self.fail(f"{name}: {error} {(getattr(error, 'stderr', '') or '')[:2000]}")

    def _built(self, source: str, name: str) -> Any:
        types = parameter_types(source, name)
        calls = ", ".join(f"*({kind}*)given[{number}]" for number, kind in enumerate(types))
        waiting = "true" if "__syncthreads" in source or "blockIdx" in source else "false"
        code = (
            f"{source}\n"
            f'extern "C" void run_on_host(void** given, const unsigned* grid, unsigned threads) {{\n'
            f"launch([=] {{ {name}({calls}); }}, grid, threads, {waiting}); }}\n"
        )
        built = self._folder / f"{hashlib.sha256(code.encode()).hexdigest()[:24]}.so"
        if not built.exists():
            place = built.with_suffix(".cpp")
            place.write_text(code)
            command = ["g++", "-O1", "-w", "-std=c++17", "-fpermissive", "-shared", "-fPIC", "-ffp-contract=off"]
            made = built.with_suffix(f".{os.getpid()}")
            command += ["-include", str(HEADER), f"-I{self._headers()}", *includes(), "-o", str(made), str(place)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            made.replace(built)
        return ctypes.PyDLL(str(built)).run_on_host  # one launch at a time: what a block shares is static

    def _headers(self) -> Path:
        folder = self._folder / "headers"
        (folder / "cupy").mkdir(parents=True, exist_ok=True)
        for name, text in STAND_INS.items():
            (folder / "cupy" / name).write_text(text)
        return folder


def parameter_types(source: str, name: str) -> list[str]:
    """The types of a kernel's parameters."""
    found = re.search(rf"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?{name}\s*\(", source)
    if found is None:
        raise ValueError("its head is not in the source")
    depth, start, types = 1, found.end(), []
    for at in range(found.end(), len(source)):
        letter = source[at]
        depth += (letter in "(<") - (letter in ")>")
        if depth == 0 or (letter == "," and depth == 1):
            types.append(source[start:at])
            start = at + 1
        if depth == 0:
            break
    return [re.sub(r"\bconst\b|__restrict__|\s*\b\w+\s*$", " ", each).strip() for each in types if each.strip()]


def includes() -> list[str]:
    """CuPy's headers."""
    import cupy

    return [f"-I{Path(cupy.__file__).parent / '_core' / 'include'}"]


def _matrix(pointer: int, rows: int, columns: int, leading: int, dtype: Any) -> Any:
    """A matrix in LAPACK's order."""
    size = np.dtype(dtype).itemsize * max(leading * columns, 1)
    held = np.frombuffer((ctypes.c_char * size).from_address(pointer), dtype=dtype)
    return held[: leading * columns].reshape(columns, leading)[:, :rows].T


def _vector(pointer: int, count: int, step: int, dtype: Any) -> Any:
    return _matrix(pointer, 1, count, step, dtype)[0]


def _number(pointer: int, dtype: Any) -> Any:
    return _matrix(pointer, 1, 1, 1, dtype)[0, 0]


def _turned(matrix: Any, operation: int) -> Any:
    return matrix.T if operation else matrix


def gemm(dtype: Any) -> Callable[..., None]:
    """C = alpha op(A) op(B) + beta C."""

    def call(_: int, ta: int, tb: int, m: int, n: int, k: int, *rest: Any) -> None:
        alpha, a, lda, b, ldb, beta, c, ldc = rest[:8]
        left = _turned(_matrix(a, *((k, m) if ta else (m, k)), lda, dtype), ta)
        right = _turned(_matrix(b, *((n, k) if tb else (k, n)), ldb, dtype), tb)
        target, factor = _matrix(c, m, n, ldc, dtype), _number(beta, dtype)
        product = _number(alpha, dtype) * (left @ right)
        target[...] = product + factor * target if factor else product

    return call


def gemm_ex(_: int, ta: int, tb: int, m: int, n: int, k: int, *rest: Any) -> None:
    """gemm with its types given; those of the scalars follow the compute type."""
    alpha, a, kind, lda, b, _, ldb, beta, c, _, ldc, *_more = rest
    dtype = {0: np.float32, 1: np.float64}[kind]
    gemm(dtype)(0, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)


def gemm_batched(dtype: Any) -> Callable[..., None]:
    """gemm over matrices a stride apart."""

    def call(_: int, ta: int, tb: int, m: int, n: int, k: int, *rest: Any) -> None:
        alpha, a, lda, a_step, b, ldb, b_step, beta, c, ldc, c_step, count, *_more = rest
        size = np.dtype(dtype).itemsize
        for i in range(count):
            places = (a + i * a_step * size, lda, b + i * b_step * size, ldb, beta, c + i * c_step * size, ldc)
            gemm(dtype)(0, ta, tb, m, n, k, alpha, *places)

    return call


def gemm_batched_ex(_: int, ta: int, tb: int, m: int, n: int, k: int, *rest: Any) -> None:
    """gemm over matrices a stride apart, with its types given."""
    alpha, a, kind, lda, a_step, b, _, ldb, b_step, beta, c, _, ldc, c_step, count, *_more = rest
    dtype = {0: np.float32, 1: np.float64}[kind]
    gemm_batched(dtype)(0, ta, tb, m, n, k, alpha, a, lda, a_step, b, ldb, b_step, beta, c, ldc, c_step, count)


def gemv(dtype: Any) -> Callable[..., None]:
    """y = alpha op(A) x + beta y."""

    def call(_: int, ta: int, m: int, n: int, *rest: Any) -> None:
        alpha, a, lda, x, x_step, beta, y, y_step = rest[:8]
        matrix = _turned(_matrix(a, m, n, lda, dtype), ta)
        target, factor = _vector(y, matrix.shape[0], y_step, dtype), _number(beta, dtype)
        product = _number(alpha, dtype) * (matrix @ _vector(x, matrix.shape[1], x_step, dtype))
        target[...] = product + factor * target if factor else product

    return call


def dot(dtype: Any) -> Callable[..., None]:
    """x'y."""

    def call(_: int, n: int, x: int, x_step: int, y: int, y_step: int, result: int, *_rest: Any) -> None:
        _matrix(result, 1, 1, 1, dtype)[...] = _vector(x, n, x_step, dtype) @ _vector(y, n, y_step, dtype)

    return call


def trsm(dtype: Any) -> Callable[..., None]:
    """B = alpha op(A)^-1 B, or from the right."""

    def call(_: int, side: int, lower: int, ta: int, unit: int, m: int, n: int, *rest: Any) -> None:
        alpha, a, lda, b, ldb = rest[:5]
        order = n if side else m
        triangle, target = _matrix(a, order, order, lda, dtype), _matrix(b, m, n, ldb, dtype)
        settings: dict[str, Any] = {"lower": lower == 0, "unit_diagonal": bool(unit), "check_finite": False}
        solve: Any = scipy.linalg.solve_triangular
        given = _number(alpha, dtype) * target
        if side:
            target[...] = solve(triangle, given.T, trans=int(not ta), **settings).T
        else:
            target[...] = solve(triangle, given, trans=int(bool(ta)), **settings)

    return call


def potrf(dtype: Any) -> Callable[..., None]:
    """A factor in one triangle of A; where there is none, what cuSOLVER leaves: the number of the column in info."""

    def call(_: int, uplo: int, n: int, a: int, lda: int, _work: int, _size: int, info: int, *_rest: Any) -> None:
        matrix = _matrix(a, n, n, lda, dtype)
        routine: Any = scipy.linalg.get_lapack_funcs("potrf", dtype=dtype)
        factor, failed = routine(matrix, lower=int(uplo == 0), clean=0)
        matrix[...] = factor
        _matrix(info, 1, 1, 1, np.int32)[...] = failed

    return call


CUBLAS: dict[str, Callable[..., Any]] = {"gemmEx": gemm_ex, "gemmStridedBatchedEx": gemm_batched_ex}
CUSOLVER: dict[str, Callable[..., Any]] = {}
for _letter, _dtype in (("s", np.float32), ("d", np.float64)):
    CUBLAS |= {
        f"{_letter}gemm": gemm(_dtype),
        f"{_letter}gemmStridedBatched": gemm_batched(_dtype),
        f"{_letter}gemv": gemv(_dtype),
        f"{_letter}dot": dot(_dtype),
        f"{_letter}trsm": trsm(_dtype),
    }
    CUSOLVER[f"{_letter}potrf"] = potrf(_dtype)


def _unknown(name: str, launches: Launches) -> Callable[..., int]:
    def call(*_: Any) -> int:
        launches.fail(f"{name} is not computed here")
        return 0

    return call


_SETTINGS = re.compile(r"(set|get|create|destroy)[A-Z]?\w*|\w+_bufferSize|_?check_status|\w*[vV]ersion\w*")


def library(module: Any, known: dict[str, Callable[..., Any]], launches: Launches) -> dict[str, Callable[..., Any]]:
    """Answers for all of a library's functions: those not known say so, but for its settings."""
    names = [name for name in module.__pyx_capi__ if not _SETTINGS.fullmatch(name)]
    return {name: known.get(name) or _unknown(name, launches) for name in names}


def sort(dtype: Any, data: int, _keys: int, shape: Any) -> None:
    """thrust's sort along the last axis."""
    count = int(np.prod(shape))
    held = np.frombuffer((ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(data), dtype=dtype)
    held.reshape(tuple(shape)).sort(axis=-1)
