"""Where the `congruence` command starts: what is missing is said before anything is loaded."""

from __future__ import annotations

import atexit
import gc
import sys
from importlib.util import find_spec

NEEDED = ("typer", "prefect", "dask", "distributed", "mlflow", "zarr")
RESUME = "Finished work is saved; run the same command to resume."
_SERVERS = {"ui": "", "receive": "", "serve": "Runs that were under way are resumed by the next one."}


def main() -> None:
    """Run the command line, or say in one sentence what is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"congruence: the command needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed; run: pip install 'congruence[pipeline]' (congruence.kernels works without)"
        )
    # What is loaded stays: looking through it again and again, and at the end, is a fifth of a short command.
    gc.set_threshold(50_000)
    atexit.register(gc.freeze)
    from congruence.flows.cli.options import ended_by_signals

    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    with ended_by_signals(_SERVERS.get(command, RESUME)):
        from congruence.flows.cli.app import app

        app()


if __name__ == "__main__":
    main()
