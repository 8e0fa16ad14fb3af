"""Where the `congruence` command starts: the kernels install without what the pipeline needs, and it says so."""

from __future__ import annotations

import sys
from importlib.util import find_spec

NEEDED = ("typer", "prefect", "dask", "distributed", "mlflow", "zarr", "torch", "open_clip")


def main() -> None:
    """Run the command line, or say in one sentence what is not installed."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        sys.exit(
            f"congruence: the command needs {', '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not "
            "installed; run: pip install 'congruence[pipeline]' (congruence.kernels works without)"
        )
    from congruence.flows.cli.app import main as command_line

    command_line()
