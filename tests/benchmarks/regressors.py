"""Ten kinds of registered models on five real tables, read as they are: `python tests/benchmarks/regressors.py FOLDER`.

FOLDER holds protein/data.csv.gz, bike-hourly/hour.csv.gz and motor-claims/motorcycle-claims.csv.gz; the other tables
come with scikit-learn and statsmodels. Needs the extra `formats`. `--json` writes what the page of the documentation is
made of; the record is regressors.md.

Each model is fitted on one part of a table and registered in an MLflow registry; it is loaded from there by its URI and
asked for its laws at the other part, where it is judged as an evaluation judges it. A recalibration is fitted on half
of those rows and judged on the other half.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
from registered_regressors import KINDS, Table, registered, tables

from congruence.kernels import RBF, crps, median_gamma, negative_log_likelihood, pit_values, prepare
from congruence.kernels.conditional_calibration.reading import group_reading
from congruence.kernels.conditional_calibration.regions import Regions, read_regions, regions
from congruence.kernels.distributions import Distribution
from congruence.kernels.recalibration.fit import (
    RehearsalSplit,
    recalibration_rehearsal,
    rehearsal_split,
)
from congruence.kernels.split import Split
from congruence.kernels.verdict import SIGNIFICANCE
from congruence.tasks.contract import load_predictive_model
from congruence.tasks.sentences.calibration import no_fault
from congruence.tasks.sentences.findings import what_is_wrong

Array = np.ndarray[Any, Any]
PACKAGES = ("catboost", "crepes", "lightgbm", "mlflow", "ngboost", "numpy", "quantile-forest", "scikit-learn",
            "statsmodels", "torch")  # fmt: skip


def judged_table(table: Table) -> dict[str, Any]:
    asked, y, features = table.asked
    x = asked.to_numpy()
    kernel = RBF(median_gamma(x))
    split, places = prepare(x, input_kernel=kernel), regions(x, features=features)
    rehearsal = rehearsal_split(x, np.arange(len(x)) % 2 == 0, input_kernel=kernel)
    found: list[dict[str, Any]] = []
    scores: dict[str, Array] = {}
    for kind in KINDS:
        started = time.perf_counter()
        model = load_predictive_model(registered(table, kind))
        law = model.predict(asked)
        found.append({"model": kind, "read": type(law).__name__, **judged(y, law, split, places, rehearsal)})
        scores[kind] = np.asarray(crps(y, law))
        print(f"{table.name}, {kind}: {time.perf_counter() - started:.0f} s", flush=True)
    best = min(found, key=lambda row: float(row["crps"]))["model"]
    for row in found:
        behind = scores[row["model"]] - scores[best]
        row["behind"], row["behind_error"] = float(behind.mean()), float(behind.std(ddof=1) / np.sqrt(len(y)))
    return {"name": table.name, "source": table.source, "fitted": table.train, "asked": len(y),
            "inputs": x.shape[1], "models": found}  # fmt: skip


def judged(y: Array, law: Distribution, split: Split, places: Regions, rehearsal: RehearsalSplit) -> dict[str, Any]:
    """Scores, CCE, the test of calibration given the input, what is wrong in words, and what a recalibration leaves."""
    test = split.calibration_test(y, law)
    result = split.evaluate(y, {"": law}, draws=0)[""]
    pit = pit_values(y, law)
    overall = group_reading(pit)
    said = [no_fault(len(y), test.p_value)]
    if test.p_value < SIGNIFICANCE:
        said = what_is_wrong(overall, read_regions(places, pit))
    nll = np.asarray(negative_log_likelihood(y, law, infinite="keep")) if law.has_density() else None
    found = recalibration_rehearsal(rehearsal, y, law)
    return {
        "crps": float(np.mean(crps(y, law))),
        "nll": None if nll is None else float(np.mean(nll[np.isfinite(nll)])),
        "outside": None if nll is None else float(np.mean(~np.isfinite(nll))),
        "cce": result.mean,
        "cce_expected": result.expected,
        "p": test.p_value,
        "p_on_average": test.by_basis["constant"],
        "effects": {order: effect.estimate for order, effect in test.effects.items()},
        "said": said,
        "after": {
            "rows": [found.fitted_on, found.rows],
            "p": list(found.p_values),
            **{name: [one.before, one.after, one.standard_error] for name, one in found.changes.items()},
        },
    }


def rounded(value: Any) -> Any:
    """Numbers with five significant digits, which is more than the errors of sampling leave."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part) for part in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def page(tables: list[dict[str, Any]]) -> str:
    """What the page of the documentation shows, as JSON with a line for each model."""
    lines = []
    for table in tables:
        kept = [{name: row[name] for name in ("model", "crps", "p", "effects")} for row in table["models"]]
        rows = ",\n  ".join(json.dumps(rounded(row)) for row in kept)
        lines.append(f'{{"name": {json.dumps(table["name"])}, "models": [\n  {rows}]}}')
    return '{"tables": [\n ' + ",\n ".join(lines) + "]}\n"


def markdown(table: dict[str, Any]) -> str:
    """One table of the record."""
    lines = [
        f"## {table['name'].capitalize()} ({table['source']})\n",
        f"{table['fitted']:,} rows to fit, {table['asked']:,} asked, {table['inputs']} inputs.\n",
        "| model | read as | CRPS | NLL | CCE (if true) | p | p on average | largest effect | "
        "corrected: CRPS | CCE | p |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in table["models"]:
        order, effect = max(row["effects"].items(), key=lambda item: float(item[1]))
        after = row["after"]
        lines.append(
            f"| {row['model']} | {row['read']} | {row['crps']:.4g} | {_nll(row)} | {row['cce']:.3f} "
            f"({row['cce_expected']:.3f}) | {row['p']:.4f} | {row['p_on_average']:.4f} | {order} {effect:.2f} | "
            f"{after['crps'][0]:.4g} to {after['crps'][1]:.4g} | {after['cce'][0]:.3f} to {after['cce'][1]:.3f} | "
            f"{after['p'][0]:.4f} to {after['p'][1]:.4f} |"
        )
    lines += ["", *(f"- {row['model']}: {' '.join(row['said'])}" for row in table["models"]), ""]
    return "\n".join(lines)


def _nll(row: dict[str, Any]) -> str:
    if row["nll"] is None:
        return "none"
    return f"inf ({row['outside']:.1%})" if row["outside"] else f"{row['nll']:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", type=int, default=1500)
    parser.add_argument("--test", type=int, default=800)
    parser.add_argument("--only", help="one table")
    parser.add_argument("--json", type=Path, help="where the numbers are written")
    parser.add_argument("--markdown", type=Path, help="where the tables are written")
    given = parser.parse_args()
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
        mlflow.create_experiment("kinds", artifact_location=f"file://{folder}/artifacts")
        mlflow.set_experiment("kinds")
        chosen = (t for t in tables(given.folder, given.train, given.test) if given.only in (None, t.name))
        made = [judged_table(table) for table in chosen]
    where = {"python": platform.python_version(), "machine": platform.machine(),
             "packages": {name: version(name) for name in PACKAGES},
             "cpu_seconds": round(time.process_time() - started)}  # fmt: skip
    if given.json is not None:
        given.json.write_text(page(made))
    text = f"{json.dumps(where)}\n\n" + "\n".join(markdown(table) for table in made)
    if given.markdown is not None:
        given.markdown.write_text(text)
    print(text)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    main()
