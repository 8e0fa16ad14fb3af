r"""Arrays as all rooms take them: where they are, what is checked, what each row counts, how results print, and waves.

Rows have weights where a split stands for a population, or was sampled. A mean over points then becomes sum w_i v_i /
sum w_i, in which weight 2 is that row twice. For inference it is not: two copies are one observation, so the standard
error is that of a ratio, sqrt(sum w_i^2 (v_i - mean)^2) / sum w_i, and (sum w)^2 / sum w^2 says of how many equal rows
it is (Kish 1965).

Averages of waves exp(i t v) are characteristic functions: at equally spaced frequencies a wave is the one before it
times exp(i step v), and a product takes a tenth of the time of a sine and a cosine. Every 32 frequencies they are
computed afresh, so that rounding stays at 1e-14.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from types import ModuleType
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from congruence.kernels.errors import InvalidInputError

Array: TypeAlias = npt.NDArray[Any]


def array_namespace(*arrays: Any) -> ModuleType:
    """CuPy where any of ``arrays`` lives on a GPU, else NumPy: the backend follows the blocks.

    CuPy is not imported for this: an array of its can only exist once it has been.
    """
    cupy = sys.modules.get("cupy")
    if cupy is not None and any(isinstance(array, cupy.ndarray) for array in arrays):
        return cupy
    return np


def on_card(array: Any) -> Any:
    """``array`` on the card of this process."""
    import cupy

    return cupy.asarray(array)


def to_numpy(array: Any, name: str = "array") -> Array:
    """``array`` in host memory.

    Raises:
        InvalidInputError: it is a masked array with masked entries.
    """
    array = unmasked(array, name)
    return np.asarray(array if array_namespace(array) is np else array.get())


def unmasked(array: Any, name: str) -> Any:
    """``array`` without its mask, if it has one; also for a list or tuple of masked rows.

    What lies under a mask is whatever the file held there, and NumPy's functions read it without a word.

    Raises:
        InvalidInputError: an entry is masked; the message names the first row.
    """
    if isinstance(array, (list, tuple)) and any(np.ma.isMaskedArray(row) for row in array):
        array = np.ma.array(array)
    if not np.ma.isMaskedArray(array):
        return array
    masked = np.argwhere(np.ma.getmaskarray(array))
    if len(masked):
        place = _place(tuple(int(i) for i in masked[0]))
        raise InvalidInputError(
            f"{name}: {len(masked)} of {array.size} values are masked, the first at {place}; drop these rows from all "
            "arrays before the evaluation, or fill them"
        )
    return array.data


def require_finite(array: Any, name: str) -> None:
    """Raise InvalidInputError naming the first row of ``array`` that is NaN or infinite."""
    xp = array_namespace(array)
    finite = xp.isfinite(array)
    if bool(finite.all()):
        return
    bad = to_numpy(xp.argwhere(~finite))
    index = tuple(int(i) for i in bad[0])
    many = f"{len(bad)} of {array.size} values are not finite, the first at" if array.size > 1 else "is not finite at"
    raise InvalidInputError(
        f"{name}: {many} {_place(index)} ({array[index]}); drop or repair these rows before the evaluation"
    )


def _place(index: tuple[int, ...]) -> str:
    return f"row {index[0]}" + (f", column {index[1]}" if len(index) > 1 else "") if index else "the scalar"


def require_matrix(array: Any, name: str) -> Any:
    """``array`` as a floating (n, d) matrix of finite numbers; a vector becomes one column.

    Raises:
        InvalidInputError: not numeric, not one- or two-dimensional, empty, or not finite.
    """
    array = _as_floating(array, name)
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise InvalidInputError(f"{name}: expected shape (n, d), got {array.shape}; flatten each row into features")
    if array.shape[0] == 0 or array.shape[1] == 0:
        raise InvalidInputError(f"{name}: shape {array.shape} holds no values; give at least one row and one column")
    require_finite(array, name)
    return array


def require_targets(array: Any, name: str, rows: int | None = None) -> Array:
    """``array`` as finite float64 targets (n,) or (n, q) in host memory, with ``rows`` rows if given.

    Raises:
        InvalidInputError: not numeric, of another shape or length, or not finite; or predictive distributions.
    """
    if hasattr(array, "log_prob"):
        raise InvalidInputError(
            f"{name}: holds predictive distributions ({type(array).__name__}), expected targets; the order is "
            "(y, predictive), with inputs (x, y, predictive)"
        )
    targets = to_numpy(_as_floating(array, name)).astype(np.float64)
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    if targets.ndim not in (1, 2):
        raise InvalidInputError(f"{name}: expected shape (n,) or (n, q), got {targets.shape}")
    if rows is not None and len(targets) != rows:
        raise InvalidInputError(f"{name}: {len(targets)} rows, but the inputs have {rows}; they must match row by row")
    require_finite(targets, name)
    return targets


def row_slices(rows: int, at_once: float) -> list[slice]:
    """0, ..., rows - 1 in runs of ``at_once``, or of one where that is less: so many are in hand at a time."""
    step = max(1, int(at_once))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


class RowFields:
    """A dataclass whose fields have a part for each of n rows: arrays (n, ...), others of its kind, tuples of these."""

    _shared: ClassVar[tuple[str, ...]] = ()  # fields that are those of all rows
    _shared_points: ClassVar[tuple[str, ...]] = ()  # the same, unless they have two axes: then each row has its own

    @classmethod
    def _is_shared(cls, name: str, held: Any) -> bool:
        return name in cls._shared or (name in cls._shared_points and np.ndim(held) == 1)

    def _fields(self) -> dict[str, Any]:
        return {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(next(held for name, held in self._fields().items() if not self._is_shared(name, held)))

    def __getitem__(self, rows: Any) -> Self:
        held = self._fields().items()
        return self._made({name: each if self._is_shared(name, each) else _taken(each, rows) for name, each in held})

    @classmethod
    def concatenate(cls, parts: Sequence[Self]) -> Self:
        """The rows of ``parts`` one after another.

        Raises:
            InvalidInputError: what rows share differs, or rows of one part are wider than those of another.
        """
        listed, lengths = [part._fields() for part in parts], [len(part) for part in parts]
        return cls._made({name: cls._joined(name, [held[name] for held in listed], lengths) for name in listed[0]})

    @classmethod
    def _made(cls, held: dict[str, Any]) -> Self:
        made = object.__new__(cls)  # what was checked once stays right
        for name, each in held.items():
            object.__setattr__(made, name, each)
        return made

    @classmethod
    def _joined(cls, name: str, values: list[Any], lengths: list[int]) -> Any:
        first, place = values[0], f"{cls.__name__}.concatenate"
        if all(cls._is_shared(name, each) and np.array_equal(each, first) for each in values):
            return first
        if name in cls._shared:
            raise InvalidInputError(f"{place}: the parts have different {name}")
        if isinstance(first, tuple):
            return tuple(type(column[0]).concatenate(column) for column in zip(*values, strict=True))
        if hasattr(first, "concatenate"):
            return type(first).concatenate(values)
        if name in cls._shared_points:
            values = [np.broadcast_to(each, (n, each.shape[-1])) for each, n in zip(values, lengths, strict=True)]
        if len({each.shape[1:] for each in values}) > 1:
            raise InvalidInputError(f"{place}: rows of {name} have the shapes {[each.shape[1:] for each in values]}")
        return np.concatenate(values)


def _taken(held: Any, rows: Any) -> Any:
    """Some rows of a field; of one row alone, that row."""
    if isinstance(held, tuple):
        return tuple(each[rows] for each in held)
    some = held[rows]
    return some[None] if isinstance(held, np.ndarray) and some.ndim < held.ndim else some


def _as_floating(array: Any, name: str) -> Any:
    array = unmasked(array, name)
    if not hasattr(array, "__array__") or isinstance(array, (list, tuple)):
        array = np.asarray(array)
    if hasattr(array, "to_numpy"):
        array = array.to_numpy()
    xp = array_namespace(array)
    array = xp.asarray(array)
    if array.dtype.kind not in "biuf":
        raise InvalidInputError(f"{name}: holds {array.dtype} values, expected numbers; convert the column first")
    return array if array.dtype.kind == "f" and array.dtype.itemsize >= 4 else array.astype(np.float64)


def require_weights(weights: Any, n: int) -> Array:
    """Weights (n,) as numbers.

    Raises:
        InvalidInputError: another number of rows, a missing, infinite or negative weight by row, or none above 0.
    """
    found = np.asarray(weights, dtype=np.float64)
    if found.shape != (n,):
        raise InvalidInputError(f"weights: shape {found.shape}, expected one weight for each of the {n} rows")
    bad = ~np.isfinite(found) | (found < 0)
    if np.any(bad):
        row = int(np.argmax(bad))
        raise InvalidInputError(f"weights: row {row} is {found[row]:g}; give a finite weight of at least 0")
    if not np.any(found > 0):
        raise InvalidInputError(f"weights: all {n} are 0; at least one row must count")
    return found


def mean_one(weights: Any, n: int) -> Array:
    """Weights (n,) over their mean: sums with them are sums over rows."""
    found = require_weights(weights, n)
    return np.asarray(found / np.mean(found))


def mean_over(values: Array, weights: Array | None) -> float:
    """The mean of values (n,), weighted where there are weights; NaN where some are infinite of either sign."""
    with np.errstate(invalid="ignore"):
        return float(np.mean(values) if weights is None else np.average(values, weights=weights))


def root_and_square_means(
    squares_of: Callable[[Array], Array], drawn: Array, points: int, weights: Array | None
) -> tuple[Array, Array]:
    """Means of the roots of ``squares_of`` draws, (b, points) of (b, k, c), and of themselves, (B,) each."""
    roots, means = np.empty(len(drawn)), np.empty(len(drawn))
    for rows in row_slices(len(drawn), _SQUARES_TOGETHER / max(points * drawn.shape[2], 1)):
        squares = squares_of(drawn[rows])
        for found, values in ((roots, np.sqrt(squares)), (means, squares)):
            found[rows] = np.mean(values, axis=1) if weights is None else np.average(values, axis=1, weights=weights)
    return roots, means


def effective_rows(weights: Array) -> float:
    """(sum w)^2 / sum w^2: of how many equal rows a weighted mean is."""
    return float(np.sum(weights) ** 2 / np.sum(weights**2))


_SQUARES_TOGETHER = 250_000
FEWEST_EFFECTIVE = 20
"""Effective rows; fewer say too little of their own spread."""

_SHARE_THAT_SHOWS, _MANY_EFFECTIVE = 0.4, 1000


def too_few_rows(effective: float, rows: int) -> str:
    """Why a mean with so many effective rows has no interval; "" where it has.

    Simulated 95 % intervals of fewer than 20 are useless. Where fewer than four tenths of the rows are effective, as
    with weights exp(1.5 x), those that a sample lacks would decide: intervals of a score that grows with the weights
    cover .60 to .91, until there are a thousand (``tests/benchmarks/resampling.md``).
    """
    if effective < FEWEST_EFFECTIVE:
        return f"{effective:.0f} effective rows of {rows:,}, and intervals need {FEWEST_EFFECTIVE}"
    if effective < min(_SHARE_THAT_SHOWS * rows, _MANY_EFFECTIVE):
        return f"{effective:.0f} effective rows of {rows:,}: so few rows decide that an interval would be too short"
    return ""


def printed(result: object, **said: Any) -> str:
    """Returns how a result prints at a prompt, in four digits: ``Name(mean=0.1234, band=[0.01, 0.02], ...)``."""
    return f"{type(result).__name__}({', '.join(f'{name}={_short(value)}' for name, value in said.items())})"


def end_of_range(value: float, width: float) -> str:
    """Returns an end of a range in three digits of the ``width`` of all: 2018 of years, 30600 of incomes, 0.193."""
    more = max(0, round(math.log10(abs(value) / width))) if width > 0.0 and value else 0
    return f"{float(f'{value:.{3 + more}g}'):.15g}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_short, value))}]"
    return repr(value)


def as_rows(value: Any, name: str, family: str, *, infinite: bool = False) -> Array:
    """A parameter as finite (or, where allowed, infinite) float64 of shape (n,) in host memory; a scalar is one row."""
    rows = to_numpy(value, f"{family}.{name}")
    if rows.dtype.kind not in "biuf":
        raise InvalidInputError(f"{family}.{name}: holds {rows.dtype} values, expected numbers")
    rows = np.atleast_1d(rows).astype(np.float64)
    if rows.ndim == 2 and rows.shape[1] == 1:
        rows = rows[:, 0]
    if rows.ndim != 1:
        raise InvalidInputError(f"{family}.{name}: expected shape (n,), got {rows.shape}")
    require_finite(np.where(np.isinf(rows), 0.0, rows) if infinite else rows, f"{family}.{name}")
    return rows


def as_numbers(value: Any, name: str, shape: str, *dimensions: int) -> Array:
    """An array as finite float64 in host memory, if it has so many ``dimensions``; ``shape`` in words.

    Raises:
        InvalidInputError: another shape, not numbers, or not finite.
    """
    numbers = to_numpy(value, name)
    if numbers.dtype.kind not in "biuf" or numbers.ndim not in dimensions:
        raise InvalidInputError(
            f"{name}: expected numbers of shape {shape}, got {numbers.dtype} of shape {numbers.shape}"
        )
    require_finite(numbers, name)
    return numbers.astype(np.float64)


def require_parameter(valid: Array, values: Array, name: str, family: str, expected: str) -> None:
    """Raise InvalidInputError naming the first row whose parameter is not ``expected``."""
    if bool(np.all(valid)):
        return
    row = int(np.argmin(valid))
    share = f" ({int(np.sum(~valid))} of {len(values)} rows are not)" if len(values) > 1 else ""
    raise InvalidInputError(
        f"{family}.{name}: row {row} is {values[row]:g}, expected {expected}{share}; check the model's output column"
    )


def equal_rows(family: str, **parameters: Array) -> tuple[Array, ...]:
    """The parameters broadcast to one length.

    Raises:
        InvalidInputError: lengths differ and are not 1.
    """
    lengths = {name: len(values) for name, values in parameters.items()}
    n = max(lengths.values())
    if any(length not in (1, n) for length in lengths.values()):
        described = ", ".join(f"{name} has {length}" for name, length in lengths.items())
        raise InvalidInputError(f"{family}: parameters of different lengths ({described} rows)")
    return tuple(np.broadcast_to(values, (n, *values.shape[1:])) for values in parameters.values())


def align(value: Any, n: int, name: str = "y") -> tuple[Array, bool]:
    """``value`` as float64 that broadcasts against n rows, and whether it has a column axis.

    Raises:
        InvalidInputError: a vector of another length (levels for every row are written ``levels[None, :]``).
    """
    array = np.asarray(to_numpy(value, name), dtype=np.float64)
    if array.ndim == 0:
        return np.broadcast_to(array, (n,)), False
    if array.ndim == 1 and len(array) == n:
        return array, False
    if array.ndim == 2 and array.shape[0] in (1, n):
        return np.broadcast_to(array, (n, array.shape[1])), True
    raise InvalidInputError(
        f"{name}: shape {array.shape} does not fit {n} rows; give a scalar, one value per row, or (n, k); "
        f"for the same k values in every row give {name}[None, :]"
    )


def align_levels(q: Any, n: int) -> tuple[Array, bool]:
    """``align`` for probabilities q.

    Raises:
        InvalidInputError: see ``align``; or a level outside [0, 1], or NaN.
    """
    levels, columns = align(q, n, "q")
    inside = (levels >= 0.0) & (levels <= 1.0)
    if not bool(inside.all()):
        index = tuple(int(i) for i in np.argwhere(~inside)[0])
        raise InvalidInputError(
            f"q: row {index[0]} has the level {levels[index]:g}, expected probabilities in [0, 1]; divide "
            "per cent by 100"
        )
    return levels, columns


_ANEW = 32  # frequencies, after which waves are no longer products of those before them
_WAVES = 8000  # at once: they stay in the cache over all frequencies
_POINT = 1e-290  # half the width of a point, for the ratio sin(x) / x


def waves(values: Array, t: Array) -> Array:
    """exp(i t_j v), shape (..., m), for real values v (...) and frequencies t (m,)."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    result = np.empty((len(flat), len(t)), dtype=np.complex128)
    for some in row_slices(len(flat), _WAVES):
        for j, wave in enumerate(_turned(1j * flat[some], t)):
            result[some, j] = wave
    return result.reshape(*np.shape(values), len(t))


