"""Packages that no extra brings, each among versions that it takes: `python tests/benchmarks/packages_apart.py`.

GluonTS, LightGBMLSS, NumPyro, TabPFN and sktime exclude some version in constraints.txt or are too large for the tests,
but go with the ranges of pyproject.toml. For each, uv makes an environment of congruence[pipeline] and the package
(torch as in constraints.txt: a build with CUDA takes gigabytes), and the tests of formats that bear its name run there.

Then what GluonTS and sktime registered there, logged natively, is evaluated from the Python that runs this, which lacks
them: by `predict: {isolation: environment}`, which makes the environment that the version was logged with and asks the
version in it. The record is packages_apart.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "infra"))
from install import pip_settings, uv_command, uv_variables  # noqa: E402

PACKAGES = {
    "gluonts": ["gluonts"],
    "tabpfn": ["tabpfn"],
    "lightgbmlss": ["lightgbmlss"],
    "numpyro": ["numpyro"],
    "sktime": ["sktime", "skpro"],
}
ISOLATED = {"gluonts": ["gluonts", "pandas", "numpy"], "sktime": ["sktime", "skpro", "pandas", "numpy"]}
"""What a version of theirs is logged with, beside MLflow, cloudpickle and pyarrow."""
RUNNER = ["pytest", "pytest-timeout", "hypothesis"]
HELD = ("torch==", "torchvision==")
SHOWN = ("gluonts", "tabpfn", "lightgbmlss", "numpyro", "jaxlib", "sktime", "skpro", "pandas", "numpy", "scipy",
         "scikit-learn", "lightgbm", "torch", "mlflow")  # fmt: skip


def installed(folder: Path, packages: list[str]) -> Path:
    """Make an environment of ours and ``packages``; its Python.

    Raises:
        CalledProcessError: no versions fit together, or uv cannot reach an index.
    """
    uv = uv_command()
    if uv is None:
        raise SystemExit("uv cannot be installed here")
    environment = {**os.environ, **uv_variables(pip_settings(), os.environ)}
    subprocess.run([uv[0], "venv", "--quiet", "--python", sys.executable, str(folder)], check=True)
    python = folder / "bin" / "python"
    held = folder / "held.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    held.write_text("\n".join(line for line in lines if line.startswith(HELD)))
    at_most = folder / "at_most.txt"  # what others bring is as old as where it was tested
    at_most.write_text("\n".join(line.replace("==", "<=") for line in lines if "==" in line))
    command = [
        *uv,
        "install",
        "--quiet",
        "--python",
        str(python),
        "--override",
        str(held),
        "--constraint",
        str(at_most),
    ]
    subprocess.run([*command, "--editable", f"{ROOT}[pipeline]", *packages, *RUNNER], env=environment, check=True)
    found = subprocess.run([*uv, "freeze", "--python", str(python)], capture_output=True, text=True, check=True).stdout
    print(", ".join(line for line in found.splitlines() if line.split("==")[0].lower() in SHOWN), flush=True)
    return python


def requirements(packages: list[str]) -> list[str]:
    """``packages`` and what loading needs, at the versions that are installed."""
    return [f"{name}=={version(name)}" for name in ["mlflow-skinny", "cloudpickle", "pyarrow", *packages]]


def log_gluonts(folder: Path) -> None:
    """Register a predictor's draws, by MLflow alone; its rows and its draws go to ``folder``."""
    import mlflow
    import pandas as pd
    from gluonts.model.npts import NPTSPredictor

    class Forecaster(mlflow.pyfunc.PythonModel):
        def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
            np.random.seed(0)  # noqa: NPY002
            start = pd.Period("2026-01-01", freq="D")
            data = [{"start": start, "target": np.sin(np.arange(60.0) + k)} for k in model_input["series"].unique()]
            return list(NPTSPredictor(prediction_length=3).predict(data, num_samples=50))

    rows = pd.DataFrame({"series": np.repeat([0.0, 1.0], 3), "step": np.tile([1.0, 2.0, 3.0], 2)})
    draws = np.concatenate([one.samples.T for one in Forecaster().predict(None, rows)])
    np.savez(folder / "gluonts.npz", rows=rows.to_numpy(), expected=draws.astype(float))
    mlflow.pyfunc.log_model(
        name="model", python_model=Forecaster(), registered_model_name="gluonts",
        signature=mlflow.models.infer_signature(rows), pip_requirements=requirements(ISOLATED["gluonts"]),
    )  # fmt: skip


