"""The pieces of the proof on a card name what is there, and one that fails leaves its record.

`python tests/gpu/prove all --device cpu --size small` rehearses them.
"""

import argparse
import ast
import importlib.util
import json
import pkgutil
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROVE = Path(__file__).parents[1] / "gpu" / "prove"
ROOT = PROVE.parents[2]


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROVE / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # its dataclasses ask for it
    spec.loader.exec_module(made)
    return made


def test_the_extra_brings_what_the_path_imports_and_all_of_it_is_pinned() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    extra.remove("congruence[images]")
    # Without numba Dask cannot send a CuPy array from one worker to another, and waits for it.
    wanted = {"rmm-cu13", "distributed-ucxx-cu13", "nvidia-ml-py", "dask-cuda[cu13]", "cupy-cuda13x[ctk]"}
    assert wanted | {"numba-cuda[cu13]"} == set(extra)
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    assert {name.split("[")[0] for name in extra} <= set(pins)
    rapids = {pins[name] for name in ("dask-cuda", "rmm-cu13", "librmm-cu13", "rapids-dask-dependency")}
    assert len(rapids) == 1  # of one release


@pytest.mark.parametrize("piece", sorted(path.stem for path in PROVE.glob("*.py")))
def test_what_a_piece_takes_of_our_code_is_there(piece: str) -> None:
    tree = ast.parse((PROVE / f"{piece}.py").read_text())
    taken = {
        (each.asname or each.name): f"{node.module}.{each.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("congruence")
        for each in node.names
    }
    ours = {name: pkgutil.resolve_name(path) for name, path in taken.items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner = ours.get(node.value.id)
            assert not isinstance(owner, ModuleType) or hasattr(owner, node.attr), f"{node.value.id}.{node.attr}"


@pytest.fixture
def recorded(tmp_path: Path) -> Any:
    module("utilisation")
    made = module("record").recorded
    return lambda: made("piece", argparse.Namespace(records=tmp_path, device="cpu", size="small"))


@pytest.mark.parametrize("how", ["fails", "is out of time"])
def test_a_piece_that_does_not_end_well_leaves_what_it_had(recorded: Any, tmp_path: Path, how: str) -> None:
    with recorded() as record:
        record.note(first=1.0)
        if how == "fails":
            raise RuntimeError("no such thing")
        try:
            signal.raise_signal(signal.SIGALRM)
        except Exception:
            pytest.fail("what catches errors caught the end of the time, and would have gone on")
    kept = json.loads((tmp_path / "piece-cpu-small.json").read_text())
    assert kept["findings"] == {"first": 1.0}
    assert kept["succeeded"] is False
    assert ("no such thing" if how == "fails" else "OutOfTime") in kept["failure"]
    assert signal.alarm(0) == 0  # no clock is left running


def test_a_piece_that_cannot_be_interrupted_is_ended(tmp_path: Path) -> None:
    code = f"""
import argparse, pathlib, sys
sys.path.insert(0, {str(PROVE)!r})
import record
record.REHEARSAL_SECONDS, record.GRACE_SECONDS = 0, 0.3
given = argparse.Namespace(records=pathlib.Path({str(tmp_path)!r}), device="cpu", size="small")
with record.recorded("piece", given) as kept:
    kept.note(first=1.0)
    while True:
        pass
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    kept = json.loads((tmp_path / "piece-cpu-small.json").read_text())
    assert ended.returncode == 1, ended.stderr
    assert kept["findings"] == {"first": 1.0}
    assert "could not be interrupted" in kept["failure"]


def test_a_piece_without_its_packages_names_them(tmp_path: Path) -> None:
    hidden = (
        "import importlib.util as u; f = u.find_spec; u.find_spec = lambda name: None if name == 'cupy' else f(name)"
    )
    code = f"{hidden}; import runpy, sys; sys.argv = ['prove', 'embedding', '--records', {str(tmp_path)!r}]"
    code += f"; sys.path.insert(0, {str(PROVE)!r}); runpy.run_path({str(PROVE)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    kept = json.loads((tmp_path / "embedding-cuda-full.json").read_text())
    assert "embedding needs cupy: pip install" in kept["failure"]
