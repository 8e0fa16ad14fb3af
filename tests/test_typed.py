"""A project of somebody else's, type-checked strictly against the installed package."""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = """
from congruence.flows.operations.listing import require_free
from congruence.kernels.errors import CongruenceError
from congruence.tasks.runtime.errors import SettingsError

error: CongruenceError = SettingsError("no such file")
require_free("127.0.0.1", "5000")
error.no_such_attribute
"""  # modules that need no others, so that nothing of theirs is checked again


def test_types_are_seen_from_outside(tmp_path: Path) -> None:
    """Without ``py.typed`` in a room, its names would be ``Any`` and every mistake pass."""
    venv.create(tmp_path / "venv", with_pip=False)
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (packages / "congruence").symlink_to(ROOT / "src" / "congruence")
    (tmp_path / "project.py").write_text(PROJECT)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(tmp_path / "venv" / "bin" / "python"),
         "--cache-dir", str(tmp_path / "cache"), "project.py"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert '"CongruenceError" has no attribute "no_such_attribute"' in done.stdout, done.stdout + done.stderr
    assert 'expected "int"' in done.stdout
    assert "Found 2 errors in 1 file" in done.stdout
