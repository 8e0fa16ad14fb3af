"""One table of the record: every kind of model fitted and registered, then evaluated before and after recalibration."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import mlflow
import yaml
from table import GROUPS, TARGET, TIME, Table

from congruence.flows.cli.session import run_evaluation, session
from congruence.flows.operations.recalibrate import NothingToMendError, RecalibratedVersion, recalibrate
from congruence.kernels import conditional_calibration_test
from congruence.kernels.dependence.blocks import TooFewBlocksError
from congruence.kernels.errors import CongruenceError
from congruence.tasks.contract import load_predictive_model, log_predictive_model
from congruence.tasks.evaluate.plan import VersionOutcome
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings

TRUTH = "the truth"
KEPT = ("crps_mean", "crps_skill", "nll_mean", "coverage_90", "cce_mean", "cce_expected", "p_value")
METRICS = ["cce", "congruence_test", "calibration", "crps", "nll", "coverage"]
"""Without the preview of a recalibration, which is made here for real, and the kernel calibration error."""

METRICS_AFTER = ["calibration", "crps", "nll", "coverage"]
"""After a recalibration: it is honest where no test of the levels, of targets far out and of single values says no."""

SOME_ROWS = (125, 500)
"""Numbers of test rows at which a fault is looked for, too: how many rows a verdict takes."""

OPTIONS = {"sklearn": {"serialization_format": "cloudpickle"}, "pytorch": {"serialization_format": "pickle"}}


def judged_table(table: Table, kinds: dict[str, Any], home: Path) -> dict[str, Any]:
    """Returns what is said of every kind of model on a table, before and after recalibration."""
    folder = home / "tables" / table.name
    settings = _settings(table, folder, home)
    made = {name: _registered(table, name, kind) for name, kind in kinds.items()}
    if table.truth is not None:
        made["truth"] = _register(table, "truth", table.truth, "ours", 0.0)
    uris = {name: found["uri"] for name, found in made.items() if "uri" in found}
    test = [split for split in settings.splits if split.name.endswith("test")]
    outcomes = run_evaluation(settings.model_copy(update={"models": list(uris.values()), "splits": test}))
    corrected = _recalibrated(settings, [uri for name, uri in uris.items() if name != "truth"])
    by_uri = {f"models:/{outcome.label}": outcome for outcome in outcomes}
    rows = []
    for name, found in made.items():
        row = {"model": TRUTH if name == "truth" else kinds[name].NAME, "fit_seconds": found.get("seconds")}
        if "uri" not in found:
            rows.append(row | {"failed": found["failed"]})
            continue
        row |= _of_outcome(by_uri[found["uri"]])
        if found["uri"] in corrected and "failed" not in row:
            row["recalibrated"] = corrected[found["uri"]]
            row["p_by_rows"] = _p_by_rows(table, found["uri"])
        rows.append(row)
    return {"name": table.name, "about": table.about, "truth": table.truth is not None, "models": rows}


def _settings(table: Table, folder: Path, home: Path) -> EvaluationSettings:
    """Write the two parts and the evaluation file, as a user would."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = []
    parts = table.parts()
    for name in ("test", "recalibration"):  # inputs are scaled by the first
        rows = parts[name]
        path = folder / f"{name}.parquet"
        if not path.exists():
            rows.assign(key=range(len(rows))).to_parquet(path)
        split = {"name": f"{table.name}-{name}", "uri": str(path), "input_kind": "features", "input": table.inputs}
        split |= {"target": TARGET, "key": "key"}
        split |= {key: column for key, column in (("groups", GROUPS), ("time", TIME)) if column in rows}
        splits.append(split)
    file = folder / "evaluation.yaml"
    content = {"models": ["none"], "splits": splits, "encoder": {"kind": "identity"}, "protocol": "exact"}
    content["metrics"] = METRICS
    file.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_settings(file, {"home": str(home)})


