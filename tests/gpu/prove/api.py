"""Which names of the GPU packages the code uses, with which parameters, read off its source; and whether they exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
ROOMS = ("kernels", "tasks", "flows")
MODULES = {"cupy": "cupy", "cupyx": "cupyx", "pynvml": "pynvml", "rmm": "rmm", "dask_cuda": "dask_cuda"}
UFUNC_KEYWORDS = {"out", "dtype", "casting", "where", "axis", "keepdims"}
_NUMPY_ONLY = {"xp.ma"}


@dataclass
class Use:
    """A name with the most positional arguments and all keywords that it is called with."""

    positional: int = 0
    keywords: set[str] = field(default_factory=set)
    called: bool = False


def used_names() -> dict[str, Use]:
    """What the rooms use, by full name such as ``cupy.linalg.cholesky``; ``xp`` counts as cupy."""
    found: dict[str, Use] = {}
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            for name, use in _of_file(ast.parse(path.read_text())):
                known = found.setdefault(name, Use())
                known.positional = max(known.positional, use.positional)
                known.keywords |= use.keywords
                known.called |= use.called
    return found


def _of_file(tree: ast.Module) -> Iterator[tuple[str, Use]]:
    imported: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in MODULES:
                    imported[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
                    yield alias.name, Use()
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in MODULES:
            for alias in node.names:
                imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}", Use()
    imported.setdefault("xp", "cupy")
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name) or id(node) in inner:
            continue
        name = _full_name(node, imported)
        if name is None or name in MODULES:
            continue
        call = calls.get(id(node))
        if call is None:
            yield name, Use()
        else:
            keywords = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
            yield name, Use(len(call.args), keywords, True)


def _full_name(node: ast.expr, imported: dict[str, str]) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "array_namespace":
        root = "cupy"
    elif isinstance(node, ast.Name) and node.id in imported:
        root = imported[node.id]
    else:
        return None
    return ".".join([root, *reversed(parts)])


def refused(uses: dict[str, Use]) -> list[str]:
    """Why the installed packages do not have what ``uses`` asks for, a line each."""
    return [line for name, use in sorted(uses.items()) if (line := _why_not(name, use))]


def _why_not(name: str, use: Use) -> str:
    try:
        value = _resolve(name)
    except (AttributeError, ImportError) as error:
        return f"{name}: {error}"
    if not use.called:
        return ""
    return _why_not_called(name, value, use)


def _resolve(name: str) -> Any:
    parts = name.split(".")
    for split in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:split]))
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            continue
        for part in parts[split:]:
            value = getattr(value, part)
        return value
    raise ImportError(f"no module {parts[0]}")


def _why_not_called(name: str, value: Any, use: Use) -> str:
    if type(value).__name__ in ("ufunc", "_UFunc"):
        unknown = use.keywords - UFUNC_KEYWORDS
        return f"{name}: ufuncs take no {', '.join(sorted(unknown))}" if unknown else ""
    signature = _signature(value)
    if signature is None:
        return ""  # a C function without a signature: that it exists is all that can be said
    try:
        signature.bind_partial(*[None] * use.positional, **dict.fromkeys(use.keywords))
    except TypeError as error:
        return f"{name}{signature}: {error}"
    return ""


def _signature(value: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        pass
    # Cython writes it into the docstring, with C types where Python has annotations.
    first = (getattr(value, "__doc__", None) or "").strip().split("\n")[0]
    found = re.match(r"\w+\((?:self,? ?)?(.*?)\)(?: ->.*)?$", first)
    if found is None:
        return None
    plain = re.sub(r"\b(?:str|bint|bool|int|tuple|float|object|size_t|intptr_t|Py_ssize_t)\s+(?=\w)", "", found[1])
    try:
        return inspect.signature(eval(f"lambda {plain}: None", {}))  # a signature of the package's own
    except (SyntaxError, NameError):
        return None
