"""Whether the GPU path is right and fast, in pieces of under nine minutes that each leave a record.

    python tests/gpu/prove PIECE [--device cpu] [--size small] [--records DIR]
    python tests/gpu/prove all --device cpu --size small        the rehearsal, on any machine

Needs the repository, Python and the packages that a piece names; nothing is installed, this package neither. With
``--device cpu`` the stand-in for CuPy (tests/device_arrays) computes what a card would, at small sizes, so that no
minute of a card is lost to a mistake of the script's own. A record is a JSON file: versions, machine, numbers, goals,
how busy the card was; it is written with every finding, so that a piece that is cut off leaves what it had.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
KERNELS = ("numpy", "scipy", "pandas", "scoringrules", "threadpoolctl", "psutil", "cupy")
CLUSTER = (*KERNELS, "sklearn", "dask", "distributed", "pydantic", "yaml")
EMBEDDING = (*CLUSTER, "torch", "torchvision", "open_clip", "timm", "pyarrow", "zarr", "fsspec")
PIECES = {
    "packages": ("versions", "which packages, driver and cards are here, what they do at best", ()),
    "tests": (
        "equality",
        "pytest -m gpu: every kernel, solver and dtype against its definition",
        (*KERNELS, "sklearn", "matplotlib", "safetensors", "pytest", "pytest_timeout", "hypothesis"),
    ),
    "solvers": ("solvers", "exact answers by tiles and answers on landmarks, beside two cores", CLUSTER),
    "embedding": ("embedding", "images/s with decoding beside the bare forward pass", EMBEDDING),
    "cluster": (
        "cluster",
        "LocalCUDACluster from images to logged scores, beside a cluster of processors",
        (*EMBEDDING, "mlflow", "prefect", "rich", "typer", "jinja2"),
    ),
}
OF_CARDS = {"cluster": ("dask_cuda", "rmm", "pynvml")}
"""What a rehearsal needs not."""


def main() -> int:
    """Run one piece, or all; how many failed."""
    parser = argparse.ArgumentParser(description=_described(), formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", choices=[*PIECES, "all"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--records", type=Path, default=ROOT / "tests" / "gpu" / "records")
    arguments = parser.parse_args()
    arguments.records = arguments.records.resolve()
    if here := absent(("numpy", "psutil")):
        parser.error(f"needs {' and '.join(here)}, for the record itself")
    with tempfile.TemporaryDirectory(prefix="prove-") as folder:
        _make_importable(arguments.device, Path(folder))
        names = list(PIECES) if arguments.piece == "all" else [arguments.piece]
        return sum(_failed(name, arguments) for name in names)


def _failed(name: str, arguments: argparse.Namespace) -> bool:
    from record import recorded

    module, _, needs = PIECES[name]
    started = time.monotonic()
    with recorded(name, arguments) as record:
        needed = (*needs, *(OF_CARDS.get(name, ()) if arguments.device == "cuda" else ()))
        if missing := absent(needed):
            raise ModuleNotFoundError(
                f"{name} needs {', '.join(missing)}: pip install -c constraints.txt '.[gpu,dev]', or put their wheels "
                "on PYTHONPATH (pip install --no-index --no-deps --target DIR *.whl)"
            )
        importlib.import_module(module).run(record, name, arguments.device, arguments.size == "small")
    said = "done" if record.succeeded else "FAILED"
    print(f"{name}: {said} in {time.monotonic() - started:.0f} s: {record.path}", flush=True)
    return not record.succeeded


def absent(modules: tuple[str, ...]) -> list[str]:
    """Those that cannot be found; nothing is imported."""
    return [name for name in dict.fromkeys(modules) if importlib.util.find_spec(name) is None]


def _described() -> str:
    pieces = [f"  {name:<16}{what}\n{'':18}needs {', '.join(needs)}" for name, (_, what, needs) in PIECES.items()]
    return f"{__doc__}\npieces:\n" + "\n".join(pieces).replace("needs \n", "needs what is here\n")


def _make_importable(device: str, folder: Path) -> None:
    """The repository's package, and for a rehearsal the stand-in for CuPy, here and in processes that are started."""
    folders = [str(ROOT / "src"), *([str(ROOT / "tests" / "device_arrays")] if device == "cpu" else [])]
    try:
        importlib.metadata.version("congruence")
    except importlib.metadata.PackageNotFoundError:  # models and scores carry the version that they were made with
        _write_metadata(folder)
        folders.append(str(folder))
    sys.path[:0] = [*folders, str(ROOT / "tests" / "benchmarks")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    for name in ("HF_HUB_OFFLINE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        os.environ.setdefault(name, "1" if name != "MLFLOW_DISABLE_TELEMETRY" else "true")


def _write_metadata(folder: Path) -> None:
    """What an installation of the repository would say of its name and version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    place = folder / f"{project['name']}-{project['version']}.dist-info"
    place.mkdir()
    text = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (place / "METADATA").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
