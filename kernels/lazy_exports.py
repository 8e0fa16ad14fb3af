"""Packages that export names without importing them: a name's module is loaded when the name is first asked for.

Importing any module imports the packages around it first. Were those to import all they export, a command that only
wants an error class or a settings model would load SciPy, pandas, MLflow and Dask: seconds before the first line.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping


def lazy_exports(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` (PEP 562) and ``__all__`` of ``package``.

    A name that one of the package's own modules has as well cannot be exported so: importing the module would put the
    module in its place.

    Args:
        package: its ``__name__``.
        modules: the names that each module defines, with blanks between them. Type checkers read the same under ``if
            TYPE_CHECKING:``.
    """
    places = {name: module for module, names in modules.items() for name in names.split()}

    def get(name: str) -> object:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(places[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted({*vars(sys.modules[package]), *places}), sorted(places)
