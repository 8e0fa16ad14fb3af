"""Measurements are run seldom: what their scripts take of the program is there."""

import ast
import pkgutil
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_what_a_script_takes_of_the_program_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("congruence."):
            for each in node.names:
                pkgutil.resolve_name(f"{node.module}.{each.name}")
