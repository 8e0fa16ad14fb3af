"""What a reader of models is, and what it gives: the name of a family and its parameters, before anything checks them.

A library's reader is a subclass of ``Reader`` in one module, which its package names in its metadata::

    [project.entry-points."congruence.readers"]
    acme = "acme_congruence:AcmeReader"
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
APPROXIMATE = "no family here: read as {} quantiles from level 1e-6 to 1 - 1e-6"


class UnreadableOutputError(ValueError):
    """What a model returned, or how it is to be asked, cannot be read: names what was found and what to write."""


@dataclass(frozen=True)
class Spec:
    """The predictive distributions of n rows, as a reader found them.

    Attributes:
        family: its name in settings, such as "student_t".
        parameters: by their names in the family: (n,), or a matrix of n rows; those that rows share as the family has
            them.
        components: of a mixture, whose one parameter is ``weights``.
        note: what a person should know: an approximation, a parametrisation.
    """

    family: str
    parameters: Mapping[str, Array] = field(default_factory=dict)
    components: tuple[Spec, ...] = ()
    note: str = ""

    def noted(self, note: str) -> Spec:
        """Returns the same with a note."""
        return replace(self, note=note)

    def flatten(self) -> tuple[dict[str, Any], list[Array]]:
        """Returns a description that JSON takes, and the arrays that it counts."""
        arrays: list[Array] = []
        return self._flatten(arrays), arrays

    def _flatten(self, arrays: list[Array]) -> dict[str, Any]:
        places = {}
        for name, values in self.parameters.items():
            places[name] = len(arrays)
            arrays.append(np.asarray(values))
        parts = [part._flatten(arrays) for part in self.components]
        return {"family": self.family, "parameters": places, "components": parts, "note": self.note}


def unflatten(description: Mapping[str, Any], arrays: list[Array]) -> Spec:
    """Returns what ``Spec.flatten`` described."""
    parameters = {name: arrays[place] for name, place in description["parameters"].items()}
    parts = tuple(unflatten(part, arrays) for part in description["components"])
    return Spec(description["family"], parameters, parts, description["note"])


def spec(family: str, **parameters: Any) -> Spec:
    """Returns a specification with float64 parameters: columns (n, 1) become rows (n,)."""
    return Spec(family, {name: as_array(value) for name, value in parameters.items()})


class Parameters:
    """The parameters of a library's distribution as attributes, each read by ``read`` when a family asks for it."""

    def __init__(self, read: Callable[[str], Array]) -> None:
        self._read = read

    def __getattr__(self, name: str) -> Array:
        return self._read(name)


@dataclass(frozen=True)
class Call:
    """A method and the arguments after its inputs; "" is the model itself."""

    method: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)

    def of(self, model: Any, inputs: Any) -> Any:
        """Returns what the method of ``model`` answers for ``inputs``."""
        return getattr(model, self.method)(inputs, *self.arguments, **self.keywords)


@dataclass(frozen=True)
class Known:
    """How a fitted model of a known class is asked.

    Attributes:
        call: the method and its arguments.
        said: in words.
        read: of an answer that is an array (n, k), what it means; None where the answer tells itself what it is.
    """

    call: Call
    said: str
    read: Callable[[Array], Spec | None] | None = None


@dataclass(frozen=True)
class Asked:
    """What is known of where an output came from: what was asked of which model, as far as that is known."""

    call: Call | None = None
    model: Any = None
    known: Known | None = None

    @property
    def keywords(self) -> Mapping[str, Any]:
        """The keywords of the call."""
        return {} if self.call is None else self.call.keywords


class Reader:
    """How the models of one library are asked, and what they return is read. Each method may know nothing of its case.

    Attributes:
        order: who is asked first, the least: a reader that goes by names and structure, and not by a library's classes,
            comes last.
        package: whose models have the method of ``call``, where that is all there is to know of them.
        call: how they are asked.
        said: the same in words; by default the method.
    """

    order = 50
    package = ""
    call: Call | None = None
    said = ""

    def known(self, model: Any) -> Known | None:
        """Returns how a fitted model is asked, by its class and settings; None where these do not tell."""
        if self.call is None or not is_of(model, self.package) or not hasattr(model, self.call.method):
            return None
        return Known(self.call, self.said or self.call.method)

    def ask(self, model: Any, call: Call, inputs: Any) -> Any:
        """Returns the answer of a model that takes its inputs in a way of its own; NotImplemented for others."""
        return NotImplemented

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        """Returns the predictive distributions in what a model returned for ``rows`` rows; None where it is not known.

        Raises:
            UnreadableOutputError: it is known, and is no distribution.
        """
        return None


