"""Packages that list what they export without importing it."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAZY = [
    "congruence." + ".".join(path.parent.relative_to(ROOT).parts)
    for room in ("kernels", "tasks")
    for path in sorted((ROOT / room).rglob("__init__.py"))
    if "= lazy_exports(" in path.read_text()
]


@pytest.mark.parametrize("name", LAZY)
def test_every_export_is_there_and_none_is_hidden_by_a_module_of_its_name(name: str) -> None:
    package = importlib.import_module(name)
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert len(set(package.__all__)) == len(package.__all__)
    assert not modules & set(package.__all__), "importing the module would put it in the export's place"
    assert all(getattr(package, export) is not None for export in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing_of_this_name'"):
        package.nothing_of_this_name  # noqa: B018


def test_an_error_class_costs_no_numerics() -> None:
    code = "import sys; from congruence.kernels import CongruenceError; print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


def test_users_find_errors_and_warnings_beside_the_functions_that_raise_them() -> None:
    import congruence.kernels as kernels

    errors = ("CongruenceError", "InvalidInputError", "BudgetError", "ConvergenceError", "ProtocolError")
    assert {*errors, "NearlyConstantKernelWarning"} <= set(kernels.__all__)
    assert all(issubclass(getattr(kernels, name), kernels.CongruenceError) for name in errors)
    assert issubclass(kernels.NearlyConstantKernelWarning, UserWarning)
