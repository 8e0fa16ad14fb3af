"""The GPU packages: resolved as pip would, downloaded, asked for every name used, and run; no card is needed.

    python tests/gpu/prove check-packages --device cpu

Nothing is installed into the environment that runs this: a virtual environment of its own, in a folder that is removed
again, takes the packages. What they offer is kept in tests/gpu/cupy_names.json, against which a test without them
checks the code. Then the real CuPy runs ``pytest -m gpu`` on a card that is pretended (see
``no_card``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import asdict
from pathlib import Path
from typing import Any

import api

CONSTRAINTS = api.ROOT / "constraints.txt"
NAMES = api.ROOT / "tests" / "gpu" / "cupy_names.json"
WANTED = ("cupy-cuda13x", "dask-cuda", "distributed-ucxx-cu13", "rmm-cu13", "nvidia-ml-py", "torch", "torchvision")
NO_CARD = "CONGRUENCE_NO_CARD"
"""See ``no_card``, which only an environment with CuPy can import."""

TESTS_SECONDS = 600
NOT_ASKED = (
    "torch",
    "torchvision",
    "triton",
    "nvidia-cudnn-cu13",
    "nvidia-nccl-cu13",
    "nvidia-nvshmem-cu13",
    "nvidia-cusparselt-cu13",
    "congruence",
)
"""Gigabytes whose Python side is that of the processor's torch, which is asked in its place."""
NEEDED = (
    "numpy",
    "dask",
    "distributed",
    "click",
    "pandas",
    "zict",
    "pyyaml",
    "toolz",
    "cloudpickle",
    "fsspec",
    "packaging",
    "partd",
    "locket",
    "jinja2",
    "markupsafe",
    "msgpack",
    "psutil",
    "sortedcontainers",
    "tblib",
    "tornado",
    "urllib3",
    "python-dateutil",
    "six",
    "tzdata",
    "bokeh",
    "importlib-metadata",
    "zipp",
    "scipy",
)


def pins() -> dict[str, str]:
    """The constraints, by normalised name."""
    lines = [line.split("#")[0].strip() for line in CONSTRAINTS.read_text().splitlines()]
    return {_normal(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}


def resolved() -> dict[str, tuple[str, str]]:
    """Version and address of what ``pip install -c constraints.txt '.[gpu]'`` would install, by name."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--report", str(report), "--constraint", str(CONSTRAINTS), f"{api.ROOT}[gpu]"]
        subprocess.run(command, check=True, cwd=folder)
        found = json.loads(report.read_text())["install"]
    return {
        _normal(each["metadata"]["name"]): (each["metadata"]["version"], each["download_info"]["url"]) for each in found
    }


def objections(found: dict[str, tuple[str, str]]) -> list[str]:
    """What is wrong with a resolution: packages without a pin, missing ones, a torch for the processor."""
    known = pins()
    lines = [f"{name} is not among what pip would install" for name in WANTED if name not in found]
    lines += [
        f"{name}=={version} is not pinned in constraints.txt"
        for name, (version, _) in sorted(found.items())
        if name != "congruence" and known.get(name) != version.split("+")[0]
    ]
    lines += [
        f"{name} {found[name][0]} is the processor's: an index of this pip's configuration has it; run with "
        "PIP_CONFIG_FILE=/dev/null PIP_FIND_LINKS= PIP_EXTRA_INDEX_URL="
        for name in ("torch", "torchvision")
        if "+cpu" in found.get(name, ("", ""))[0]
    ]
    return lines


def install(found: dict[str, tuple[str, str]], folder: Path) -> Path:
    """The interpreter of a virtual environment in ``folder`` with the packages that are asked."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    chosen = [
        f"{name}=={version}"
        for name, (version, _) in sorted(found.items())
        if name in NEEDED or (name not in NOT_ASKED and _is_of_the_block(name))
    ]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--no-compile", "--only-binary", ":all:", *chosen], check=True)
    _complete(folder)
    return python


def _complete(folder: Path) -> None:
    """What is not downloaded comes from the interpreter that runs this; every process can be made to pretend a card."""
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "zz_beside.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    start = f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport no_card\nno_card.start()\n"
    (site / "sitecustomize.py").write_text(start)


def _environment(**more: str) -> dict[str, str]:
    """Without the stand-in for CuPy, which a rehearsal puts first."""
    return {**os.environ, "PYTHONPATH": str(api.ROOT / "src"), "OMP_NUM_THREADS": "1", **more}


def _is_of_the_block(name: str) -> bool:
    """Whether a package is pinned in the constraints' last block, which is the [gpu] extra's own."""
    block = CONSTRAINTS.read_text().split("# [gpu]")[1]
    return any(_normal(line.split("==")[0]) == name for line in block.splitlines() if "==" in line)


def ask(python: Path) -> dict[str, Any]:
    """What the packages of ``python`` say of the names that are used."""
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import packages; packages.answer()"
    command = [str(python), "-W", "ignore", "-c", code]
    asked = subprocess.run(command, check=False, capture_output=True, text=True, env=_environment())
    if asked.returncode:
        return {"refused": [f"the packages could not be asked: {asked.stderr.strip()[-2000:]}"], "versions": {}}
    said: dict[str, Any] = json.loads(asked.stdout.splitlines()[-1])
    return said


