"""The demonstrations' data, models and encoder: known laws, the same bytes, versions that rank as they deserve."""

import hashlib
import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from databases import mlflow_at, mlflow_database
from PIL import Image
from scipy import stats
from train_compact_clip import DIGIT_NAMES, caption, probe, save, turn
from train_compact_clip import train as train_clip

from congruence.kernels import NegativeBinomial, Poisson, pit_values
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import conditional_calibration_test
from congruence.kernels.dependence.blocks import lag_correlations
from congruence.kernels.dependence.correlation import correlations, dependence_scores
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.marginal_calibration import expected_calibration_error
from congruence.kernels.protocol import EXACT
from congruence.kernels.split import prepare
from congruence.tasks.compact_clip import WEIGHTS, model_name
from congruence.tasks.contract import PredictiveModel, check_contract, load_predictive_model
from congruence.tasks.digits.dataset import base_images, digit_rows, draw, labels, noise_scale, write_digits
from congruence.tasks.digits.hourly import CORRELATION, INPUTS, hourly_counts, poisson, true_law, weekday
from congruence.tasks.digits.models import DESCRIPTIONS, MODEL_NAME, pixels
from congruence.tasks.digits.training import normal_nll, register_versions, train
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.open_clip_import import open_clip
from congruence.tasks.models.registry import list_versions, resolve
from congruence.tasks.sentences.calibration import correlation_clause
from congruence.tasks.settings.sections import EncoderSettings, ModelVersion


def test_no_digit_is_in_both_splits_and_none_is_left_out() -> None:
    train, test = base_images("train"), base_images("test")
    assert not set(train) & set(test)
    assert sorted([*train, *test]) == list(range(1797))
    assert not set(digit_rows("train", 4000).base) & set(digit_rows("test", 4000).base)


def test_each_split_holds_every_digit_in_equal_shares() -> None:
    shares = np.bincount(labels()[base_images("test")], minlength=10) / np.bincount(labels())
    np.testing.assert_allclose(shares, 0.4, atol=0.01)


def test_angles_and_noise_follow_the_law() -> None:
    rows = digit_rows("test", 4000, seed=5)
    residual = (rows.target - rows.angle) / noise_scale(rows.digit)
    assert stats.kstest(residual, "norm").pvalue > 0.01
    assert stats.kstest(rows.angle, stats.uniform(-60, 120).cdf).pvalue > 0.01
    np.testing.assert_array_equal(noise_scale([0, 4, 9]), [5.0, 15.0, 27.5])
    for digit in range(10):
        assert residual[rows.digit == digit].std() == pytest.approx(1.0, abs=0.15)


def test_more_rows_begin_with_the_same_rows() -> None:
    few, many = digit_rows("train", 100, seed=3), digit_rows("train", 2000, seed=3)
    assert many.key[:100] == few.key
    for name in ("base", "angle", "digit", "target"):
        np.testing.assert_array_equal(getattr(many, name)[:100], getattr(few, name))
    assert not np.array_equal(digit_rows("train", 100, seed=4).angle, few.angle)


def test_positive_angles_turn_to_the_left() -> None:
    one = int(base_images("train")[labels()[base_images("train")] == 1][0])
    ink = np.asarray(draw(one, 45.0), dtype=float)
    rows, columns = np.mgrid[:64, :64] - 31.5
    # Turned to the left a stroke leans from the upper left to the lower right.
    assert (ink * rows * columns).sum() > 0


def test_no_rotation_cuts_a_stroke_off() -> None:
    for base in base_images("test")[:40]:
        ink = [np.asarray(draw(int(base), angle), dtype=float) for angle in (0.0, 60.0, -60.0)]
        assert all(image[[0, -1]].max() < 64 and image[:, [0, -1]].max() < 64 for image in ink)
        np.testing.assert_allclose([image.sum() for image in ink], ink[0].sum(), rtol=0.03)


def test_files_are_the_same_bytes_and_hold_the_rows(tmp_path: Path) -> None:
    first = write_digits(tmp_path / "a", "test", rows=50, seed=1, shard_rows=20)
    again = write_digits(tmp_path / "b", "test", rows=50, seed=1, shard_rows=20)
    assert [p.name for p in first] == ["test-00000.parquet", "test-00001.parquet", "test-00002.parquet"]
    assert [hashlib.sha256(p.read_bytes()).digest() for p in first] == [
        hashlib.sha256(p.read_bytes()).digest() for p in again
    ]
    assert not list(tmp_path.rglob("*.partial"))
    table = pq.read_table(first[0])
    assert table.column_names == ["key", "image", "angle", "digit", "target"]
    assert table.num_rows == 20
    rows = digit_rows("test", 50, seed=1)
    assert tuple(table["key"].to_pylist()) == rows.key[:20]
    np.testing.assert_array_equal(table["target"].to_numpy(), rows.target[:20])
    picture = Image.open(io.BytesIO(table["image"][3].as_py()))
    np.testing.assert_array_equal(np.asarray(picture), np.asarray(draw(int(rows.base[3]), float(rows.angle[3]))))


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="rows is 0"):
        digit_rows("test", 0)
    with pytest.raises(InvalidInputError, match="shard_rows is 0"):
        write_digits(tmp_path, "test", shard_rows=0)


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
    with mlflow_at(mlflow_database(folder)):
        yield register_versions(folder / "train")


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


