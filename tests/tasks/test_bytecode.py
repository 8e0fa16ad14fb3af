"""Packages are compiled once also where Python leaves no bytecode beside the sources, and these stay as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
sys.prefix = sys.argv[1]
from congruence.tasks.runtime.bytecode import keep_bytecode
keep_bytecode("given")
import given
import subprocess
subprocess.run([sys.executable, "-c", "import given.later"], check=True)
"""


@pytest.mark.parametrize("compiled", [False, True])
def test_bytecode_is_kept_in_the_environment_where_it_may_not_lie_beside_the_sources(
    tmp_path: Path, compiled: bool
) -> None:
    package, prefix = tmp_path / "packages" / "given", tmp_path / "prefix"
    package.mkdir(parents=True)
    for name in ("__init__", "later"):
        (package / f"{name}.py").write_text("")
    variables = {"PYTHONPATH": str(package.parent)}
    if compiled:
        subprocess.run([sys.executable, "-c", "import given"], env=variables, check=True)
    before = sorted(path.name for path in package.iterdir())
    variables |= {"PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", CODE, str(prefix)], env=variables, check=True)
    assert sorted(path.name for path in package.iterdir()) == before
    kept = {path.name.split(".")[0] for path in prefix.rglob("given/*.pyc")}
    assert kept == (set() if compiled else {"__init__", "later"})
