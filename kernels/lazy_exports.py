"""Packages that export names without importing them: a name's module is loaded when the name is first asked for.

Importing any module imports the packages around it first. Were those to import all they export, a command that only
wants an error class or a settings model would load SciPy, pandas, MLflow and Dask: seconds before the first line.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` (PEP 562) and ``__all__`` of ``package``.

    The names are those that its ``file`` imports under ``if TYPE_CHECKING:``, where type checkers read them. One that a
    module of the package has as well cannot be exported so: importing the module would put the module in its place.
    """
    (block,) = (each for each in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(each, ast.If))
    imports = [each for each in block.body if isinstance(each, ast.ImportFrom)]
    places = {alias.name: str(each.module) for each in imports for alias in each.names}

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(places[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *places}), sorted(places)