HOURS = hourly_counts(2000)
TARGETS = HOURS["count"].to_numpy(float)
TRUTH = NegativeBinomial(true_law(HOURS)["mean"].to_numpy(), true_law(HOURS)["dispersion"].to_numpy())


def test_every_hour_has_the_stated_law_and_is_like_the_one_before() -> None:
    hours = [hourly_counts(2000, seed) for seed in range(30)]
    pit = np.stack([_pit_of(frame) for frame in hours])
    assert pit.mean() == pytest.approx(0.5, abs=0.02)
    assert np.mean(pit <= 0.1, axis=0).mean() == pytest.approx(0.1, abs=0.015)
    assert np.mean(pit >= 0.9, axis=0).mean() == pytest.approx(0.1, abs=0.015)
    bias = dependence_scores(TARGETS, TRUTH)[:, :1]
    assert lag_correlations(bias)[0] == pytest.approx(CORRELATION, abs=0.1)
    assert hourly_counts(300).equals(hourly_counts(300))


def _pit_of(frame) -> np.ndarray:
    law = true_law(frame)
    counts = NegativeBinomial(law["mean"].to_numpy(), law["dispersion"].to_numpy())
    return pit_values(frame["count"].to_numpy(float), counts)


def test_the_true_law_is_called_wrong_as_rows_and_not_by_runs_of_time() -> None:
    x, settings = HOURS[list(INPUTS)].to_numpy(float), CalibrationSettings(draws=199, directions=30)
    (look,) = correlations(dependence_scores(TARGETS, TRUTH))
    assert look.is_found
    assert "name `time:`" in correlation_clause(look)
    laws = {
        "truth": TRUTH,
        "poisson": Poisson(poisson(HOURS)["rate"].to_numpy()),
        "weekday": NegativeBinomial(weekday(HOURS)["mean"].to_numpy(), TRUTH.dispersion),
    }
    as_rows = conditional_calibration_test(x, TARGETS, TRUTH, settings=settings)
    by_time = {
        name: conditional_calibration_test(x, TARGETS, law, settings=settings, time=HOURS["time"])
        for name, law in laws.items()
    }
    assert as_rows.p_value < 0.025
    assert by_time["truth"].p_value > 0.05
    assert by_time["poisson"].p_value < 0.025
    assert by_time["weekday"].p_value < 0.025


def test_the_weights_are_small() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= 4_000_000


def test_linear_probes_find_rotation_and_digit_on_unseen_digits() -> None:
    model, _, preprocess = open_clip.create_model_and_transforms(model_name(), require_pretrained=True)
    found = probe(model.eval(), preprocess, rows=1000)
    assert found.angle_r2 > 0.9
    assert found.digit_accuracy > 0.95


def test_captions_find_their_images() -> None:
    model, _, preprocess = open_clip.create_model_and_transforms(model_name(), require_pretrained=True)
    tokenizer = open_clip.get_tokenizer(model_name())
    rows = digit_rows("test", 200)
    labels = [(digit, angle) for digit in range(10) for angle in range(-60, 61, 10)]
    with torch.inference_mode():
        texts = model.eval().encode_text(tokenizer([caption(d, a) for d, a in labels]), normalize=True)
        pictures = [preprocess(draw(int(b), float(a))) for b, a in zip(rows.base, rows.angle, strict=True)]
        images = model.encode_image(torch.stack(pictures), normalize=True)
    told = np.array(labels)[(images @ texts.T).argmax(dim=1).numpy()]
    assert (told[:, 0] == rows.digit).mean() > 0.95
    assert np.abs(told[:, 1] - rows.angle).mean() < 6.0


@pytest.mark.parametrize(
    ("angle", "words"),
    [(30.2, "turned 30 degrees to the left"), (-7.6, "turned 8 degrees to the right"), (-0.4, "standing upright")],
)
def test_rotations_in_words(angle: float, words: str) -> None:
    assert turn(angle) == words


def test_every_digit_has_a_caption_of_its_own() -> None:
    assert caption(7, 30.0) == "a handwritten seven turned 30 degrees to the left"
    assert len({caption(digit, 12.0) for digit in range(len(DIGIT_NAMES))}) == 10


def test_trained_weights_come_back_through_open_clip(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    shutil.copyfile(WEIGHTS / "open_clip_config.json", tmp_path / "open_clip_config.json")
    try:
        trained = train_clip(tmp_path, steps=2, seed=1)
    finally:
        torch.set_num_threads(threads)
    save(trained, tmp_path)
    loaded = open_clip.create_model(model_name(tmp_path), require_pretrained=True)
    for name, value in trained.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=1e-3, atol=1e-6)