def average_wave(values: Array, weights: Array, t: Array, *, half_widths: Array | None = None) -> Array:
    """sum_k w_ik exp(i t_j v_ik), shape (n, m), for values (n, k), real or complex, and weights (k,) or (n, k).

    With ``half_widths`` h (n, k) of uniform distributions around the values in their place: each wave times sin(t h) /
    (t h).
    """
    result = np.empty((len(values), len(t)), dtype=np.complex128)
    for rows in row_slices(len(values), _WAVES // max(1, values.shape[1])):
        shares = weights[:, None] if weights.ndim == 1 else weights[rows].T
        turned = _turned(1j * np.ascontiguousarray(values[rows].T), t, shares)
        if half_widths is None:
            for j, wave in enumerate(turned):
                result[rows, j] = wave.sum(axis=0)
            continue
        half = np.maximum(np.ascontiguousarray(half_widths[rows].T), _POINT)
        inverse = 1.0 / half
        for j, (wave, of_width) in enumerate(zip(turned, _turned(1j * half, t), strict=True)):
            narrowed = wave if t[j] == 0.0 else wave * (of_width.imag * (inverse / t[j]))
            result[rows, j] = narrowed.sum(axis=0)
    return result


def _turned(phase: Array, t: Array, weight: Array | float = 1.0) -> Iterator[Array]:
    """weight exp(phase t_j) at one frequency after the other, in the same memory."""
    steps = np.diff(t)
    equally = len(t) > 2 and bool(np.allclose(steps, steps[0], rtol=1e-12, atol=0.0))
    turn = np.exp(phase * steps[0]) if equally else None
    wave = phase
    for j, frequency in enumerate(t):
        if turn is None or j % _ANEW == 0:
            wave = np.exp(phase * frequency) * weight
        else:
            wave *= turn
        yield wave
