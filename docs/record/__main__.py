"""The public record: kinds of models on tables, each registered, evaluated, recalibrated and evaluated again.

    make record [DATA=FOLDER]              every table, with those of FOLDER (see ``tables``) where it is named
    python docs/record --only heavy-tails  some tables

A table is a file in ``tables``, a kind of model a file in ``models``: what is added there is in the record at the next
call. Models go in through an MLflow registry, by the flavor of their library, and one evaluation file a table, as a
user's do. What is done is found again, so that the same command goes on where it was cut off.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import time
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HOME = HERE.parents[1] / "build" / "record"
RESULTS = HERE / "results"


def main() -> None:
    """Make the tables that are asked for, then the page of all that are made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of the tables that no package ships")
    parser.add_argument("--home", type=Path, default=HOME)
    parser.add_argument("--only", nargs="*", default=[], help="tables by name")
    parser.add_argument("--models", nargs="*", default=[], help="models by the names of their files")
    given = parser.parse_args()
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    warnings.simplefilter("ignore")
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    from congruence.flows.cli.options import embed_servers

    home = embed_servers(given.home.resolve())  # before Prefect and MLflow are imported
    from page import write_page
    from table import modules

    from congruence.tasks.mlflow.connection import point_mlflow_at
    from congruence.tasks.runtime.files import tracking_uri

    point_mlflow_at(tracking_uri(home))
    kinds = {name: kind for name, kind in modules("models").items() if not given.models or name in given.models}
    for module in modules("tables").values():
        table = module.table(given.data)
        if table is None or (given.only and table.name not in given.only):
            continue
        started = time.perf_counter()
        from judged import judged_table

        found = judged_table(table, kinds, home)
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{table.name}.json").write_text(json.dumps(rounded(found), indent=1) + "\n")
        print(f"{table.name}: {time.perf_counter() - started:.0f} s", flush=True)
    write_page([json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))])


def rounded(value: Any) -> Any:
    """Numbers with five significant digits, which is more than the errors of sampling leave."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
