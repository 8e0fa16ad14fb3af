"""CUDA C++ kernels on the processor: the same source, compiled by g++, its threads as threads.

What it shows is what a kernel computes, at every edge of a grid; not that it is fast, and not what nvcc says of it.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

COMPILER = shutil.which("g++")
_C_TYPES = {"int32": "int", "int64": "long long", "float32": "float", "float64": "double"}
# What one run of the tests has compiled serves the next: outside the folder that goes when they end.
_FOLDER = Path(os.environ.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())) / "congruence-device-kernels"


@cache
def _library(source):
    if COMPILER is None:
        raise RuntimeError("the stand-in for CuPy compiles kernels with g++, which is not installed")
    _FOLDER.mkdir(exist_ok=True)
    digest = hashlib.sha256(source.encode()).hexdigest()[:24]
    built = _FOLDER / f"{digest}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
            code, made = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
            code.write_text(source)
            # No contraction to fused products: NumPy's do not have them either.
            command = [COMPILER, "-O2", "-ffp-contract=off", "-std=c++20", "-shared", "-fPIC", "-pthread"]
            subprocess.run([*command, "-o", str(made), str(code)], check=True)
            made.replace(built)
    return ctypes.CDLL(str(built))


def _parameters(text):
    """(raw?, type, name) of each parameter."""
    found = []
    for parameter in text.split(","):
        *raw, kind, name = parameter.split()
        found.append((bool(raw), kind, name))
    return found


class Elementwise:
    """An ElementwiseKernel: its arguments are broadcast to one shape and gone over element by element."""

    def __init__(self, inputs, outputs, operation, name):
        self._parameters = _parameters(inputs) + _parameters(outputs)
        self._outputs = len(_parameters(outputs))
        self._operation, self._name = operation, name

    def run(self, args):
        dtype = args[-1].dtype
        kinds = {name: dtype.name if kind == "T" else kind for _, kind, name in self._parameters}
        given = [self._argument(p, value, dtype) for p, value in zip(self._parameters, args, strict=True)]
        whole = [value for (raw, _, _), value in zip(self._parameters, given, strict=True) if not raw]
        shape = np.broadcast_shapes(*(value.shape for value in whole))
        arrays = []
        for (raw, _, _), value in zip(self._parameters, given, strict=True):
            arrays.append(value if raw else np.ascontiguousarray(np.broadcast_to(value, shape)))
        _library(self._source(kinds, dtype)).run(
            ctypes.c_longlong(int(np.prod(shape))), *[array.ctypes.data_as(ctypes.c_void_p) for array in arrays]
        )
        for output, array in zip(args[-self._outputs :], arrays[-self._outputs :], strict=True):
            output[...] = array

    @staticmethod
    def _argument(parameter, value, dtype):
        raw, kind, name = parameter
        wanted = dtype if kind == "T" else np.dtype(kind)
        if isinstance(value, np.ndarray) and value.ndim and value.dtype != wanted:
            raise TypeError(f"{name} is {value.dtype}, T is {wanted}")  # as CuPy's: no silent conversion of arrays
        return np.ascontiguousarray(value) if raw else np.asarray(value, dtype=wanted)

    def _source(self, kinds, dtype):
        heads, locals_ = [], []
        for raw, _, name in self._parameters:
            kind = _C_TYPES[kinds[name]]
            heads.append(f"{kind}* {name}" if raw else f"{kind}* all_{name}")
            if not raw:
                locals_.append(f"{kind}& {name} = all_{name}[i];")
        return (
            f"#include <cmath>\nusing namespace std;\ntypedef {_C_TYPES[dtype.name]} T;\n"
            f'extern "C" void run(long long size, {", ".join(heads)}) {{\n'
            f"for (long long i = 0; i < size; ++i) {{ {' '.join(locals_)}\n{self._operation}\n}} }}\n"
        )


_THREADS = """
#include <barrier>
#include <cmath>
#include <thread>
#include <vector>
using namespace std;
struct Dim { unsigned x, y, z; };
static thread_local Dim threadIdx, blockIdx;
static barrier<>* all_threads;
#define __global__
#define __shared__ static
static void __syncthreads() { all_threads->arrive_and_wait(); }
"""


class Raw:
    """A RawKernel: every thread of a block is a thread, blocks follow each other (so shared memory may be static)."""

    def __init__(self, code, name):
        self._code, self._name = code, name

    def run(self, grid, block, args):
        calls = []
        for number, value in enumerate(args):
            if isinstance(value, np.ndarray) and value.ndim:
                calls.append((f"{_C_TYPES[value.dtype.name]}* a{number}", value.ctypes.data_as(ctypes.c_void_p)))
            else:
                kind = {"int32": ctypes.c_int, "float32": ctypes.c_float, "float64": ctypes.c_double}[value.dtype.name]
                calls.append((f"{_C_TYPES[value.dtype.name]} a{number}", kind(value.item())))
        names = ", ".join(f"a{number}" for number in range(len(args)))
        heads = ", ".join(head for head, _ in calls)
        source = (
            f"{_THREADS}{self._code}\n"
            f'extern "C" void run(unsigned columns, unsigned rows, unsigned threads, {heads}) {{\n'
            "barrier<> one(threads), between(threads); all_threads = &one;\n"
            "vector<thread> running;\n"
            "for (unsigned t = 0; t < threads; ++t) running.emplace_back([=, &between] {\n"
            "  for (unsigned r = 0; r < rows; ++r) for (unsigned c = 0; c < columns; ++c) {\n"
            "    threadIdx = {t, 0, 0}; blockIdx = {c, r, 0};\n"
            f"    {self._name}({names}); between.arrive_and_wait();\n"
            "  } });\n"
            "for (auto& each : running) each.join(); }\n"
        )
        columns, rows = (*grid, 1)[:2]
        head = [ctypes.c_uint(value) for value in (columns, rows, block[0])]
        _library(source).run(*head, *[value for _, value in calls])
