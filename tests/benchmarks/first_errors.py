"""Thirty errors of a user's first hour, each made for real: what is said, after how many CPU seconds.

    python tests/benchmarks/first_errors.py [--folder F] [--only 12]

A fresh folder holds a table, a version and an evaluation file; each case changes one thing and runs one command. A
case is good where the command ends with status 2, says what the case looks for, in no traceback, and needs
at most 3 CPU seconds. Seconds are CPU seconds of the command: those of the clock say what else the machine does.
The record is the section on errors in first_hour.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

MODEL = """
import numpy as np
import pandas as pd
from congruence.kernels import Normal
from congruence.tasks.contract import log_predictive_model

rows = pd.read_parquet("test.parquet")
log_predictive_model(
    lambda t: Normal(2 * t["area"] + 30 * t["rooms"], np.full(len(t), 15.0)),
    name="model", input_example=rows[["area", "rooms"]].head(2), registered_model_name="house-price",
)
"""
FILE: dict[str, Any] = {
    "models": ["house-price"],
    "splits": [{"uri": "test.parquet", "input_kind": "features", "input": ["area", "rooms"], "target": "price"}],
    "encoder": {"kind": "identity"},
}
SPLIT = FILE["splits"][0]


@dataclass(frozen=True)
class Case:
    """One mistake: what is written into the file, the command, and words that the answer must have."""

    mistake: str
    words: tuple[str, ...]
    change: dict[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ("validate", "evaluation.yaml")
    text: str | None = None
    status: int = 2
    environment: dict[str, str] = field(default_factory=dict)


def of_split(**change: Any) -> dict[str, Any]:
    return {"splits": [{key: value for key, value in (SPLIT | change).items() if value is not None}]}


CASES = (
    Case("a command that does not exist", ("No such command", "evaluat"), command=("evaluat", "evaluation.yaml")),
    Case("no evaluation file named", ("Missing argument",), command=("evaluate",)),
    Case("a file that is not there", ("evalution.yaml",), command=("evaluate", "evalution.yaml")),
    Case("a folder in place of the file", ("folder",), command=("evaluate", ".")),
    Case("the data in place of the file", ("test.parquet",), command=("evaluate", "test.parquet")),
    Case("an option that does not exist", ("No such option",), command=("evaluate", "evaluation.yaml", "--modle", "a")),
    Case("YAML that is none", ("line",), text="models: [house-price\\nsplits: x: y"),
    Case("an empty file", ("splits",), text=""),
    Case("a misspelled key", ("encodr", "encoder"), {"encodr": {"kind": "identity"}}),
    Case("a misspelled key of the split", ("taget", "target"), of_split(taget="price")),
    Case("no encoder", ("encoder",), {"encoder": None}),
    Case("an encoder that does not exist", ("encoder", "clip"), {"encoder": {"kind": "clip"}}),
    Case("a protocol that does not exist", ("exact",), {"protocol": "exakt"}),
    Case("data that are not there", ("tset.parquet",), of_split(uri="tset.parquet")),
    Case("a target that is no column", ("prise", "price"), of_split(target="prise")),
    Case("an input that is no column", ("aera", "area"), of_split(input=["aera", "rooms"])),
    Case("a target of text", ("city", "numbers"), of_split(target="city")),
    Case("a feature of text", ("city",), of_split(input=["area", "city"])),
    Case("a split without a target", ("target",), of_split(target=None)),
    Case("a slice that is no column", ("town",), of_split(slices=["town"])),
    Case("photos named, numbers found", ("area",), of_split(input_kind="image", input="area")),
    Case("a model that is not registered", ("house-prices", "house-price"), {"models": ["house-prices"]}),
    Case("a version that does not exist", ("house-price", "1"), {"models": ["models:/house-price/7"]}),
    Case("an alias that nobody holds", ("champion",), {"models": ["models:/house-price@champion"]}),
    Case("a gate without a rule", ("gate", "rule"), {"gate": {"set_alias": "champion"}}),
    Case("a gate on an unknown metric", ("cce",), {"gate": {"baseline": 1, "not_worse_on": ["cce"]}}),
    Case(
        "gate before evaluate",
        ("not evaluated",),
        {"gate": {"maximum": {"cce_mean": 0.05}}},
        ("gate", "evaluation.yaml"),
    ),
    Case("compare before evaluate", ("evaluat",), command=("compare", "evaluation.yaml")),
    Case("a report before evaluate", ("evaluat",), command=("open", "house-price/1", "--print")),
    Case("init of data that are not there", ("tset.csv",), command=("init", "tset.csv", "-o", "new.yaml")),
    Case("a server that does not answer", ("127.0.0.1:9",), {"tracking": {"uri": "http://127.0.0.1:9"}}),
)


def prepare(folder: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"area": rng.uniform(20, 200, 400), "rooms": rng.integers(1, 8, 400)})
    rows["price"] = 2 * rows.area + 30 * rows.rooms + rng.normal(0, 0.1 * rows.area + 5)
    rows["city"] = rng.choice(["Oslo", "Bergen"], 400)
    rows.to_parquet(folder / "test.parquet")
    (folder / "model.py").write_text(MODEL)
    subprocess.run([sys.executable, "model.py"], cwd=folder, env=environment(folder), check=True, capture_output=True)


def environment(folder: Path) -> dict[str, str]:
    taken = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "TMPDIR") if name in os.environ}
    return taken | {"HOME": str(folder), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}


def run(case: Case, folder: Path) -> dict[str, Any]:
    content = {key: value for key, value in (FILE | case.change).items() if value is not None}
    text = yaml.safe_dump(content, sort_keys=False) if case.text is None else case.text.replace("\\n", "\n")
    (folder / "evaluation.yaml").write_text(text)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "congruence.flows.cli.main", *case.command],
        cwd=folder, env=environment(folder) | case.environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said = done.stdout + done.stderr
    missing = [word for word in case.words if word not in said]
    return {
        "mistake": case.mistake,
        "status": done.returncode,
        "seconds": time.monotonic() - started,
        "cpu": after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime,
        "said": said.strip(),
        "missing": missing,
        "traceback": "Traceback" in said,
        "good": done.returncode == case.status and not missing and "Traceback" not in said,
    }


def main() -> None:
    """Every case, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--only", type=int, help="one case, by its number")
    options = parser.parse_args()
    folder = (options.folder or Path(tempfile.mkdtemp(prefix="first-errors-"))).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    prepare(folder)
    found = []
    for number, case in enumerate(CASES, 1):
        if options.only in (None, number):
            found.append(run(case, folder))
            print(json.dumps(found[-1], indent=1), flush=True)
    print("| | mistake | exit | CPU seconds | what is said |\n|---|---|---:|---:|---|")
    for number, item in enumerate(found, 1):
        lines = [line.strip("│╭╰─╮╯ ") for line in item["said"].splitlines()]
        last = next((line for line in reversed(lines) if line), "")[:160].replace("|", "\\|")
        mark = "" if item["good"] and item["cpu"] <= 3 else " (!)"
        print(f"| {number} | {item['mistake']}{mark} | {item['status']} | {item['cpu']:.1f} | {last} |")


if __name__ == "__main__":
    main()
