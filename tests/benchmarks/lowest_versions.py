"""The tests of formats on the lowest versions that pyproject.toml allows: `python tests/benchmarks/lowest_versions.py`.

constraints.txt is the upper end of each range, on which all tests run; here every direct dependency of the extra
`formats` is installed at its lower end, by uv, into an environment that is removed again (--keep FOLDER leaves it).
What these bring is at most as new as in constraints.txt, and torch and torchvision are as there: a second build of them
takes gigabytes. What runs is the tests that read models, or those that are named. The record is lowest_versions.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "infra"))
from install import pip_settings, uv_command, uv_variables  # noqa: E402

TESTS = ["tests/tasks/formats", "tests/tasks/contract"]
RUNNER = ["pytest", "pytest-timeout", "hypothesis"]
HELD = ("torch==", "torchvision==")
FREE = ("autograd-gamma==", "lifelines==")  # the pinned ones are to be built, which takes a compiler


def installed(folder: Path) -> Path:
    """Make the environment; its Python.

    Raises:
        CalledProcessError: no versions fit together, or uv cannot reach an index.
    """
    uv = uv_command()
    if uv is None:
        raise SystemExit("uv cannot be installed here; it alone resolves to the lowest versions")
    environment = {**os.environ, **uv_variables(pip_settings(), os.environ)}
    subprocess.run([uv[0], "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    highest = (pin if pin.startswith(HELD) else pin.replace("==", "<=") for pin in pins if not pin.startswith(FREE))
    held = folder / "held.txt"
    held.write_text("\n".join(highest))
    into = [*uv, "install", "--quiet", "--python", str(python)]
    lowest = ["--resolution", "lowest-direct", "--only-binary", ":all:", "--constraint", str(held)]
    subprocess.run([*into, *lowest, "--editable", f"{ROOT}[formats]"], env=environment, check=True)
    subprocess.run([*into, "--constraint", str(ROOT / "constraints.txt"), *RUNNER], env=environment, check=True)
    found = subprocess.run([*uv, "freeze", "--python", str(python)], capture_output=True, text=True, check=True).stdout
    print(found, flush=True)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tests", nargs="*", default=TESTS)
    parser.add_argument("--keep", type=Path, help="folder of the environment, which is then not removed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        python = folder / "venv" / "bin" / "python"
        if not python.exists():
            python = installed(folder)
        command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *given.tests]
        return subprocess.run(command, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
