"""A `congruence` command in a process of its own, and what it loaded."""

import json
import os
import subprocess
import sys
import tempfile

SERVERS = ("prefect", "dask", "distributed", "torch", "open_clip", "matplotlib", "zarr")
HEAVY = ("numpy", "scipy", "pandas", "sklearn", "mlflow", *(name for name in SERVERS if name != "matplotlib"))
COMMAND = """
import json, sys
from congruence.flows.cli.app import app as main
done = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["congruence", *arguments]
    try:
        main()
    except SystemExit as left:
        done.append((int(left.code or 0), sorted(sys.modules)))
    for stream in (sys.stdout, sys.stderr):
        print(END, file=stream, flush=True)
json.dump(done, open(REPORT, "w"))
"""
END = "--- a command has ended ---"
Said = tuple[int, set[str], str]
"""Exit status of a command, the modules that are loaded after it, and everything printed."""


def run(*arguments: str, **environment: str) -> Said:
    """A command in a process of its own."""
    (said,) = run_all([list(arguments)], **environment)
    return said


def run_all(commands: list[list[str]], **environment: str) -> list[Said]:
    """Commands one after the other in one process: what a later one must not load, those before it have not either."""
    base = {key: value for key, value in os.environ.items() if not key.startswith(("CONGRUENCE_", "MLFLOW_TRACKING"))}
    with tempfile.NamedTemporaryFile() as file:
        script = COMMAND.replace("REPORT", repr(file.name)).replace("END", repr(END))
        done = subprocess.run(
            [sys.executable, "-c", script, json.dumps(commands)],
            capture_output=True,
            text=True,
            env=base | environment,
            timeout=600,
        )
        told = json.loads(file.read() or "[]")
    assert len(told) == len(commands), done.stderr
    words = zip(done.stdout.split(END), done.stderr.split(END), strict=True)
    return [(status, set(loaded), out + err) for (status, loaded), (out, err) in zip(told, words, strict=False)]