def answer() -> None:
    """Print, as JSON, which used names the packages of this interpreter refuse."""
    import importlib.metadata

    import planned_cluster

    uses = api.used_names()
    lines = api.refused(uses) + cluster_objections() + planned_cluster.objections()
    versions = {name: importlib.metadata.version(name) for name in ("cupy-cuda13x", "dask-cuda", "rmm-cu13")}
    print(json.dumps({"refused": lines, "versions": versions}))


def cluster_objections() -> list[str]:
    """What ``LocalCUDACluster``, RMM and their allocators do not know of how the code starts workers."""
    import inspect

    from dask_cuda import LocalCUDACluster
    from distributed import LocalCluster

    known = set(inspect.signature(LocalCUDACluster.__init__).parameters)
    known |= set(inspect.signature(LocalCluster.__init__).parameters)
    lines = [f"LocalCUDACluster has no option {name}" for name in sorted(cluster_options() - known)]
    import rmm
    import rmm.allocators.cupy
    import rmm.mr

    wanted = {"pool_allocator", "initial_pool_size", "maximum_pool_size"}
    missing = wanted - set(inspect.signature(rmm.reinitialize).parameters)
    lines += [f"rmm.reinitialize has no {name}" for name in sorted(missing)]
    if not hasattr(rmm.allocators.cupy, "rmm_cupy_allocator"):
        lines.append("rmm has no allocator for cupy")
    try:
        import distributed.protocol.cupy  # noqa: F401 - how an array leaves a worker; without its needs Dask waits on
    except ImportError as error:
        lines.append(f"no CuPy array can be sent between workers: {error}")
    from distributed.comm.registry import backends

    try:
        import distributed_ucxx  # noqa: F401 - registers ucx with its first import, where the libraries are there
    except ImportError as error:
        lines.append(f"protocol ucx: {error}")
    else:
        lines += [] if {"ucx", "ucxx"} & set(_communication(backends)) else ["protocol ucx is unknown to distributed"]
    return lines


def _communication(backends: Any) -> list[str]:
    import importlib.metadata

    entries = [point.name for point in importlib.metadata.entry_points(group="distributed.comm.backends")]
    return [*backends, *entries]


def cluster_options() -> set[str]:
    """The options that tasks/dask/cluster_spec.py gives LocalCUDACluster, read off its source."""
    import ast

    tree = ast.parse((api.ROOT / "tasks" / "dask" / "cluster_spec.py").read_text())
    (function,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "cuda_cluster_options"]
    (returned,) = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    assert isinstance(returned, ast.Dict)
    return {key.value for key in returned.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def check(folder: Path | None = None) -> dict[str, Any]:
    """Resolve, download and ask; ``refused`` is empty where all is well."""
    found = resolved()
    wrong = objections(found)
    if wrong:
        return {"refused": wrong, "resolved": len(found)}
    with tempfile.TemporaryDirectory(dir=folder) as home:
        python = install(found, Path(home))
        said = ask(python)
        run_said = rehearse(python, Path(home) / "no-card")
    said = {**run_said, **said, "refused": said["refused"] + run_said["refused"]}
    if not said["refused"]:
        write_names(said["versions"])
    gpu = {name: version for name, (version, _) in sorted(found.items()) if name in WANTED or _is_of_the_block(name)}
    return {**said, "resolved": len(found), "gpu": gpu}


def rehearse(python: Path, folder: Path) -> dict[str, Any]:
    """``pytest -m gpu`` by the real CuPy, its kernels by NVRTC and then by the processor; see ``no_card``.

    Returns:
        The tests' last line, and what is ``refused``.
    """
    if shutil.which("g++") is None:
        return {"refused": ["g++ is needed to compute what a card would"]}
    folder.mkdir()
    files = sorted(str(path) for path in (api.ROOT / "tests" / "kernels").glob("test_*_gpu.py"))
    command = [str(python), "-m", "pytest", "-q", "-m", "gpu", "-k", "not cuda", "-p", "no:cacheprovider", *files]
    tests = subprocess.run(
        command,
        cwd=api.ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=TESTS_SECONDS,
        env=_environment(**{NO_CARD: str(folder)}),
    )
    failures = folder / "failures.txt"
    refused = failures.read_text().splitlines() if failures.exists() else []
    if tests.returncode:
        refused.append("\n".join([*tests.stdout.splitlines()[-60:], *tests.stderr.splitlines()[-20:]]))
    return {"refused": refused, "tests": tests.stdout.splitlines()[-1]}


def write_names(versions: dict[str, str]) -> None:
    """Keep the names that these versions were found to have."""
    uses = {name: asdict(use) | {"keywords": sorted(use.keywords)} for name, use in sorted(api.used_names().items())}
    NAMES.write_text(json.dumps({"versions": versions, "names": uses}, indent=1, sort_keys=True) + "\n")


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def run(record: Any, name: str, device: str, small: bool) -> None:
    """As a piece; a rehearsal resolves and downloads as well."""
    with record.sampler.stage("resolving, downloading and asking"):
        said = check()
    record.note(**said)
    if said["refused"]:
        raise RuntimeError("; ".join(said["refused"]))


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    print(json.dumps(check(), indent=1))