def parse_call(text: str) -> Call:
    """Returns what ``predictions.method`` names, without running it: ``pred_dist``, ``predict(return_std=True)``.

    The model's inputs go before the arguments. Arguments are literals: numbers, strings, lists, tuples, dicts, booleans
    and None.

    Raises:
        ValueError: anything else.
    """
    expected = (
        f"method: {text!r} must be the name of a method, or a call of it with literal arguments, "
        "such as predict(return_std=True); the inputs are put before them"
    )
    try:
        node = ast.parse(text.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name) or any(word.arg is None for word in call.keywords):
            raise ValueError(expected)
        arguments = tuple(ast.literal_eval(value) for value in call.args)
        keywords = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    except (SyntaxError, ValueError, TypeError) as error:
        raise ValueError(expected) from error
    if call.func.id.startswith("_"):
        raise ValueError(f"method: {text!r} is a private method of the model; name a public one")
    return Call(call.func.id, arguments, keywords)


def as_array(value: Any) -> Array:
    """Returns a tensor, Series, list or array as float64 in host memory; (n, 1) as (n,).

    Raises:
        UnreadableOutputError: a value that is no number, by its row.
    """
    value = on_host(value)
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UnreadableOutputError(_no_number(value) or str(error)) from error
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def on_host(value: Any) -> Any:
    """Returns a tensor in host memory, without its gradient and in a type that NumPy has; others as they are."""
    for step in ("detach", "cpu"):
        take = getattr(value, step, None)
        value = take() if callable(take) else value
    return value.float() if str(getattr(value, "dtype", "")) == "torch.bfloat16" else value


def columns_of(output: Any) -> dict[str, Array]:
    """Returns the columns of whatever a model returns, by their names; those of a matrix are "0", "1", ....

    Raises:
        TypeError: it has none, or two of one name.
    """
    if hasattr(output, "iloc") and hasattr(output, "columns"):
        names = [str(name) for name in output.columns]
        if len(set(names)) < len(names):
            repeated = min(name for name in names if names.count(name) > 1)
            raise TypeError(f"output column {repeated!r} occurs more than once; give every column its own name")
        return {name: as_plain(output.iloc[:, place]) for place, name in enumerate(names)}
    if hasattr(output, "iloc"):
        return {str(0 if output.name is None else output.name): as_plain(output)}
    if hasattr(output, "items"):
        return {str(name): as_plain(output[name]) for name in output}
    array = as_plain(output)
    if array.ndim != 2 or array.dtype.kind == "O":
        return {"0": array}
    return {str(place): array[:, place] for place in range(array.shape[1])}


def _no_number(value: Any) -> str:
    """Which value of a column or a matrix is no number; "" where none is by itself."""
    for row, each in enumerate(value):
        for one in each if np.ndim(each) else (each,):
            try:
                float(one)
            except (TypeError, ValueError):
                name, one = getattr(value, "name", None), one.item() if isinstance(one, np.generic) else one
                return f"{'' if name is None else f'column {name!r}, '}row {row} is {one!r}, expected a number"
    return ""


def as_plain(values: Any) -> Array:
    """Returns a Series, tensor, list or array as an array as it is; missing numbers of pandas' own types are NaN.

    Raises:
        TypeError: another type.
    """
    array = on_host(values)
    if hasattr(array, "to_numpy"):
        kind = getattr(array, "dtype", None)
        nullable = getattr(kind, "na_value", None) is not None and getattr(kind, "kind", "O") in "biuf"
        return np.asarray(array.to_numpy(dtype=np.float64, na_value=np.nan) if nullable else array.to_numpy())
    try:
        found = np.asarray(array)
    except ValueError:  # rows of different lengths
        rows = list(array)
        found = np.empty(len(rows), dtype=object)
        found[:] = rows
    if found.dtype.kind not in "biufOUS":
        raise TypeError(
            f"predict returned {type(values).__name__}; return a DataFrame, a dict of arrays, an array or a tensor of "
            "numbers"
        )
    return found


