"""The demonstration's versions: trained on the spot, registered once, and ranked by CCE as they deserve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
from databases import mlflow_database

from congruence.kernels.calibration import expected_calibration_error
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.protocol import EXACT
from congruence.kernels.split import prepare
from congruence.tasks.contract import PredictiveModel, check_contract, load_predictive_model
from congruence.tasks.digits.dataset import write_digits
from congruence.tasks.digits.models import DESCRIPTIONS, MODEL_NAME, register_versions
from congruence.tasks.digits.network import normal_nll, pixels, train
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.models.registry import list_versions, resolve
from congruence.tasks.models.version import ModelVersion

TRAIN_ROWS, TEST_ROWS = 2500, 800


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digit-models")
    write_digits(folder / "train", "train", rows=TRAIN_ROWS)
    write_digits(folder / "test", "test", rows=TEST_ROWS)
    return folder


@pytest.fixture(scope="module")
def test_table(folder: Path) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(path) for path in sorted((folder / "test").glob("*.parquet"))], ignore_index=True)


@pytest.fixture(scope="module")
def versions(folder: Path) -> Iterator[list[ModelVersion]]:
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri(mlflow_database(folder))
    yield register_versions(folder / "train")
    mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def models(versions: list[ModelVersion]) -> dict[str, PredictiveModel]:
    return {version.tags["kind"]: load_predictive_model(version.uri) for version in versions}


@pytest.fixture(scope="module")
def predicted(models: dict[str, PredictiveModel], test_table: pd.DataFrame) -> dict[str, Distribution]:
    return {kind: model.predict(test_table) for kind, model in models.items()}


@pytest.fixture(scope="module")
def congruence(predicted: dict[str, Distribution], test_table: pd.DataFrame) -> dict[str, CongruenceResult]:
    encoder = load_encoder(EncoderSettings(kind="open_clip", model="compact"))
    x = encoder.encode([encoder.preprocess(image) for image in test_table["image"]])
    prepared = prepare(EXACT.apply(x), input_kernel=EXACT.input_kernel)
    return prepared.evaluate(test_table["target"], predicted, draws=0)


def test_the_registry_says_what_each_version_is(versions: list[ModelVersion]) -> None:
    assert [version.tags["kind"] for version in versions] == list(DESCRIPTIONS)
    assert [version.tags["what"] for version in versions] == list(DESCRIPTIONS.values())
    assert all(version.model_id and version.run_id for version in versions)
    assert resolve(f"models:/{MODEL_NAME}@truth").version == "1"


def test_the_models_are_kept_beside_the_database(versions: list[ModelVersion], folder: Path) -> None:
    kept = folder / "mlartifacts" / "digit-angle training" / "models"
    assert len(list(kept.rglob("MLmodel"))) == len(versions)


def test_every_version_keeps_the_contract(models: dict[str, PredictiveModel], test_table: pd.DataFrame) -> None:
    for model in models.values():
        rows = test_table.head(16)
        assert check_contract(model, rows, rows["target"]).warnings == ()
        assert model.input_columns == ("image", "angle", "digit")


def test_the_conditional_error_ranks_the_versions(congruence: dict[str, CongruenceResult]) -> None:
    error = {kind: result.mean for kind, result in congruence.items()}
    assert error["truth"] == pytest.approx(congruence["truth"].noise_floor, rel=0.25)
    assert error["truth"] == min(error.values())
    for kind in ("trained", "homoscedastic", "mixture"):
        assert error["truth"] < error[kind] < 3 * error["truth"], kind
    assert error["overconfident"] > 1.4 * error["trained"]
    assert error["marginal"] == max(error.values())
    assert error["marginal"] > 4 * error["overconfident"]


def test_the_marginal_error_falls_for_the_version_that_ignores_its_input(
    predicted: dict[str, Distribution], test_table: pd.DataFrame
) -> None:
    y = test_table["target"].to_numpy()
    error = {kind: expected_calibration_error(y, distribution) for kind, distribution in predicted.items()}
    assert error["marginal"] < 0.03
    assert error["overconfident"] > 3 * error["marginal"]


def test_training_repeats_bit_by_bit(test_table: pd.DataFrame) -> None:
    x, y = pixels(test_table["image"].tolist()[:300]), test_table["target"].to_numpy()[:300]
    first, second = (train(x, y, normal_nll, outputs=2, steps=6) for _ in range(2))
    np.testing.assert_array_equal(first(x), second(x))


def test_a_second_registration_trains_only_what_is_missing(
    versions: list[ModelVersion], models: dict[str, PredictiveModel], folder: Path, tmp_path: Path
) -> None:
    assert register_versions(tmp_path / "nothing is read here") == versions
    mlflow.MlflowClient().delete_model_version(MODEL_NAME, models["marginal"].identity.version)
    with pytest.raises(InvalidInputError, match="holds no Parquet file"):
        register_versions(tmp_path)
    assert [version.tags["kind"] for version in register_versions(folder / "train")] == list(DESCRIPTIONS)
    assert [version.version for version in list_versions(MODEL_NAME)] == ["1", "2", "3", "4", "5", "7"]
