"""A version in a process of its own: with the packages that were logged with it, and without our variables."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from congruence.kernels.distributions import Samples
from congruence.tasks.contract import ContractError, PredictionSettings
from congruence.tasks.data.split import Split
from congruence.tasks.models import processes
from congruence.tasks.models.environments import build_variables, logged_environment, model_variables
from congruence.tasks.models.evaluated_rows import EvaluatedRows, try_contract
from congruence.tasks.models.processes import ServedVersion, warm_model
from congruence.tasks.runtime.errors import SettingsError

EXAMPLE = pd.DataFrame({"a": np.linspace(0, 1, 8), "b": np.linspace(1, 2, 8)})
NORMAL = PredictionSettings(family="normal")
Served = Callable[..., ServedVersion]
Rows = Callable[..., EvaluatedRows]


@pytest.fixture
def our_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process runs with our own packages: making an environment is another test."""
    monkeypatch.setattr(processes, "logged_environment", lambda *_, **__: Path(sys.executable))


@pytest.fixture
def our_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        "MLFLOW_TRACKING_PASSWORD": "hunter2", "MLFLOW_TRACKING_URI": "http://ada:hunter2@mlflow",
        "AWS_ACCESS_KEY_ID": "hunter2", "AWS_PROFILE": "hunter2", "PREFECT_API_URL": "http://hunter2",
        "GITHUB_TOKEN": "hunter2", "MY_SECRET": "hunter2", "DATABASE_URL": "postgresql://ada:hunter2@db",
        "HTTPS_PROXY": "http://ada:hunter2@proxy", "PIP_INDEX_URL": "https://ada:hunter2@index", "UV_TOKEN": "hunter2",
        "PYTHONPATH": os.environ.get("PYTHONPATH", "hunter2"), "http_proxy": "http://proxy:3128",
    }  # fmt: skip
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)


