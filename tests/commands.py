"""A `congruence` command in a process of its own, and what it loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

HEAVY = (
    "numpy",
    "scipy",
    "pandas",
    "mlflow",
    "prefect",
    "dask",
    "distributed",
    "zarr",
    "torch",
    "open_clip",
    "sklearn",
)
SERVERS = ("prefect", "dask", "distributed", "torch", "open_clip", "matplotlib", "zarr")
COMMAND = """
import json, sys
from congruence.flows.cli.app import app as main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["congruence", *arguments]
    try:
        main()
    except SystemExit as left:
        status = left.code
print(json.dumps({"status": status, "loaded": sorted(sys.modules)}), file=open(REPORT, "w"))
"""


def run(*arguments: str, **environment: str) -> tuple[int, set[str], str]:
    """Exit status, loaded modules and everything printed of a command in a process of its own."""
    return run_all([list(arguments)], **environment)


def run_all(commands: list[list[str]], **environment: str) -> tuple[int, set[str], str]:
    """The same of several commands, one after the other in one process; the exit status is the last one's."""
    base = {key: value for key, value in os.environ.items() if not key.startswith(("CONGRUENCE_", "MLFLOW_TRACKING"))}
    with tempfile.NamedTemporaryFile() as file:
        script = COMMAND.replace("REPORT", repr(file.name))
        done = subprocess.run(
            [sys.executable, "-c", script, json.dumps(commands)],
            capture_output=True,
            text=True,
            env=base | environment,
            timeout=600,
        )
        said = json.loads(file.read() or "{}")
    assert said, done.stderr
    return int(said["status"] or 0), set(said["loaded"]), done.stdout + done.stderr
