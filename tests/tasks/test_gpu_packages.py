"""What GPU packages offer is what the code uses, and what the real CuPy is run with where there is no card."""

from __future__ import annotations

import argparse
import ast
import ctypes
import importlib
import importlib.util
import json
import pkgutil
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import scipy.linalg

PROVE = Path(__file__).parents[1] / "gpu" / "prove"
ROOT = PROVE.parents[2]


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, PROVE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made  # its dataclasses ask for it
    spec.loader.exec_module(made)
    return made


@pytest.fixture(scope="module")
def api() -> Any:
    return module("api")


@pytest.fixture(scope="module")
def packages(api: Any) -> Any:
    return module("packages")


def test_every_name_that_the_code_uses_was_found_in_the_pinned_packages(api: Any, packages: Any) -> None:
    kept, pins = json.loads(packages.NAMES.read_text()), packages.pins()
    assert {name: pins[name] for name in kept["versions"]} == kept["versions"]
    remedy = "run 'make check-gpu-packages' and keep tests/gpu/cupy_names.json"
    for name, use in api.used_names().items():
        known = kept["names"].get(name)
        assert known is not None, f"{name} was not asked for: {remedy}"
        assert use.positional <= known["positional"], f"{name} has more arguments than were asked for: {remedy}"
        assert use.keywords <= set(known["keywords"]), f"{name} has keywords that were not asked for: {remedy}"


def test_the_extra_brings_what_the_path_imports_and_all_of_it_is_pinned(packages: Any) -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gpu"]
    extra.remove("congruence[images]")
    # Without numba Dask cannot send a CuPy array from one worker to another, and waits for it.
    wanted = {"rmm-cu13", "distributed-ucxx-cu13", "nvidia-ml-py", "dask-cuda[cu13]", "cupy-cuda13x[ctk]"}
    assert wanted | {"numba-cuda[cu13]"} == set(extra)
    pins = packages.pins()
    assert {name.split("[")[0] for name in extra} <= set(pins)
    rapids = {pins[name] for name in ("dask-cuda", "rmm-cu13", "librmm-cu13", "rapids-dask-dependency")}
    assert len(rapids) == 1  # of one release


def test_names_are_read_off_the_source_and_refused_where_they_do_not_exist(api: Any) -> None:
    import ast

    source = (
        "xp = array_namespace(x)\nxp.linalg.cholesky(a)\nxp.zeros(3, dtype=int)\narray_namespace(x).ones(2)\nxp.nan"
    )
    uses = dict(api._of_file(ast.parse(source)))
    assert {"cupy.linalg.cholesky", "cupy.zeros", "cupy.ones", "cupy.nan"} <= set(uses)
    assert uses["cupy.zeros"].keywords == {"dtype"}
    wrong = {
        "numpy.linalg.cholesky": api.Use(1, {"lower"}, True),
        "numpy.no_such_name": api.Use(),
        "numpy.exp": api.Use(1, {"overwrite"}, True),
        "numpy.linalg.norm": api.Use(1, {"axis"}, True),
        "no_such_package.name": api.Use(),
    }
    refused = api.refused(wrong)
    assert len(refused) == 4
    assert not any("numpy.linalg.norm" in line for line in refused)


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


def test_a_resolution_without_pins_or_with_the_processors_torch_is_refused(packages: Any) -> None:
    found = {name: (packages.pins()[name], "https://files") for name in packages.WANTED}
    assert packages.objections(found) == []
    wrong = found | {"torch": ("2.13.0+cpu", "file:///"), "new-package": ("1.0", "https://files")}
    del wrong["rmm-cu13"]
    lines = " ".join(packages.objections(wrong))
    assert "rmm-cu13 is not among" in lines
    assert "new-package==1.0 is not pinned" in lines
    assert "torch 2.13.0+cpu is the processor's" in lines


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


PROVE = Path(__file__).parents[1] / "gpu" / "prove"