def _registered(table: Table, name: str, kind: Any) -> dict[str, Any]:
    """Returns URI and seconds of a fitted and registered model, or why there is none."""
    known = mlflow.MlflowClient().search_model_versions(f"name = '{table.name}-{name}'")
    if known:
        return {"uri": f"models:/{table.name}-{name}/1", "seconds": float(known[-1].tags.get("fit_seconds", "nan"))}
    started = time.perf_counter()
    try:
        model, flavor = kind.fit(table)
    except Exception as error:  # of any library, on any table
        return {"failed": f"{type(error).__name__}: {str(error)[:200]}"}
    return _register(table, name, model, flavor, time.perf_counter() - started)


def _register(table: Table, name: str, model: Any, flavor: str, seconds: float) -> dict[str, Any]:
    x, registered = table.fitted[0], f"{table.name}-{name}"
    uri = f"models:/{registered}/1"
    if mlflow.MlflowClient().search_model_versions(f"name = '{registered}'"):
        return {"uri": uri, "seconds": seconds}
    for module in list(sys.modules.values()):  # models bring what is written here with them
        if (getattr(module, "__file__", None) or "").startswith(str(Path(__file__).parent)):
            cloudpickle.register_pickle_by_value(module)
    mlflow.set_experiment("fits")
    if flavor == "ours":
        log_predictive_model(model, name="model", input_example=x.head(), registered_model_name=registered)
    else:
        getattr(mlflow, flavor).log_model(
            model,
            name="model",
            registered_model_name=registered,
            pip_requirements=["numpy"],
            signature=mlflow.models.infer_signature(x),
            **OPTIONS.get(flavor, {}),
        )
    mlflow.MlflowClient().set_model_version_tag(registered, "1", "fit_seconds", f"{seconds:.2f}")
    print(f"{registered}: fitted in {seconds:.0f} s", flush=True)
    return {"uri": uri, "seconds": seconds}


def _of_outcome(outcome: VersionOutcome) -> dict[str, Any]:
    if outcome.status == "failed":
        return {"failed": str(outcome.error)[:300]}
    metrics = {name: outcome.metrics[name].value for name in KEPT if name in outcome.metrics}
    return {"verdict": str(outcome.verdict), "fault": outcome.wrong[0] if outcome.wrong else "", "metrics": metrics}


def _p_by_rows(table: Table, uri: str) -> dict[str, float]:
    """Returns p of the test of calibration given the input on the first rows alone, by their number."""
    test = table.parts()["test"]
    predicted = load_predictive_model(uri).predict(test[table.inputs].iloc[: SOME_ROWS[-1]])
    x = test[table.inputs].to_numpy()
    found = {}
    for rows in SOME_ROWS:
        blocks = {key: test[column][:rows] for key, column in (("groups", GROUPS), ("time", TIME)) if column in test}
        with suppress(TooFewBlocksError):  # then nothing is judged
            tested = conditional_calibration_test(x[:rows], test[TARGET].to_numpy()[:rows], predicted[:rows], **blocks)
            found[str(rows)] = tested.p_value
    return found


def _recalibrated(settings: EvaluationSettings, uris: list[str]) -> dict[str, dict[str, Any]]:
    """Returns what is said of versions after a recalibration on the rows kept for that, by the versions' URIs."""
    own = settings.model_copy(update={"models": uris})
    test, fit = settings.splits
    made: list[RecalibratedVersion | CongruenceError] = []
    with session():
        for uri in uris:
            try:
                made.append(recalibrate(own, uri, fit=fit.name, evaluated=False))
            except CongruenceError as error:
                made.append(error)
        labels = [f"models:/{found.version.label}" for found in made if not isinstance(found, CongruenceError)]
        changes = {"models": labels, "splits": [test], "metrics": METRICS_AFTER}
        outcomes = run_evaluation(settings.model_copy(update=changes)) if labels else []
    by_label = {outcome.label: outcome for outcome in outcomes}
    rows: dict[str, dict[str, Any]] = {}
    for uri, found in zip(uris, made, strict=True):
        if isinstance(found, NothingToMendError):
            rows[uri] = {"left": "nothing to recalibrate"}
        elif isinstance(found, CongruenceError):
            rows[uri] = {"failed": str(found)[:300]}
        else:
            rows[uri] = _of_outcome(by_label[found.version.label]) | {"said": found.said}
    return rows
