"""CuPy's manners without a GPU: arrays that never become NumPy's by themselves and never mix with them.

It computes with NumPy and raises where CuPy does, so that a machine without a GPU finds host and device arrays mixed
in one operation. It says nothing about speed, memory or CuPy's own routines: that is for the tests on a GPU.
"""

import sys
import types

import numpy as np
import scipy.linalg
from numpy.lib.mixins import NDArrayOperatorsMixin

__version__ = "0+stand-in"
_TAKEN_OVER = ("shape", "dtype", "ndim", "size", "strides", "itemsize", "nbytes", "flags")
_MEMORY = 2**34
transfers = {"get": 0}
"""How often something was copied to the host: what a loop must not do once per block."""


def _host(value, function):
    """``value`` with the NumPy arrays inside device arrays; a host array of its own is an error."""
    if isinstance(value, ndarray):
        return value.values
    if isinstance(value, np.ndarray) and value.ndim > 0:
        raise TypeError(f"{function}: Unsupported type {type(value)}: a host array beside device arrays")
    if isinstance(value, (list, tuple)):
        return type(value)(_host(item, function) for item in value)
    return value


def _device(value):
    if isinstance(value, (np.ndarray, np.generic)):
        return ndarray(np.asarray(value))
    if isinstance(value, (list, tuple)):
        return type(value)(_device(item) for item in value)
    return value


def _call(function, name, args, kwargs):
    out = kwargs.get("out")
    result = function(*[_host(item, name) for item in args], **{key: _host(item, name) for key, item in kwargs.items()})
    return _device(result) if out is None else out


def _index(index):
    if isinstance(index, tuple):
        return tuple(_index(item) for item in index)
    return index.values if isinstance(index, ndarray) else index  # CuPy takes NumPy's index arrays


class ndarray(NDArrayOperatorsMixin):  # noqa: N801 (CuPy's name)
    """cupy.ndarray."""

    __module__ = "device_arrays"  # Dask treats arrays of a module named cupy in its own way

    def __init__(self, values):
        self.values = values

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc, method, *args, out=None, **kwargs):
        given = {} if out is None else {"out": out[0] if len(out) == 1 else out}
        return _call(getattr(ufunc, method), ufunc.__name__, args, kwargs | given)

    def __array_function__(self, function, _, args, kwargs):
        return _call(function, function.__name__, args, kwargs)

    def __getattr__(self, name):
        if name in _TAKEN_OVER:
            return getattr(self.values, name)
        if name.startswith("__"):
            raise AttributeError(name)
        member = getattr(self.values, name)
        return (lambda *args, **kwargs: _call(member, name, args, kwargs)) if callable(member) else _device(member)

    def __getitem__(self, index):
        return _device(self.values[_index(index)])

    def __setitem__(self, index, value):
        self.values[_index(index)] = _host(value, "setitem")

    def __len__(self):
        return len(self.values)

    def __float__(self):
        return float(self.values)

    def __int__(self):
        return int(self.values)

    def __bool__(self):
        return bool(self.values)

    def get(self, out=None):
        """The host array."""
        transfers["get"] += 1
        if out is None:
            return self.values.copy()
        out[...] = self.values
        return out

    @property
    def device(self):
        """The one device."""
        return cuda.Device()


def asarray(values, dtype=None):
    """A device array: the only way in, as ``get`` is the only way out."""
    if isinstance(values, ndarray):
        return values if dtype in (None, values.dtype) else ndarray(values.values.astype(dtype))
    return ndarray(np.array(values, dtype=dtype))


array = asarray


class _Module:
    """Functions of a NumPy module on device arrays."""

    def __init__(self, module):
        self._module = module

    def __getattr__(self, name):
        member = getattr(self._module, name)
        if isinstance(member, types.ModuleType):
            return _Module(member)
        if isinstance(member, type) or not callable(member):
            return member
        return lambda *args, **kwargs: _call(member, name, args, kwargs)


def _cholesky(matrix):
    """Where there is no factor, as cuSOLVER leaves it: the columns before the failure, and no error by default."""
    import cupyx

    factor, failed = scipy.linalg.lapack.get_lapack_funcs("potrf", dtype=matrix.dtype)(matrix.values, lower=1)
    if failed and cupyx.raises():
        raise np.linalg.LinAlgError(f"Error reported by potrf in cuSOLVER. devInfo = {failed}")
    return ndarray(factor)


linalg = _Module(np.linalg)
linalg.cholesky = _cholesky


def __getattr__(name):
    return getattr(_Module(np), name)


class _Device:
    """The one device, with 16 GiB of which nothing is taken."""

    id = 0
    mem_info = (_MEMORY, _MEMORY)

    def __init__(self, device=0):
        self.id = device

    def synchronize(self):
        """Nothing runs behind the caller's back here."""


class _CUDARuntimeError(RuntimeError):
    """What CUDA's calls raise."""


def _properties(device):
    return {"name": b"Stand-in", "totalGlobalMem": _MEMORY, "major": 9, "minor": 0}


def _no_cards():
    raise _CUDARuntimeError("cudaErrorInsufficientDriver")


cuda = types.SimpleNamespace(
    Device=_Device,
    Stream=types.SimpleNamespace(null=types.SimpleNamespace(synchronize=lambda: None)),
    runtime=types.SimpleNamespace(
        CUDARuntimeError=_CUDARuntimeError, getDeviceCount=_no_cards, getDeviceProperties=_properties
    ),
)
sys.modules["device_arrays"] = sys.modules[__name__]
