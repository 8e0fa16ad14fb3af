"""A worker loads a version once, predicts what is missing, and a version's failure is its own."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlflow
import numpy as np
import pandas as pd
import pytest
from encoder_inputs import of_features
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_DOES_NOT_EXIST
from PIL import Image
from saved_pictures import saved

from congruence.kernels.distributions import Normal, Samples
from congruence.tasks.contract import ContractError, PredictionSettings, log_predictive_model
from congruence.tasks.contract.model import PredictiveModel, contract_digest, resolved_contract
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.models import processes
from congruence.tasks.models.evaluated_rows import EvaluatedRows, contract_rows, refused_rows, try_contract
from congruence.tasks.models.processes import ServedVersion, warm_model
from congruence.tasks.models.registry import list_versions
from congruence.tasks.store.embeddings import StoreAddress
from congruence.tasks.store.objects import PredictionsError

EXAMPLE = pd.DataFrame({"a": np.linspace(0, 1, 8), "b": np.linspace(1, 2, 8)})
Served = Callable[..., ServedVersion]
Rows = Callable[..., EvaluatedRows]


def log(name: str, function: Any, **settings: Any) -> None:
    log_predictive_model(function, name="model", input_example=EXAMPLE, registered_model_name=name, **settings)


def normal(frame: pd.DataFrame) -> Normal:
    return Normal(frame["a"], frame["b"])


class Counting:
    """How often models were loaded and asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loaded: list[str] = []
        self.asked: list[tuple[str, int, tuple[str, ...]]] = []
        load, predict = processes._load, PredictiveModel.predict

        def counted_load(served: ServedVersion) -> PredictiveModel:
            self.loaded.append(served.label)
            return load(served)

        def counted_predict(model: PredictiveModel, frame: pd.DataFrame, *, start: int = 0) -> Any:
            self.asked.append((model.identity.label, start, tuple(frame.columns)))
            return predict(model, frame, start=start)

        monkeypatch.setattr(processes, "_load", counted_load)
        monkeypatch.setattr(PredictiveModel, "predict", counted_predict)


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    return Counting(monkeypatch)


@pytest.fixture
def version(registry: str, served: Served) -> ServedVersion:
    """One that predicts what its rows say."""
    log(registry, normal)
    return served()


def test_groups_of_shards_are_predicted_once(
    version: ServedVersion, split: Split, rows: Rows, counting: Counting
) -> None:
    valid = np.arange(split.rows) % 4 != 1
    of_version = rows(version, valid=valid)
    assert len(pickle.dumps((of_version._kept(version.label), version))) < 4000
    assert of_version.predict(version.label, split.shards[:2]) == int(valid[:20].sum())
    assert of_version.predict(version.label, split.shards) == int(valid[20:].sum())
    assert of_version.predict(version.label, split.shards) == 0
    assert counting.loaded == [version.label]
    assert counting.asked == [(version.label, shard.start, ("a", "b")) for shard in split.shards]
    found = of_version.all_predictive(version.label)
    np.testing.assert_allclose(found.mean(), np.linspace(0, 1, split.rows)[valid])


def _thirty_sixth(frame: pd.DataFrame) -> Any:
    return np.abs(frame["a"] - 36 / 49) < 1e-9


def _not_all(frame: pd.DataFrame) -> Normal:
    if _thirty_sixth(frame).any():
        raise ValueError("no exposure")
    return normal(frame)


def _negative(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"loc": frame["a"], "scale": np.where(_thirty_sixth(frame), -1.0, 1.0)})


def _missing(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"loc": np.where(_thirty_sixth(frame), np.nan, frame["a"]), "scale": 1.0})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_not_all, r"predict failed on row 36 of the split \(key '36'\): ValueError: no exposure$"),
        (_negative, r"scale.* row 36 of the split \(key '36'\)"),
        (_missing, r"output column 'loc': row 36 of the split \(key '36'\) is nan; the model must return"),
    ],
)
def test_the_row_that_a_version_cannot_take_is_named_by_number_and_key(
    registry: str, split: Split, served: Served, rows: Rows, function: Any, message: str
) -> None:
    family = {} if function is _not_all else {"family": "normal"}
    log(registry, function, **family)
    valid = np.arange(split.rows) % 4 != 1  # row 36 is the fourth valid one of its shard
    with pytest.raises(ContractError, match=message):
        rows(served(), valid=valid).predict(served().label, split.shards)