def log(name: str, body: str, folder: Path, requirements: list[str] | None = None) -> None:
    """A model whose code lies in its own file: ``body`` is that of its function of a frame."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    script = folder / f"{name}.py"
    script.write_text(
        "import os, sys, time\nimport mlflow\nimport numpy as np\nimport pandas as pd\n"
        "class Model(mlflow.pyfunc.PythonModel):\n"
        "    def predict(self, context, model_input, params=None):\n"
        f"{lines}\n"
        "mlflow.models.set_model(Model())\n"
    )
    mlflow.pyfunc.log_model(
        name="model", python_model=str(script), signature=mlflow.models.infer_signature(EXAMPLE),
        registered_model_name=name, pip_requirements=requirements or ["numpy"],
    )  # fmt: skip


def test_only_what_is_listed_is_passed_on(our_secrets: None, tmp_path: Path) -> None:
    found = model_variables(tmp_path)
    assert "hunter2" not in str(found)
    assert found["PATH"] == os.environ["PATH"]
    assert found["HOME"] == found["TMPDIR"] == str(tmp_path)
    assert found["http_proxy"] == "http://proxy:3128"
    assert not any(name.startswith(("AWS_", "PREFECT_", "PIP_", "UV_")) for name in found)
    building = build_variables(tmp_path, tmp_path / "cache")
    assert building["PIP_INDEX_URL"] == building["UV_INDEX_URL"] == "https://ada:hunter2@index"
    assert not {name for name in building if name.startswith(("AWS_", "PREFECT_", "GITHUB", "MY_", "DATA"))}
    assert "UV_TOKEN" not in building
    assert building["PIP_COMPILE"] == "0"


def test_a_model_sees_neither_our_variables_nor_our_folder(
    registry: str, split: Split, served: Served, rows: Rows, our_python: None, our_secrets: None, tmp_path: Path
) -> None:
    """It reads os.environ and says what it finds in its predictions: one for each variable with our secret in it."""
    log(registry, "print('a line that is no answer')\n"
        "seen = sum('hunter2' in value for value in os.environ.values())\n"
        "seen += 100 * (os.environ['HOME'] != os.getcwd())\n"
        "return pd.DataFrame({'loc': model_input['a'] + seen, 'scale': 1.0})", tmp_path)  # fmt: skip
    version = served(predictions=NORMAL, isolation="environment")
    assert try_contract(version, split).rows == 10
    of_version = rows(version)
    assert of_version.predict(version.label, split.shards) == split.rows
    np.testing.assert_allclose(of_version.all_predictive(version.label).mean(), np.linspace(0, 1, split.rows))
    plain = served(predictions=NORMAL)
    assert warm_model(plain).predict(EXAMPLE).mean()[0] > 0  # without isolation it does see them
    assert of_version._kept(version.label).folder != rows(plain)._kept(plain.label).folder


def test_every_kind_of_output_comes_over(registry: str, served: Served, our_python: None, tmp_path: Path) -> None:
    log(registry, "kind = int(model_input['b'].iloc[0])\n"
        "loc, scale = model_input['a'].to_numpy(), np.ones(len(model_input))\n"
        "if kind == 1: return pd.DataFrame({'loc': loc, 'scale': scale}, index=model_input.index + 7)\n"
        "if kind == 2: return {'loc': loc.tolist(), 'scale': scale.astype('float32')}\n"
        "if kind == 3: return np.column_stack([loc, scale])\n"
        "if kind == 4: return pd.DataFrame({'loc': pd.array(loc, dtype='Float64'), 'scale': scale}).astype(object)\n"
        "if kind == 5: return pd.DataFrame({'loc': ['a'] * len(loc), 'scale': scale})\n"
        "if kind == 6: return pd.DataFrame([[1.0, 2.0, 3.0]] * len(loc), columns=['loc', 'scale', 'loc'])\n"
        "return None", tmp_path)  # fmt: skip
    model = warm_model(served(predictions=NORMAL, isolation="environment"))
    for kind in (1, 2, 3, 4):
        found = model.predict(EXAMPLE.assign(b=float(kind)))
        np.testing.assert_array_equal(found.mean(), EXAMPLE["a"], err_msg=str(kind))
    for kind, message in (
        (5, "output column 'loc': row 0 is 'a', expected a number"),
        (6, "'loc' occurs more than once"),
        (7, "predict returned NoneType; return a DataFrame"),
    ):
        with pytest.raises(ContractError, match=message):
            model.predict(EXAMPLE.assign(b=float(kind)))
    log(registry, "return {'values': np.arange(len(model_input) * 6.0).reshape(-1, 3, 2)}", tmp_path)
    found = warm_model(served(predictions=PredictionSettings(family="samples"), isolation="environment")).predict(
        EXAMPLE
    )
    assert isinstance(found, Samples)
    assert found.values.shape == (8, 3, 2)


def test_nothing_is_left_of_a_version_that_is_no_longer_asked(
    registry: str, served: Served, our_python: None, tmp_path: Path
) -> None:
    log(registry, "return pd.DataFrame({'loc': float(os.getpid()), 'scale': model_input['b']})", tmp_path)
    model = warm_model(served(predictions=NORMAL, isolation="environment"))
    process = int(model.predict(EXAMPLE).mean()[0])
    assert process != os.getpid()
    folders = [model.pyfunc._folder, model.pyfunc._process.home]  # type: ignore[attr-defined]
    assert all(folder.exists() for folder in folders)
    processes._models.clear()
    del model
    gc.collect()
    assert not any(folder.exists() for folder in folders)
    assert not Path(f"/proc/{process}").exists()


def test_an_environment_that_cannot_be_made_is_the_versions_failure(
    registry: str, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(registry, "return model_input", tmp_path, ["no-such-package-of-congruence==1"])
    version = served(predictions=NORMAL, isolation="environment", build_timeout=0.2)
    with pytest.raises(ContractError, match=rf"{version.label}: .* did not end within 0.2 s"):
        warm_model(version)
    environments = tmp_path / "environments"
    assert [path.suffix for path in environments.iterdir()] == [".lock"]
    monkeypatch.setattr("congruence.tasks.models.environments.shutil.which", lambda *_, **__: None)
    with pytest.raises(SettingsError, match="needs uv or pyenv on the path of every worker"):
        warm_model(version)


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("environments")


@pytest.mark.exercise
@pytest.mark.timeout(1200)
def test_a_version_runs_in_the_environment_that_was_logged_with_it(
    registry: str,
    split: Split,
    rows: Rows,
    registry_uri: str,
    environments: Path,
    our_secrets: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real environment from the package index, without congruence; pyarrow, joblib and mlflow-skinny as logged."""
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.delenv("http_proxy")
    mlflow.set_tracking_uri(registry_uri)
    model = LinearRegression().fit(EXAMPLE, EXAMPLE["a"] * 3)
    needed = ["scikit-learn", "numpy", "pandas", "pyarrow", "cloudpickle"]
    pinned = [f"{name}=={__import__('importlib.metadata', fromlist=['x']).version(name)}" for name in needed]
    requirements = [f"mlflow-skinny=={mlflow.__version__}", *pinned]
    mlflow.sklearn.log_model(
        model, name="plain", registered_model_name=registry, signature=mlflow.models.infer_signature(EXAMPLE),
        serialization_format="cloudpickle", pip_requirements=requirements,
    )  # fmt: skip
    log(f"{registry}-packages", "import importlib.util\n"
        "ours = importlib.util.find_spec('congruence') is not None\n"
        "secrets = sum('hunter2' in value for value in os.environ.values())\n"
        "return pd.DataFrame({'loc': ours + 10.0 * secrets + 0 * model_input['a'], 'scale': 1.0})",
        tmp_path, requirements)  # fmt: skip
    from congruence.tasks.models.registry import list_versions
    from congruence.tasks.settings.parts import PredictSettings
    from congruence.tasks.settings.sections import TrackingSettings

    seconds = []
    for name, contract in (
        (registry, PredictionSettings(family="normal", columns={"loc": "0", "scale": 0.5})),
        (f"{registry}-packages", NORMAL),
    ):
        version = ServedVersion(
            list_versions(name)[-1],
            contract,
            TrackingSettings(uri=registry_uri),
            PredictSettings(isolation="environment"),
            str(environments),
        )
        started = time.perf_counter()
        warm_model(version)
        seconds.append(time.perf_counter() - started)
        found = rows(version).all_predictive(version.label).mean()
        expected = 3 * np.linspace(0, 1, split.rows) if name == registry else np.zeros(split.rows)
        np.testing.assert_allclose(found, expected, atol=1e-12)
    print(f"environment made and model loaded in {seconds[0]:.1f} s, found and loaded in {seconds[1]:.1f} s")
    assert len([path for path in environments.iterdir() if (path / "ready").exists()]) == 1
    (made,) = [path for path in environments.iterdir() if (path / "ready").exists()]
    (made / "ready").unlink()  # as a kill leaves it
    (made / "half").mkdir()
    monkeypatch.setattr("congruence.tasks.models.environments._make", _makes_anew(made))
    assert logged_environment(_folder_of(version), environments, label="x", timeout=1.0).name == "python"


def _makes_anew(made: Path) -> Callable[..., None]:
    def make(model: Path, folder: Path, *_: Any) -> None:
        assert folder == made
        assert not folder.exists()
        (folder / "mlflow-1" / "bin").mkdir(parents=True)
        (folder / "mlflow-1" / "bin" / "python").touch()

    return make


def _folder_of(version: ServedVersion) -> Path:
    model: Any = warm_model(version).pyfunc
    return Path(model._folder)
