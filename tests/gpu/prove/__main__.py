"""Whether the GPU path is right and fast, in pieces of under nine minutes that each leave a record.

    python tests/gpu/prove PIECE [--device cpu] [--size small] [--records DIR]
    python tests/gpu/prove all --device cpu --size small        the rehearsal, on any machine

Needs the repository, Python and the packages that a piece names; nothing is installed. With ``--device cpu`` the
stand-in for CuPy (tests/device_arrays) computes what a card would, at small sizes, so that no minute of a card is lost
to a mistake of the script's own. A record is a JSON file: versions, machine, numbers, goals, how busy the card was.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PIECES = {
    "packages": ("versions", "which packages, driver and cards are here, and whether they have every name used"),
    "check-packages": ("packages", "resolve and download the GPU packages, no card needed"),
    "tests": ("equality", "pytest -m gpu: every kernel, solver and dtype against its definition"),
    "embedding": ("embedding", "images/s with decoding beside the bare forward pass"),
    "exact-12000": ("exact", "n = 12,000 on the card and on the processor"),
    "exact-100000": ("exact", "n = 100,000 on the card and on the processor"),
    "exact-million": ("exact", "n = 1,000,000 on the card, with its certificate"),
    "cholesky": ("cholesky", "tiled Cholesky beside cuSOLVER's potrf"),
    "cluster": ("cluster", "LocalCUDACluster from images to logged scores, beside a cluster of processors"),
}
NOT_IN_ALL = ("check-packages",)


def main() -> int:
    """Run one piece, or all; 0 where none failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("piece", choices=[*PIECES, "all"])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--records", type=Path, default=ROOT / "tests" / "gpu" / "records")
    arguments = parser.parse_args()
    _make_importable(arguments.device)
    from record import recorded

    names = [name for name in PIECES if name not in NOT_IN_ALL] if arguments.piece == "all" else [arguments.piece]
    failed = 0
    for name in names:
        module = importlib.import_module(PIECES[name][0])
        started = time.monotonic()
        with recorded(name, arguments) as record:
            module.run(record, name, arguments.device, arguments.size == "small")
        failed += not record.succeeded
        print(
            f"{name}: {'done' if record.succeeded else 'FAILED'} in {time.monotonic() - started:.0f} s: {record.path}"
        )
    return failed


def _make_importable(device: str) -> None:
    """The repository's package, and for a rehearsal the stand-in for CuPy, here and in processes that are started."""
    folders = [str(ROOT / "src"), *([str(ROOT / "tests" / "device_arrays")] if device == "cpu" else [])]
    sys.path[:0] = [*folders, str(ROOT / "tests" / "benchmarks")]
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    for name in ("HF_HUB_OFFLINE", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        os.environ.setdefault(name, "1" if name != "MLFLOW_DISABLE_TELEMETRY" else "true")


if __name__ == "__main__":
    sys.exit(main())