def test_every_shard_that_was_answered_is_kept_when_the_version_is_killed(
    version: ServedVersion, split: Split, rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = PredictiveModel.predict

    def killed(model: PredictiveModel, frame: pd.DataFrame, *, start: int = 0) -> Any:
        if start == split.shards[4].start:
            raise KeyboardInterrupt
        return answered(model, frame, start=start)

    monkeypatch.setattr(PredictiveModel, "predict", killed)
    of_version = rows(version)
    with pytest.raises(KeyboardInterrupt):
        of_version.predict(version.label, split.shards)
    names = [name for name, _ in of_version._named(split.shards)]
    assert of_version._kept(version.label).missing(names) == names[4:]


def test_a_shard_without_a_valid_row_is_not_asked_for(
    version: ServedVersion, split: Split, rows: Rows, counting: Counting
) -> None:
    of_version = rows(version, valid=np.arange(split.rows) // 10 != 2)
    assert of_version.predict(version.label, split.shards) == 40
    assert len(of_version._named(split.shards)) == 4
    assert of_version.predict(version.label, split.shards) == 0
    assert [start for _, start, _ in counting.asked] == [0, 10, 30, 40]


def test_of_shards_with_the_same_inputs_one_is_asked_for_and_each_is_read(
    version: ServedVersion, tmp_path: Path
) -> None:
    pd.concat([EXAMPLE, EXAMPLE]).assign(y=np.arange(16.0)).to_parquet(tmp_path / "twice.parquet")
    split = open_split(of_features(tmp_path / "twice.parquet", ["a", "b"], shard_rows=8))
    found = EvaluatedRows(split, StoreAddress(str(tmp_path / "store"), {}, "encoder", 2), {version.label: version})
    found.__dict__["valid"] = np.ones(16, bool)
    assert found.predict(version.label, split.shards) == 8
    np.testing.assert_allclose(found.all_predictive(version.label).mean(), np.tile(EXAMPLE["a"], 2))


def test_a_damaged_file_is_named_and_asked_again_when_it_is_deleted(
    version: ServedVersion, split: Split, rows: Rows, tmp_path: Path
) -> None:
    of_version = rows(version)
    of_version.predict(version.label, split.shards)
    path = tmp_path / "store" / of_version._kept(version.label).key(of_version._named(split.shards)[1][0])
    path.write_bytes(b"damaged")
    with pytest.raises(PredictionsError, match=rf"{version.label}: {path} is damaged .*; delete this file"):
        of_version.all_predictive(version.label)
    path.unlink()
    assert of_version.predict(version.label, split.shards) == 10
    assert len(of_version.all_predictive(version.label)) == split.rows


def test_a_process_keeps_the_two_models_asked_last(registry: str, served: Served, counting: Counting) -> None:
    given = []
    for _ in range(3):
        log(registry, normal)
        given.append(served())
    first, second, third = given
    for one in (first, second, first, third, first, second):
        warm_model(one)
    assert counting.loaded == [one.label for one in (first, second, third, second)]
    other = served(predictions=PredictionSettings(family="normal", columns={"scale": 1.0}))
    assert warm_model(other).settings.columns == {"scale": 1.0}


def test_many_threads_load_a_version_once(version: ServedVersion, counting: Counting) -> None:
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda _: warm_model(version), range(6)))
    assert counting.loaded == [version.label]
    assert len({id(model) for model in found}) == 1


def test_modules_of_one_name_are_each_versions_own(registry: str, served: Served, tmp_path: Path) -> None:
    """MLflow puts the code of every version on the path: the second would get the first one's module."""
    model = tmp_path / "model.py"
    model.write_text(
        "import mlflow, pandas as pd\n"
        "class Model(mlflow.pyfunc.PythonModel):\n"
        "    def load_context(self, context):\n"
        "        from answers import LOC\n"
        "        self.loc = LOC\n"
        "    def predict(self, context, model_input, params=None):\n"
        "        return pd.DataFrame({'loc': self.loc + 0 * model_input['a'], 'scale': 1.0})\n"
        "mlflow.models.set_model(Model())\n"
    )
    given = []
    for number in (1, 2):
        code = tmp_path / f"{number}" / "answers.py"
        code.parent.mkdir()
        code.write_text(f"LOC = {number}.0\n")
        signature = mlflow.models.infer_signature(EXAMPLE)
        mlflow.pyfunc.log_model(
            name="model", python_model=str(model), code_paths=[str(code)], signature=signature,
            registered_model_name=registry, pip_requirements=["numpy"], metadata={"congruence": {"family": "normal"}},
        )  # fmt: skip
        given.append(served())
    assert [float(warm_model(version).predict(EXAMPLE).mean()[0]) for version in given] == [1.0, 2.0]
    sys.modules.pop("answers", None)


