"""Where the `congruence` command starts: under its parent, and with a word on the screen before anything is loaded."""

from __future__ import annotations

import atexit
import gc
import sys
from importlib.util import find_spec
from pathlib import Path

from congruence.tasks.runtime.bytecode import keep_bytecode
from congruence.tasks.runtime.parent import RESUME, run_under_parent

NEEDED = ("typer", "prefect", "dask", "distributed", "mlflow", "zarr", "torch", "open_clip")
_OUTLIVED = ("open",)
"""Commands that start a program of the person's, a browser, that is to stay."""
_SERVERS = {"ui": "", "receive": "", "serve": "Runs that were under way are resumed by the next one."}


def main() -> None:
    """Run the command line, or say in one sentence what is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"congruence: the command needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed; run: pip install 'congruence[pipeline]' (congruence.kernels works without)"
        )
    keep_bytecode()
    # What is loaded stays: looking through it again and again, and at the end, is a fifth of a short command.
    gc.set_threshold(50_000)
    atexit.register(gc.disable)
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if command is not None and command not in _OUTLIVED and "--help" not in sys.argv:
        run_under_parent(_mark_as_ended, _SERVERS.get(command, RESUME))
    from congruence.flows.cli.app import app

    app()


def _mark_as_ended(folder: Path, reason: str) -> None:
    from congruence.tasks.runtime.journal_sweep import sweep

    sweep(folder, reason)


if __name__ == "__main__":
    main()
