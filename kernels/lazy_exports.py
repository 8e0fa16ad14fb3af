"""Packages that list what they export without importing it: a name's module is loaded when the name is first asked for.

Importing any module imports the packages around it first. Were those to import all they export, a command that only
wants an error class or a settings model would load SciPy, pandas, MLflow and Dask: seconds before the first line.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec


def lazy_exports(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` (PEP 562) of ``package``, whose exports stand under ``if TYPE_CHECKING:``.

    Type checkers and editors read those imports as they stand; at run time each is carried out when its name is first
    used, and kept. There is one list, in the place where everybody looks for it.

    A name that one of the package's own modules has as well cannot be exported so: importing the module would put the
    module in its place.
    """
    places = dict(_exports(package))

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(places[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *places})

    return get, names


def _exports(package: str) -> Iterator[tuple[str, str]]:
    """Each name imported under ``if TYPE_CHECKING:`` in the package's ``__init__``, and the module it comes from."""
    spec = find_spec(package)
    source = spec.loader.get_source(package) if spec is not None and spec.loader is not None else None  # type: ignore[attr-defined]
    if source is None:
        raise ImportError(f"{package}: its exports are read from its source, which is not installed")
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and node.module is not None:
                    yield from ((alias.name, node.module) for alias in node.names)