def _raises(frame: pd.DataFrame) -> pd.DataFrame:
    if len(frame) == 10:
        raise RuntimeError("could not reach https://ada:hunter2@models.example/weights")
    return pd.DataFrame({"loc": frame["a"], "scale": 1.0})


def _is_nan_later(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"loc": frame["a"].where(frame["a"] < 0.5) if len(frame) == 10 else 0.0, "scale": frame["b"]})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_raises, r"predict failed on rows 0 to 9: RuntimeError: could not reach https://\*\*\*@models.example"),
        (_is_nan_later, r"output column 'loc': row 25 is nan"),
    ],
    ids=["raises", "is NaN"],
)
def test_whatever_a_version_does_is_its_own_failure(
    registry: str, split: Split, served: Served, rows: Rows, function: Any, message: str
) -> None:
    log(registry, function, family="normal")
    version = served()
    with pytest.raises(ContractError, match=message) as caught:
        rows(version).predict(version.label, split.shards)
    assert str(caught.value).startswith(f"{version.label}: ")
    assert "hunter2" not in str(caught.value)
    log(registry, normal)
    other = served()
    assert rows(other).predict(other.label, split.shards) == split.rows


def test_a_changing_number_of_samples_is_named(registry: str, split: Split, served: Served, rows: Rows) -> None:
    log(registry, lambda frame: Samples(np.ones((len(frame), 3 if frame["a"].iloc[0] < 0.5 else 4))))
    version = served()
    with pytest.raises(ContractError, match=f"{version.label}: .* must give every row the same number of samples"):
        rows(version).predict(version.label, split.shards)


def test_an_mlflow_that_is_away_is_no_failure_of_the_version(version: ServedVersion) -> None:
    refused = MlflowException("no artifact at s3://key:word@bucket", RESOURCE_DOES_NOT_EXIST)
    with patch("congruence.tasks.contract.model.download_artifacts") as fetching:
        fetching.side_effect = ConnectionError("connection refused")
        with pytest.raises(ConnectionError):
            warm_model(version)
        fetching.side_effect = refused
        said = rf"{version.label}: its files cannot be fetched: .* s3://\*\*\*@bucket"
        with pytest.raises(ContractError, match=said):
            warm_model(version)


def test_the_contract_is_tried_on_a_worker(registry: str, split: Split, served: Served) -> None:
    log(registry, normal)
    assert try_contract(served(), split).rows == 10
    log(registry, lambda frame: Normal(frame["a"] - frame["a"].mean(), np.ones(len(frame))))
    with pytest.raises(ContractError, match="depends on the rest of the batch"):
        try_contract(served(), split)


def test_the_contract_is_tried_on_images_that_can_be_decoded(tmp_path: Path) -> None:
    """The others will have no embedding, so that no version is ever asked for them."""
    whole = saved(Image.new("L", (8, 8), 7))
    photos = [whole if row % 3 else whole[:40] for row in range(12)]
    pd.DataFrame({"photo": photos, "y": np.arange(12.0)}).to_parquet(tmp_path / "photos.parquet")
    settings = SplitSettings(uri=str(tmp_path / "photos.parquet"), input="photo", target="y")
    frame, targets = contract_rows(open_split(settings), 6)
    assert targets.tolist() == [1.0, 2.0, 4.0, 5.0, 7.0, 8.0]
    assert set(frame["photo"]) == {whole}


def test_the_contract_is_tried_on_rows_whose_features_are_finite(tmp_path: Path) -> None:
    """An infinite feature is left out by an evaluation: the version was asked for it all the same, and failed."""
    rows = pd.DataFrame({"a": np.arange(9.0), "b": 1.0, "y": np.arange(9.0)})
    rows.loc[[2, 4], "a"], rows.loc[5, "b"] = [np.inf, -np.inf], np.nan
    rows.to_parquet(tmp_path / "rows.parquet")
    split = open_split(of_features(tmp_path / "rows.parquet", ["a", "b"]))
    assert contract_rows(split, 5)[0].index.tolist() == [0, 1, 3, 6, 7]
    assert contract_rows(split, 5, missing=True)[0].index.tolist() == [0, 1, 3, 5, 6]


