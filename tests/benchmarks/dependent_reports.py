"""What the terminal and the report say of dependent rows and of exposures, before the file names them and after.

    python tests/benchmarks/dependent_reports.py DATA FOLDER [--only hours|policies|rates]

DATA holds bike-hourly/hour.csv.gz, motor-claims/claims-of-policies-over-three-years.csv.gz and
motor-claims/motorcycle-claims.csv.gz, which are data of others and no part of the project. FOLDER receives, for each
evaluation, its file, what the terminal said, its report and, with Chromium, a picture of the report's first screen.
The record is dependent_reports.md.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import yaml
from PIL import Image
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlflow_pages import CHROMIUM, Browser

from congruence.kernels import NegativeBinomial, Poisson
from congruence.tasks.contract import log_predictive_model

COMMAND = str(Path(sys.executable).parent / "congruence")
DRAWN_WIDTH, COLOURS = 1100, 64
ABOVE_ROWS = "Math.min(innerHeight, document.getElementById('selected').getBoundingClientRect().top)"
"""Where the part of the report's first screen ends that shows nothing of single rows."""


@dataclass(frozen=True)
class Case:
    """Registered versions on a table, read twice or more: what each reading adds to the file of the first."""

    models: list[str]
    split: dict[str, Any]
    readings: dict[str, dict[str, Any]]
    rows: pd.DataFrame


def hours(data: Path) -> Case:
    """Hourly demand as in the worked example: the negative binomial version alone."""
    table = pd.read_csv(data / "bike-hourly/hour.csv.gz", parse_dates=["dteday"])
    table["time"] = table["dteday"] + pd.to_timedelta(table["hr"], unit="h")
    table["sin"], table["cos"] = np.sin(2 * np.pi * table["hr"] / 24), np.cos(2 * np.pi * table["hr"] / 24)
    past = table.set_index("time")["cnt"]
    weeks = [past.reindex(table["time"] - pd.Timedelta(weeks=k)).to_numpy(float) for k in (1, 2, 3)]
    table["usual"] = np.mean(weeks, axis=0)
    table = table.dropna()
    train, autumn = table[table["time"] < "2012-09-01"], table[table["time"] >= "2012-09-01"]
    columns = ["sin", "cos", "workingday", "temp", "hum", "usual"]
    summer = train["time"] >= "2012-06-01"
    model = HistGradientBoostingRegressor(loss="poisson", max_iter=100, random_state=0)
    model.fit(train[columns][~summer], train["cnt"][~summer])
    expected, seen = model.predict(train[columns][summer]), train["cnt"][summer]
    dispersion = np.mean(((seen - expected) ** 2 - expected) / expected**2)
    model.fit(train[columns], train["cnt"])

    def negative_binomial(rows: pd.DataFrame) -> NegativeBinomial:
        return NegativeBinomial(model.predict(rows[columns]), np.full(len(rows), dispersion))

    def poisson(rows: pd.DataFrame) -> Poisson:
        return Poisson(model.predict(rows[columns]))

    for version in (poisson, negative_binomial):
        registered(version, "demand", autumn[columns])
    split = {"input": columns, "target": "cnt", "key": "instant", "slices": ["workingday"]}
    return Case(["demand"], split, {"before": {}, "after": {"time": "time"}}, autumn)


def policies(data: Path) -> Case:
    """Claims of policies in three years each: a Poisson GLM of the class, value and year."""
    table = pd.read_csv(data / "motor-claims/claims-of-policies-over-three-years.csv.gz")
    known = table["policyID"].unique()
    drawn = np.random.default_rng(0).permutation(known)
    test = table[table["policyID"].isin(drawn[:1000])].reset_index(drop=True)
    train = table[table["policyID"].isin(drawn[1000:])]
    columns = ["agecat", "valuecat", "period"]
    coded = make_column_transformer((OneHotEncoder(), columns))
    glm = make_pipeline(coded, PoissonRegressor(alpha=1e-6, max_iter=300)).fit(train[columns], train["numclaims"])
    registered(glm, "policies", test[columns], family="poisson")
    split = {"input": columns, "target": "numclaims", "key": "rownames"}
    return Case(["policies"], split, {"before": {}, "after": {"groups": "policyID"}}, test)