SOURCE = """
typedef float T;
extern "C" __global__ void congruence_sum(const CArray<float, 2, 0, 1> _raw_x, const T* __restrict__ y, const int n) {
    __shared__ T held[4];
    held[threadIdx.x] = y[4 * blockIdx.x + threadIdx.x];
    __syncthreads();
    T total = 0;
    for (int i = 0; i < n; ++i) total += held[i];
    const_cast<T*>(y)[4 * blockIdx.x + threadIdx.x] = total + __shfl_xor_sync(0xffffffff, T(threadIdx.x), 1);
}
"""


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Imports a module of the proof, which is no package, and forgets what came with it."""
    monkeypatch.syspath_prepend(str(PROVE))
    before = set(sys.modules)
    yield importlib.import_module
    for name in ({path.stem for path in PROVE.glob("*.py")} & set(sys.modules)) - before:
        sys.modules.pop(name)


@pytest.fixture
def host_card(imported: Callable[[str], Any]) -> Any:
    return imported("host_card")


def pointer(array: np.ndarray) -> int:
    return int(array.ctypes.data)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_libraries_compute_what_they_are_documented_to(host_card: Any, dtype: Any) -> None:
    rng, letter = np.random.default_rng(0), "s" if dtype is np.float32 else "d"
    a, b, c = (np.asfortranarray(rng.standard_normal(shape), dtype=dtype) for shape in ((3, 5), (5, 4), (3, 4)))
    alpha, beta = (np.array([value], dtype=dtype) for value in (2.0, 0.5))
    expected, places = 2.0 * a @ b + 0.5 * c, [pointer(each) for each in (alpha, a, b, beta, c)]
    host_card.CUBLAS[f"{letter}gemm"](
        1, 0, 0, 3, 4, 5, places[0], places[1], 3, places[2], 5, places[3], places[4], 3, 0
    )
    np.testing.assert_allclose(c, expected, rtol=1e-5)
    matrix = np.asfortranarray(a.T @ a + 5.0 * np.eye(5), dtype=dtype)
    factor, info = matrix.copy(order="F"), np.full(1, -1, dtype=np.int32)
    host_card.CUSOLVER[f"{letter}potrf"](1, 0, 5, pointer(factor), 5, 0, 0, pointer(info), 0)
    lower = np.asfortranarray(np.tril(factor))
    np.testing.assert_allclose(lower @ lower.T, matrix, rtol=1e-4, atol=1e-5)
    assert info[0] == 0
    matrix[2, 2] = -1.0
    host_card.CUSOLVER[f"{letter}potrf"](1, 0, 5, pointer(matrix), 5, 0, 0, pointer(info), 0)
    assert info[0] == 3
    solved, one = b.copy(order="F"), np.ones(1, dtype=dtype)
    host_card.CUBLAS[f"{letter}trsm"](1, 0, 0, 1, 0, 5, 4, pointer(one), pointer(lower), 5, pointer(solved), 5, 0)
    exact = scipy.linalg.solve_triangular(lower, b, lower=True, trans=1)
    np.testing.assert_allclose(solved, exact, rtol=1e-4, atol=1e-5)


def test_a_kernel_with_threads_that_wait_for_each_other_is_run(host_card: Any, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    types = host_card.parameter_types(SOURCE, "congruence_sum")
    assert types == ["CArray<float, 2, 0, 1>", "T*", "int"]
    host_card.includes = list
    launches = host_card.Launches(tmp_path)
    source = "template <typename, int, bool, bool> struct CArray {};\n" + SOURCE
    module = launches.driver["moduleLoadData"](source.encode())
    function = launches.driver["moduleGetFunction"](module, "congruence_sum")
    y, count, empty = np.arange(8, dtype=np.float32), ctypes.c_int(4), ctypes.create_string_buffer(64)
    expected = np.repeat(y.reshape(2, 4).sum(axis=1), 4) + np.tile([1, 0, 3, 2], 2)
    place = ctypes.c_void_p(pointer(y))
    given = (ctypes.c_void_p * 3)(*(ctypes.addressof(each) for each in (empty, place, count)))
    launches.driver["launchKernel"](function, 2, 1, 1, 4, 1, 1, 0, 0, ctypes.addressof(given), 0)
    assert launches.failures == []
    np.testing.assert_allclose(y, expected)
