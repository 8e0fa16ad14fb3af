"""``predictions.method``: which method of the native model is asked, with which literal arguments."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Call:
    """A method and the arguments after its inputs; "" is the model itself."""

    method: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] = field(default_factory=dict)


def parse_call(text: str) -> Call:
    """``pred_dist``, ``predict(return_std=True)``, ``predict_quantiles(alpha=[.1, .9])``: what is named, not run.

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
    except SyntaxError as error:
        raise ValueError(expected) from error
    if isinstance(node, ast.Name):
        return Call(_public(node.id, text))
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        raise ValueError(expected)
    try:
        arguments = tuple(ast.literal_eval(value) for value in node.args)
        keywords = {str(word.arg): ast.literal_eval(word.value) for word in node.keywords if word.arg is not None}
    except (ValueError, TypeError) as error:
        raise ValueError(expected) from error
    if len(keywords) != len(node.keywords):
        raise ValueError(expected)
    return Call(_public(node.func.id, text), arguments, keywords)


def _public(name: str, text: str) -> str:
    if name.startswith("_"):
        raise ValueError(f"method: {text!r} is a private method of the model; name a public one")
    return name