def rates(data: Path) -> Case:
    """Claims of motorcycles insured for less than half a year: an insurer's GLM of claims a year."""
    table = pd.read_csv(data / "motor-claims/motorcycle-claims.csv.gz")
    table = table[table["duration"].between(0.0, 0.5, inclusive="neither")].reset_index(drop=True)
    columns = ["agarald", "zon", "mcklass", "fordald"]
    first = np.random.default_rng(0).permutation(len(table))
    test, train = table.loc[np.sort(first[:3000])].reset_index(drop=True), table.loc[np.sort(first[3000:])]
    coded = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["zon", "mcklass"]), remainder="passthrough"
    )
    glm = make_pipeline(coded, PoissonRegressor(alpha=1e-6, max_iter=1000))
    glm.fit(train[columns], train["antskad"] / train["duration"], poissonregressor__sample_weight=train["duration"])
    registered(glm, "rates", test[columns], family="poisson")
    registered(glm, "counts", test[[*columns, "duration"]], family="poisson", exposure="duration")
    split = {"input": columns, "target": "antskad", "key": "rownames", "slices": ["kon"]}
    readings: dict[str, dict[str, Any]] = {
        "before": {},
        "refused": {"exposure": "duration"},
        "after": {"exposure": "duration", "models": ["counts"]},
    }
    return Case(["rates"], split, readings, test)


def registered(model: Any, name: str, example: pd.DataFrame, **words: Any) -> None:
    """Log a version."""
    log_predictive_model(model, name=name, registered_model_name=name, input_example=example.head(), **words)


def evaluated(case: Case, reading: str, folder: Path) -> str:
    """What `congruence evaluate` says of one reading; its file, words and report stay in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    case.rows.to_parquet(folder / "rows.parquet")
    added = dict(case.readings[reading])
    models = added.pop("models", case.models)
    split = {"name": folder.name, "uri": "rows.parquet", "input_kind": "features"} | case.split | added
    asked = {
        "models": models,
        "splits": [split],
        "encoder": {"kind": "identity"},
        "protocol": {"base": "exact", "input_kernel": {"kind": "rbf", "gamma": 0.1}},
    }
    (folder / "evaluation.yaml").write_text(yaml.safe_dump(asked, sort_keys=False))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = {"COLUMNS": "130", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [COMMAND, "evaluate", "evaluation.yaml"], cwd=folder, env=os.environ | words, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    said = f"exit status {done.returncode}, {seconds:.0f} CPU s\n{done.stdout}\n{done.stderr}"
    (folder / "terminal.txt").write_text(said)
    return said


def reports(folder: Path) -> None:
    """The report of the last version of one evaluation, and a picture of its first screen."""
    client = mlflow.MlflowClient()
    runs = [run for run in mlflow.search_runs(search_all_experiments=True, output_format="list")
            if str(run.info.run_name).endswith(f"on {folder.name}")
            and any(each.path == "report.html" for each in client.list_artifacts(run.info.run_id))]  # fmt: skip
    if not runs:
        return
    last = max(runs, key=lambda run: str(run.info.run_name))
    kept = mlflow.artifacts.download_artifacts(run_id=last.info.run_id, artifact_path="report.html")
    (folder / "report.html").write_bytes(Path(kept).read_bytes())
    if CHROMIUM is None:
        return
    browser = Browser()
    try:
        browser.call("Page.enable")
        browser.open((folder / "report.html").as_uri())
        browser.wait("document.documentElement.dataset.ready === 'yes'")
        end = int(float(str(browser.evaluate(ABOVE_ROWS))))
        browser.picture(folder / "whole.png")
    finally:
        browser.close()
    with Image.open(folder / "whole.png") as shot:
        top = shot.crop((0, 0, shot.width, end))
        height = round(top.height * DRAWN_WIDTH / top.width)
        small = top.convert("RGB").resize((DRAWN_WIDTH, height), Image.Resampling.LANCZOS)
        small.quantize(COLOURS).save(folder / f"{folder.name}.png", optimize=True)


CASES: dict[str, Callable[[Path], Case]] = {"hours": hours, "policies": policies, "rates": rates}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=CASES)
    asked = parser.parse_args()
    for name in [asked.only] if asked.only else CASES:
        folder = (asked.folder / name).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{folder}/mlflow.db"
        os.chdir(folder)
        case = CASES[name](asked.data)
        for reading in case.readings:
            print(f"--- {name}, {reading}\n{evaluated(case, reading, folder / f'{name}-{reading}')}", flush=True)
            reports(folder / f"{name}-{reading}")


if __name__ == "__main__":
    main()