def broadcast(value: Any, rows: int) -> Array:
    """Returns one value per row.

    Raises:
        UnreadableOutputError: it holds another number of values.
    """
    values = as_array(value)
    if values.shape not in ((), (1,), (rows,)):
        raise UnreadableOutputError(
            f"a parameter has shape {values.shape}, expected one value for each of the {rows} rows, or one for all"
        )
    return np.broadcast_to(values, (rows,)).copy()


def as_matrix(output: Any, rows: int) -> Array | None:
    """Returns a numeric array or frame as (rows, k); None where it is another."""
    if isinstance(output, (Mapping, tuple, str)) or output is None:
        return None
    try:
        values = as_array(output)
    except (TypeError, ValueError):
        return None
    if values.ndim == 1 and len(values) == rows:
        return values[:, None]
    return values if values.ndim == 2 and len(values) == rows else None


def as_poisson(matrix: Array) -> Spec | None:
    """Returns the Poisson distributions of means (n, 1)."""
    return spec("poisson", rate=matrix[:, 0]) if matrix.shape[1] == 1 else None


def as_quantiles(levels: Sequence[float]) -> Callable[[Array], Spec | None]:
    """Returns a reader of quantiles (n, K) at these levels, in any order."""

    def read(matrix: Array) -> Spec | None:
        if matrix.shape[1] != len(levels):
            return None
        order = np.argsort(levels)
        return spec("quantiles", levels=np.asarray(levels)[order], values=matrix[:, order])

    return read


def as_normal(mean: Any, spread: Any, *, squared: bool = False) -> Spec:
    """Returns the normal distributions of a mean and a standard deviation, or a variance."""
    scale = as_array(spread)
    return spec("normal", loc=mean, scale=np.sqrt(scale) if squared else scale)


def by_quantiles(quantile: Callable[[Array], Any], rows: int, what: str) -> Spec:
    """Returns distributions that have no family here, by a quantile function from levels (k, 1) to (k, rows).

    They are read at levels up to 1e-6 from the ends.
    """
    tails = np.array([1e-6, 1e-5, 1e-4, 5e-4, 1e-3])
    levels = np.unique(np.concatenate([tails, np.arange(1, 400) / 400.0, 1.0 - tails]))
    values = np.broadcast_to(np.asarray(quantile(levels[:, None]), dtype=np.float64), (len(levels), rows))
    return spec("quantiles", levels=levels, values=values.T).noted(f"{what} has {APPROXIMATE.format(len(levels))}")


def negative_binomial(total_count: Any, probs: Any) -> Spec:
    """Successes of probability p = ``probs`` before ``total_count`` failures: the mean is total_count p / (1 - p)."""
    total, p = as_array(total_count), as_array(probs)
    return spec("negative_binomial", mean=total * p / (1.0 - p), dispersion=1.0 / total)


def softmax(logits: Array) -> Array:
    """Returns shares that add up to 1 over the last axis."""
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=-1, keepdims=True))


def kinds(found: Any) -> list[str]:
    """Returns the names of an object's class and its bases, nearest first, without their modules."""
    return [kind.__name__ for kind in type(found).__mro__]


def quoted(names: Iterable[Any], most: int = 12) -> str:
    """Returns the first names of columns, each as Python writes it; "none" where there is none."""
    listed = [repr(str(name)) for name in names]
    return (", ".join(listed[:most]) or "none") + (", ..." if len(listed) > most else "")


def is_of(found: Any, package: str, name: str | None = None) -> bool:
    """Returns whether the object's class, or one of its bases, comes from ``package`` (and has this name)."""
    return any(
        kind.__module__.split(".")[0] == package and (name is None or kind.__name__ == name)
        for kind in type(found).__mro__
    )


def is_quantile_regression(model: Any) -> bool:
    """Returns whether ``model`` predicts the quantile of one level: statsmodels, scikit-learn, LightGBM, XGBoost."""
    if is_of(model, "statsmodels"):
        return type(getattr(model, "model", None)).__name__ == "QuantReg"
    if is_of(model, "sklearn") and type(model).__name__ == "QuantileRegressor":
        return True
    settings = getattr(model, "params", None)
    named = [getattr(model, name, None) for name in ("loss", "objective")]
    named += [settings.get("objective")] if isinstance(settings, dict) else []
    return any(str(name).lower() in ("quantile", "reg:quantileerror") for name in named)