def test_the_contract_is_known_before_anything_is_loaded(registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log(registry, lambda frame: pd.DataFrame({"mu": frame["a"], "var": frame["b"]}), family="normal",
        columns={"loc": "mu", "scale": "var"}, transforms={"scale": "sqrt"})  # fmt: skip
    version = list_versions(registry)[-1]
    monkeypatch.setattr("mlflow.pyfunc.load_model", None)
    monkeypatch.setattr("cloudpickle.load", None)
    found = resolved_contract(version)
    said = {"family": "normal", "columns": {"loc": "mu", "scale": "var"}, "transforms": {"scale": "sqrt"}}
    assert found == PredictionSettings.model_validate(said)
    assert resolved_contract(version, PredictionSettings(family="laplace")).family == "laplace"
    digest = contract_digest(found, ["a", "b"])
    assert digest == contract_digest(PredictionSettings.model_validate(said), ["a", "b"])
    others = [
        contract_digest(found.model_copy(update={"transforms": {}}), ["a", "b"]),
        contract_digest(found.model_copy(update={"columns": {"loc": "mu", "scale": "mu"}}), ["a", "b"]),
        contract_digest(PredictionSettings(family="laplace"), ["a", "b"]),
        contract_digest(PredictionSettings(family="quantiles", levels=[0.1, 0.9]), ["a", "b"]),
        contract_digest(PredictionSettings(family="quantiles", levels=[0.2, 0.9]), ["a", "b"]),
        contract_digest(found, ["b", "a"]),
        contract_digest(found, ["a"]),
        contract_digest(found, ["a", "b"], "environment"),
    ]
    assert len({digest, *others}) == len(others) + 1


def test_a_version_without_metadata_is_read_as_it_answers(registry: str) -> None:
    mlflow.pyfunc.log_model(name="plain", python_model=normal, input_example=None, registered_model_name=registry,
                            pip_requirements=["numpy"])  # fmt: skip
    assert resolved_contract(list_versions(registry)[-1]) == PredictionSettings(family="auto")
    MlflowClient().delete_registered_model(registry)


def test_a_worker_finds_the_registry_by_its_address(version: ServedVersion, registry_uri: str) -> None:
    mlflow.set_tracking_uri("sqlite:///nowhere.db")
    assert isinstance(warm_model(version).predict(EXAMPLE), Normal)
    assert mlflow.get_tracking_uri() == registry_uri


THE_OTHER = """
import pickle, sys
from congruence.tasks.models.processes import warm_model
rows, served, rows.__dict__["valid"] = pickle.load(open(sys.argv[1], "rb"))
warm_model(served)
print("ready", flush=True)
for group in (rows.split.shards[2:], rows.split.shards[:2]):
    rows.predict(served.label, group)
"""


def test_two_processes_predict_at_once(registry: str, split: Split, served: Served, rows: Rows, tmp_path: Path) -> None:
    log(registry, _with_its_code())
    version, valid = served(), np.arange(split.rows) % 3 != 0
    of_version = rows(version, valid=valid)
    (tmp_path / "work").write_bytes(pickle.dumps((of_version, version, valid)))
    warm_model(version)
    command = [sys.executable, "-c", THE_OTHER, str(tmp_path / "work")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "ready\n"
        for group in (split.shards[:3], split.shards[3:]):
            of_version.predict(version.label, group)
        assert other.wait() == 0
    found = of_version.all_predictive(version.label)
    np.testing.assert_allclose(found.mean(), np.linspace(0, 1, split.rows)[valid])


def _with_its_code() -> Any:
    """A function that another process can load: pickled with its code."""
    scope: dict[str, Any] = {}
    exec("def law(frame):\n    import pandas as pd\n    from congruence.kernels.distributions import Normal\n"
         "    return Normal(frame['a'], frame['b'])\n", scope)  # fmt: skip
    return scope["law"]


def test_all_rows_that_a_version_refuses_are_found_and_the_others_stay(
    registry: str, split: Split, served: Served, rows: Rows
) -> None:
    def refuses(frame: pd.DataFrame) -> Normal:
        if frame["a"].between(0.3, 0.35).any() or _thirty_sixth(frame).any():
            raise ValueError("no exposure")
        return normal(frame)

    log(registry, refuses)
    found = rows(served(), valid=np.arange(split.rows) % 4 != 1).refused(served().label, split.shards)
    assert list(found) == [15, 16, 36]
    assert found[36].endswith(": predict failed on this row: ValueError: no exposure")


def test_rows_that_are_refused_together_alone_are_none_to_leave_out() -> None:
    def ask(frame: pd.DataFrame) -> Any:
        if len(frame) > 1:
            raise ContractError("one row at a time")

    with pytest.raises(ContractError, match="one row at a time"):
        refused_rows(ask, pd.DataFrame({"a": range(4)}))
