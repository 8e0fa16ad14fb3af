"""How a native model is asked: by name, in a process of its own, with categories; and what refuses to load."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from logged_models import log_by_us, log_natively, newest, predicted
from mlflow.exceptions import MlflowException
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import BayesianRidge, LinearRegression

from congruence.flows.operations.init import model_facts
from congruence.kernels.distributions import Normal, Poisson, Quantiles
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.recalibration.recalibration_map import Form
from congruence.tasks import readers
from congruence.tasks.contract import ContractError, PredictionSettings
from congruence.tasks.contract.log import loading_remedy
from congruence.tasks.contract.model import PredictiveModel, fetch
from congruence.tasks.contract.reading import read_distribution
from congruence.tasks.models import processes
from congruence.tasks.models.environments import model_variables
from congruence.tasks.models.processes import ModelProcess
from congruence.tasks.readers.base import Call
from congruence.tasks.readers.read import ask
from congruence.tasks.recalibration.model import RecalibratedModel
from congruence.tasks.settings.parts import PredictSettings

FRAME = pd.DataFrame({"a": np.linspace(0, 1, 40), "b": np.cos(np.arange(40.0))})
TARGET = 3 * FRAME["a"] + np.sin(9 * FRAME["b"])
RIDGE = BayesianRidge().fit(FRAME, TARGET)
MEAN, STD = RIDGE.predict(FRAME, return_std=True)


def test_a_native_model_in_a_process_of_its_own(registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "logged_environment", lambda *_, **__: Path(sys.executable))
    log_natively(RIDGE, registry, FRAME)
    version = newest(registry).identity
    model = ModelProcess(fetch(version), "ridge", PredictSettings(isolation="environment"), tmp_path)
    for predictions in (PredictionSettings(), PredictionSettings(method="predict(return_std=True)")):
        found = PredictiveModel(version, predictions, model).predict(FRAME)
        assert isinstance(found, Normal)
        np.testing.assert_allclose(found.loc, MEAN, rtol=1e-12)
        np.testing.assert_allclose(found.scale, STD, rtol=1e-12)
    plain = PredictiveModel(version, PredictionSettings(family="normal", columns={"loc": "0", "scale": 1.0}), model)
    np.testing.assert_allclose(plain.predict(FRAME).mean(), MEAN)
    with pytest.raises(ContractError, match="sklearn's BayesianRidge has no method 'sample'; it has "):
        PredictiveModel(version, PredictionSettings(method="sample"), model).predict(FRAME)
    assert model_facts(version.uri).asked_by == "BayesianRidge: predict(return_std=True)"


def test_the_readers_need_numpy_and_the_standard_library_alone(tmp_path: Path) -> None:
    """They run where a version's own packages are, and nothing of ours."""
    folder = Path(readers.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                own = name.startswith("congruence.tasks.readers")
                assert own or name.split(".")[0] in {*sys.stdlib_module_names, "numpy"}, f"{path.name}: {name}"
    place = tmp_path / "congruence" / "tasks" / "readers"
    place.parent.mkdir(parents=True)
    place.symlink_to(folder)
    script = (
        "import os, sys\n"
        "sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, 'congruence'))]\n"
        f"sys.path.append({str(tmp_path)!r})\n"
        "import scipy.stats, congruence.tasks.readers.read as r\n"
        f"assert r.__file__.startswith({str(tmp_path)!r})\n"
        "print(r.read_output(scipy.stats.norm([1.0, 2.0], 3.0), 2).family)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "normal", done.stderr


def test_a_native_version_that_is_recalibrated_answers_in_columns_of_ours(registry: str) -> None:
    log_natively(RIDGE, registry, FRAME)
    parent = newest(registry)
    moved = NormalScoreMap.affine(np.full(40, 0.3), np.full(40, 1.5))
    model = RecalibratedModel()
    model.settings, model.parent, model.embedding = parent.settings, parent, None
    model.fitted = SimpleNamespace(everywhere=lambda rows: moved, form=Form(factor=1.0, shift=1.0))
    found = read_distribution(model.predict(None, FRAME), model.read_by, 40)
    assert model.read_by == PredictionSettings(family="normal")
    np.testing.assert_allclose(found.mean(), MEAN + 0.3 * STD)
    np.testing.assert_allclose(found.std(), 1.5 * STD)
    log_by_us(lambda frame: Normal(frame["a"], 1.0), f"{registry}-own", FRAME)
    own = newest(f"{registry}-own", PredictionSettings(method="pred_dist"))
    assert own.settings.method is None  # what a version says itself comes before a method for those that say nothing


def test_a_method_with_a_family_gives_columns(registry: str) -> None:
    log_natively(GaussianProcessRegressor(RBF() + WhiteKernel()).fit(FRAME, TARGET), registry, FRAME)
    samples = PredictionSettings(family="samples", method="sample_y(n_samples=7, random_state=1)")
    found = predicted(registry, FRAME, samples)
    assert found.parameters()["values"].shape == (40, 7)
    with pytest.raises(ContractError, match="its output is a numpy ndarray of shape"):
        predicted(registry, FRAME, PredictionSettings(method="sample_y(n_samples=7)"))


def test_a_point_forecast_is_named_with_ways_to_give_it_a_spread(registry: str) -> None:
    log_natively(LinearRegression().fit(FRAME, TARGET), registry, FRAME)
    with pytest.raises(ContractError, match=r"shape \(40,\) for 40 rows.*columns: \{loc: \"0\", scale: 2.0\}"):
        predicted(registry, FRAME)


def test_categories_and_missing_values_as_lightgbm_takes_them(registry: str) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    kinds = pd.CategoricalDtype(["north", "south", "west"])
    frame = FRAME.assign(place=pd.Series(["north", "south", "west", "south"] * 10, dtype=kinds))
    frame.loc[3, "b"] = np.nan
    counts = np.round(5 * frame["a"] + 4 * frame["place"].cat.codes)
    model = lightgbm.LGBMRegressor(objective="poisson", n_estimators=20, min_child_samples=2, verbose=-1)
    model.fit(frame, counts)
    expected = model.predict(frame)
    assert len(np.unique(expected[::4])) > 1
    log_by_us(model, registry, frame)
    levels = {q: lightgbm.LGBMRegressor(objective="quantile", alpha=q, n_estimators=5, min_child_samples=2, verbose=-1)
              .fit(frame, counts) for q in (0.1, 0.9)}  # fmt: skip
    as_text = frame.assign(place=frame["place"].astype(str))
    log_by_us(levels, f"{registry}-levels", frame)
    log_natively(model, f"{registry}-native", as_text, "lightgbm")
    for name in (registry, f"{registry}-native"):
        for rows in (frame, as_text):
            found = predicted(name, rows)
            assert isinstance(found, Poisson)
            np.testing.assert_allclose(found.rate, expected, rtol=1e-12)
    assert isinstance(predicted(f"{registry}-levels", frame), Quantiles)


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("The saved sklearn model references untrusted types ['x.Y']", "skops_trusted_types"),
        ("This model contains pickle and 'MLFLOW_ALLOW_PICKLE_DESERIALIZATION' is false", "set MLFLOW_ALLOW_PICKLE"),
        ("'MLFLOW_ALLOW_MODEL_CODE_EXECUTION' is set to 'false'", "refuses every pyfunc model"),
        ("torch.export failed for model.pt2", 'serialization_format="pickle"'),
        ("No module named 'ngboost'", "get_model_dependencies"),
    ],
)
def test_what_does_not_load_has_a_remedy(message: str, remedy: str) -> None:
    assert remedy in loading_remedy(RuntimeError(message), "models:/m/1")