def log_sktime(folder: Path) -> None:
    """Register a forecaster in sktime's own flavor; its steps, means and standard deviations go to ``folder``."""
    import pandas as pd
    from sktime.forecasting.naive import NaiveForecaster
    from sktime.utils import mlflow_sktime

    y = np.sin(np.arange(48) / 2.0) + np.random.default_rng(0).normal(size=48)
    index = pd.date_range("2026-01-01", periods=48, freq="D")
    model = NaiveForecaster(strategy="last", sp=7).fit(pd.Series(y, index=index))
    law = model.predict_proba(fh=[1, 2, 3])
    expected = np.column_stack([law.mean().to_numpy()[:, 0], np.sqrt(law.var().to_numpy()[:, 0])])
    np.savez(folder / "sktime.npz", rows=np.array([[1.0], [2.0], [3.0]]), expected=expected)
    mlflow_sktime.log_model(model, artifact_path="model", registered_model_name="sktime",
                            pip_requirements=requirements(ISOLATED["sktime"]))  # fmt: skip


def evaluated_from_here(name: str, folder: Path) -> str:
    """Ask the version in the environment that was logged with it; how far its laws are from what the package said."""
    import pandas as pd

    from congruence.tasks.contract import PredictionSettings
    from congruence.tasks.contract.model import PredictiveModel, fetch
    from congruence.tasks.models.isolated import IsolatedModel
    from congruence.tasks.models.registry import list_versions
    from congruence.tasks.models.settings import PredictSettings

    found_here = importlib.util.find_spec(name) is not None
    point_mlflow_at(folder)
    stored = np.load(folder / f"{name}.npz")
    columns = {"gluonts": ["series", "step"], "sktime": ["step"]}[name]
    identity, started = list_versions(name)[-1], time.perf_counter()
    settings = PredictSettings(isolation="environment", build_timeout=900.0)
    model = IsolatedModel(fetch(identity), name, settings, folder / "environments")
    made = time.perf_counter() - started
    law = PredictiveModel(identity, PredictionSettings(), model).predict(pd.DataFrame(stored["rows"], columns=columns))
    model.close()
    given = law.parameters()
    values = given["values"] if name == "gluonts" else np.column_stack([given["loc"], given["scale"]])
    apart = np.abs(values - stored["expected"]).max()
    return (
        f"{name}: {'installed here, too; ' if found_here else ''}environment of the version made and loaded in "
        f"{made:.0f} s; read as {type(law).__name__}, largest difference {apart:.1e}"
    )


def point_mlflow_at(folder: Path) -> None:
    """At the registry in ``folder``."""
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{folder}/mlflow.db")
    if mlflow.get_experiment_by_name("apart") is None:
        mlflow.create_experiment("apart", artifact_location=(folder / "artifacts").as_uri())
    mlflow.set_experiment("apart")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--keep", type=Path, help="folder of the environments, which are then not removed")
    parser.add_argument("--log", type=Path, help="register a version of the package there; run by its environment")
    given = parser.parse_args()
    if given.log is not None:
        point_mlflow_at(given.log)
        {"gluonts": log_gluonts, "sktime": log_sktime}[given.packages[0]](given.log)
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for name in given.packages:
            started = time.perf_counter()
            folder = (given.keep or Path(temporary)) / name
            python = folder / "bin" / "python"
            if not python.exists():
                python = installed(folder, PACKAGES[name])
            print(f"{name}: environment made in {time.perf_counter() - started:.0f} s", flush=True)
            tests = ["tests/tasks/formats", "-k", name]
            command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
            failed += subprocess.run(command, cwd=ROOT, check=False).returncode != 0
            if name in ISOLATED:
                registry = Path(temporary) / f"{name}-registry"
                registry.mkdir()
                subprocess.run([str(python), __file__, name, "--log", str(registry)], cwd=registry, check=True)
                print(evaluated_from_here(name, registry), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
