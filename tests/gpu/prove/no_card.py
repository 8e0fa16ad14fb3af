"""The real CuPy without a card: its calls of the driver answered here, so that everything above them runs as it is.

CuPy's modules call each other through tables of C functions (``__pyx_capi__``). Those of the CUDA runtime, the driver,
cuBLAS and cuSOLVER are replaced before anything reads them: memory is the host's, and kernels and libraries compute on
the processor (see ``host_card``). What stays CuPy's own is all that a card makes a surprise of: names, arguments,
dtypes, shapes, broadcasting, indexing, and the sources that it generates and has NVRTC compile for the card pretended.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import host_card

CARD = {"major": 9, "minor": 0, "memory": 141 * 2**30, "processors": 132}
"""An H200."""

FILL = 0xFF
"""Of every byte that is allocated: not a number, so that what is read before it is written is seen."""

FOLDER = "CONGRUENCE_NO_CARD"
"""The environment's variable that makes a process pretend: where kernels are compiled and what was said is kept."""

_C = ctypes.CDLL(None)
_C.malloc.restype, _C.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
_C.free.argtypes = [ctypes.c_void_p]

_TYPES: dict[str, Any] = {
    "PyObject *": ctypes.py_object,
    "int": ctypes.c_int,
    "CUdevice": ctypes.c_int,
    "cudaMemcpyKind": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "intptr_t": ctypes.c_ssize_t,
    "uintmax_t": ctypes.c_size_t,
    "size_t": ctypes.c_size_t,
    "int64_t": ctypes.c_int64,
    "PY_LONG_LONG": ctypes.c_longlong,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_kept: list[Any] = []
"""What C points to: it may not be collected."""


def pretend_card(folder: Path) -> host_card.Launches:
    """Answer CuPy's calls of the driver from now on; before anything of CuPy is imported.

    Args:
        folder: for kernels that are compiled for the processor.
    """
    os.environ["CUPY_ACCELERATORS"] = ""  # CUB's and Thrust's kernels are in CuPy's wheel as binaries
    os.environ["CUPY_CACHE_DIR"] = str(folder / "cache")
    from cupy_backends.cuda.api import driver, runtime

    launches = host_card.Launches(folder)
    _replace(runtime, RUNTIME | {"pointerGetAttributes": lambda at, *_: runtime.PointerAttributes(0, at, at, 2)})
    _replace(driver, DRIVER | launches.driver)
    from cupy_backends.cuda.libs import cublas, cusolver

    handles = {"create": lambda *_: 1, "getMathMode": lambda *_: 0, "getPointerMode": lambda *_: 0}
    sizes = {name: lambda *_: 1 for name in cusolver.__pyx_capi__ if name.endswith("_bufferSize")}
    _replace(cublas, handles | host_card.library(cublas, host_card.CUBLAS, launches))
    _replace(cusolver, handles | sizes | host_card.library(cusolver, host_card.CUSOLVER, launches))
    from cupy.cuda import compiler, thrust

    nvrtc = compiler._compile_using_nvrtc_no_warning

    def compiled(source: str, *options: Any, **named: Any) -> tuple[bytes, None]:
        nvrtc(source, *options, **named)  # for the card that is pretended: what it refuses is an error here, too
        return source.encode(), None

    compiler._compile_using_nvrtc_no_warning = compiled
    thrust.sort = host_card.sort
    return launches


def start() -> None:
    """Pretend in this process, if its environment says so."""
    if folder := os.environ.get(FOLDER):
        pretend_card(Path(folder))
        give_buffers()


def _replace(module: Any, answers: dict[str, Callable[..., Any]]) -> None:
    """Every function of ``module``'s table by one of ``answers``, or by one that does nothing and returns 0 or None."""
    name_of = ctypes.pythonapi.PyCapsule_GetName
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    for name, held in list(module.__pyx_capi__.items()):
        signature = name_of(held)
        made = _function(signature.decode(), answers.get(name))
        if made is None:
            continue
        _kept.extend([made, signature])
        module.__pyx_capi__[name] = capsule(ctypes.cast(made, ctypes.c_void_p), signature, None)
        if hasattr(module, name):
            setattr(module, name, answers.get(name, lambda *_, **__: 0))


def _function(signature: str, answer: Callable[..., Any] | None) -> Any | None:
    found = re.fullmatch(r"(.+?) ?\((.*)\)", signature)
    if found is None:
        return None  # a variable
    result = ctypes.py_object if found[1].startswith("struct __pyx_obj") else _TYPES.get(found[1])
    if result is None:
        return None
    given: list[Any] = [] if found[2] == "void" else [_type(each) for each in found[2].split(", ")]
    if any(each is None for each in given):
        return None
    idle = None if result is ctypes.py_object else 0
    return ctypes.PYFUNCTYPE(result, *given)(answer or (lambda *_: idle))


def _type(text: str) -> Any | None:
    if text.startswith("struct "):
        return ctypes.c_void_p
    return _TYPES.get(text.removesuffix("__pyx_skip_dispatch").strip() if "__pyx_skip" in text else text)


def _allocate(size: int, *_: Any) -> int:
    pointer = int(_C.malloc(max(size, 1)) or 0)
    ctypes.memset(pointer, FILL, size)
    return pointer


def _free(pointer: int, *_: Any) -> None:
    _C.free(pointer)


def _copy(target: int, source: int, size: int, *_: Any) -> None:
    ctypes.memmove(target, source, size)


def _fill(pointer: int, value: int, size: int, *_: Any) -> None:
    ctypes.memset(pointer, value, size)


def _attribute(attribute: int, *_: Any) -> int:
    known = {75: CARD["major"], 76: CARD["minor"], 16: CARD["processors"], 10: 32, 1: 1024, 8: 48 * 1024}
    return known.get(attribute, 0)


def _properties(*_: Any) -> dict[str, Any]:
    return {
        "name": b"No card",
        "totalGlobalMem": CARD["memory"],
        "major": CARD["major"],
        "minor": CARD["minor"],
        "multiProcessorCount": CARD["processors"],
        "warpSize": 32,
        "maxThreadsPerBlock": 1024,
        "sharedMemPerBlock": 48 * 1024,
    }


RUNTIME: dict[str, Callable[..., Any]] = {
    "getDeviceCount": lambda *_: 1,
    "getDeviceProperties": _properties,
    "deviceGetAttribute": _attribute,
    "driverGetVersion": lambda *_: 13000,
    "runtimeGetVersion": lambda *_: 13000,
    "_getCUDAMajorVersion": lambda *_: 13,
    "memGetInfo": lambda *_: (CARD["memory"], CARD["memory"]),
    "malloc": _allocate,
    "mallocAsync": _allocate,
    "hostAlloc": _allocate,
    "free": _free,
    "freeAsync": _free,
    "freeHost": _free,
    "memcpy": _copy,
    "memcpyAsync": _copy,
    "memset": _fill,
    "memsetAsync": _fill,
    "streamCreate": lambda *_: 1,
    "streamCreateWithFlags": lambda *_: 1,
    "eventCreate": lambda *_: 1,
    "eventCreateWithFlags": lambda *_: 1,
    "check_status": lambda *_: None,
}
DRIVER: dict[str, Callable[..., Any]] = {"ctxGetCurrent": lambda *_: 1, "funcGetAttribute": lambda *_: 1024}


def give_buffers() -> None:
    """rmm's DeviceBuffer in memory of the card pretended: Dask receives CuPy's arrays through it."""
    import rmm

    rmm.DeviceBuffer = Buffer


class Buffer:
    """``size`` bytes, copied from ``ptr`` of the host."""

    def __init__(self, *, ptr: int, size: int) -> None:
        self._held = _allocate(size)
        _copy(self._held, ptr, size)
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (self._held, False), "version": 3}

    def __del__(self) -> None:
        _free(self._held)