def test_what_mlflow_logs_by_default_loads_or_says_what_to_do(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """scikit-learn by skops, as MLflow 3.17 and newer do; pickles where they are banned."""
    if tuple(int(part) for part in mlflow.__version__.split(".")[:2]) < (3, 17):
        pytest.skip("MLflow logs scikit-learn by skops from 3.17 on")
    plain = {"name": "model", "pip_requirements": ["numpy"]}
    signature = mlflow.models.infer_signature(FRAME)
    process = GaussianProcessRegressor(RBF() + WhiteKernel()).fit(FRAME, TARGET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow.sklearn.log_model(RIDGE, registered_model_name=f"{registry}-skops", signature=signature, **plain)
        with pytest.raises(MlflowException, match="skops_trusted_types") as refused:
            mlflow.sklearn.log_model(process, signature=signature, **plain)
        trusted = re.findall(r"'(sklearn\.[\w.]+)'", str(refused.value))
        mlflow.sklearn.log_model(process, registered_model_name=f"{registry}-trusted", signature=signature,
                                 skops_trusted_types=trusted, **plain)  # fmt: skip
    kinds = [mlflow.models.get_model_info(f"models:/{registry}-{name}/1").flavors for name in ("skops", "trusted")]
    assert [kind["sklearn"]["serialization_format"] for kind in kinds] == ["skops", "skops"]
    np.testing.assert_allclose(predicted(f"{registry}-skops", FRAME).std(), STD)
    expected = process.predict(FRAME, return_std=True)[1]
    np.testing.assert_allclose(predicted(f"{registry}-trusted", FRAME).std(), expected)
    log_natively(RIDGE, f"{registry}-pickled", FRAME)
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    with pytest.raises(ContractError, match="set MLFLOW_ALLOW_PICKLE_DESERIALIZATION to true"):
        newest(f"{registry}-pickled")


class Exported(torch.nn.Module):
    """As what torch.export made (pt2): it has no mode."""

    def eval(self) -> Exported:
        raise NotImplementedError("Calling eval() is not supported yet.")

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return 2.0 * rows


def test_an_exported_module_is_asked_as_it_is() -> None:
    np.testing.assert_allclose(ask(Exported(), Call(""), FRAME), 2.0 * FRAME, rtol=1e-6)


def test_mlflows_bans_reach_the_process_of_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_MODEL_CODE_EXECUTION", "false")
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    found = model_variables(tmp_path)
    assert found["MLFLOW_ALLOW_MODEL_CODE_EXECUTION"] == found["MLFLOW_ALLOW_PICKLE_DESERIALIZATION"] == "false"
