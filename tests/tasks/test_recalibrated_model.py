"""A recalibrated version: its columns, its files, its rows, and what a report says that it would change."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from comparable import angle

from congruence.kernels.dependence.correlation import hold_out
from congruence.kernels.distributions import Distribution, Histogram, Mixture, Normal, Poisson, Quantiles, Samples
from congruence.kernels.distributions.recalibrated import recalibrated
from congruence.kernels.distributions.score_map import NormalScoreMap
from congruence.kernels.engine.spectrum import input_spectrum
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF, Kernel, Linear, Polynomial
from congruence.kernels.protocol import EXACT
from congruence.kernels.recalibration.fit import fit_recalibration
from congruence.kernels.recalibration.recalibration_map import (
    Form,
    RecalibrationMap,
    input_features,
    map_arrays,
    map_of,
)
from congruence.tasks.contract import ContractError
from congruence.tasks.contract.reading import distribution_columns, output_columns, read_distribution
from congruence.tasks.readers.base import spec
from congruence.tasks.recalibration.model import RecalibratedModel, corrected_output
from congruence.tasks.recalibration.versions import pack_encoder
from congruence.tasks.report.page import render
from congruence.tasks.runtime.files import from_npz, to_npz
from congruence.tasks.scores.correction import in_words, preview, rows_to_try
from congruence.tasks.scores.evaluation import MetricValue
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.version import is_wanted
from congruence.tasks.sentences.calibration import CorrectionPreview, PreviewRow, judgement
from congruence.tasks.settings.sections import EncoderSettings, PredictionSettings
from congruence.tasks.store.objects import describe, restore

MOVED = NormalScoreMap.affine([0.3, -0.2], [1.5, 0.7])
BENT = NormalScoreMap([0.3, -0.2], [1.5, 0.7], np.array([0.0, 0.25, 1.0]), np.array([[0.0, 0.2, 1.0], [0.0, 0.3, 1.0]]))
AFFINE, SHAPED = Form(factor=1.0, shift=1.0), Form(factor=1.0, shift=1.0, shape=(10.0, 0.5))

CASES: dict[str, tuple[PredictionSettings, Any, bool]] = {
    "a logarithm of the scale": (
        PredictionSettings(family="normal", columns={"loc": "mu", "scale": "ls"}, transforms={"scale": "exp"}),
        pd.DataFrame({"mu": [1.0, 2.0], "ls": [0.0, 0.5], "note": ["a", "b"]}),
        True,
    ),
    "a softplus": (
        PredictionSettings(family="normal", transforms={"scale": "softplus"}),
        pd.DataFrame({"loc": [1.0, 2.0], "scale": [0.0, 3.0]}),
        True,
    ),
    "a bare matrix": (PredictionSettings(family="normal"), np.array([[1.0, 2.0], [3.0, 1.0]]), True),
    "a constant scale": (
        PredictionSettings(family="normal", columns={"scale": 2.0}),
        pd.DataFrame({"loc": [1.0, 2.0]}),
        False,
    ),
    "draws in columns": (PredictionSettings(family="samples"), np.random.default_rng(0).normal(size=(2, 107)), True),
    "few draws": (PredictionSettings(family="samples"), np.random.default_rng(0).normal(size=(2, 7)), False),
    "draws in one column": (
        PredictionSettings(family="samples"),
        pd.DataFrame({"values": list(np.random.default_rng(1).normal(size=(2, 105)))}),
        True,
    ),
    "counts": (PredictionSettings(family="poisson"), pd.DataFrame({"rate": [3.0, 40.0]}), False),
    "quantiles": (
        PredictionSettings(family="quantiles", levels=[0.1, 0.5, 0.9]),
        np.array([[0.0, 1.0, 3.0], [2.0, 3.0, 5.0]]),
        False,
    ),
    "a mixture": (
        PredictionSettings(family="mixture", component="normal"),
        distribution_columns(Mixture([[0.4, 0.6]], (Normal([0.0, 1.0], [1.0, 1.0]), Normal([3.0, 4.0], [0.5, 1.0])))),
        False,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_corrected_law_is_read_by_the_parents_own_contract(case: str) -> None:
    settings, output, in_place = CASES[case]
    columns = output_columns(output, 2)
    base = read_distribution(output, settings, 2)
    for score_map, form in ((MOVED, AFFINE), (BENT, SHAPED)):
        written = corrected_output(columns, settings, form, base, score_map)
        law, expected = read_distribution(written, settings, 2), recalibrated(base, score_map)
        levels = np.array([[0.05, 0.3, 0.5, 0.8, 0.97]])
        np.testing.assert_allclose(law.quantile(levels), expected.quantile(levels), rtol=1e-9)
        y = np.array([0.3, 1.7])
        np.testing.assert_allclose(law.crps(y), expected.crps(y), rtol=1e-9)
        kept = in_place and (form is AFFINE or settings.family == "samples")
        assert (list(written.columns) == list(columns)) == kept
        assert kept or not set(columns) & set(written.columns)  # nobody reads an uncorrected number by its old name
        # Recalibrated once more, and batch by batch.
        again = corrected_output(output_columns(written, 2), settings, form, law, score_map)
        twice = read_distribution(again, settings, 2)
        np.testing.assert_allclose(twice.quantile(levels), recalibrated(law, score_map).quantile(levels), rtol=1e-7)
        alone = read_distribution(written.iloc[:1].reset_index(drop=True), settings, 1)
        np.testing.assert_allclose(alone.quantile(levels), expected.quantile(levels)[:1], rtol=1e-9)


def test_a_damaged_map_column_is_named() -> None:
    settings, output, _ = CASES["counts"]
    columns = output_columns(output, 2)
    written = corrected_output(columns, settings, SHAPED, read_distribution(output, settings, 2), BENT)
    with pytest.raises(ContractError, match=r"factor.*row 1 is -1"):
        read_distribution(written.assign(recalibration_factor=[1.0, -1.0]), settings, 2)
    with pytest.raises(ContractError, match=r"recalibration_shift.*row 0"):
        read_distribution(written.assign(recalibration_shift=[np.nan, 1.0]), settings, 2)


@pytest.mark.parametrize(
    "base",
    [
        Normal([1.0, 2.0], [1.0, 2.0]),
        Poisson([0.7, 50.0]),
        Quantiles([0.1, 0.5, 0.9], [[-1.0, 0.0, 2.0], [0.0, 1.0, 2.0]]),
        Mixture([[0.5, 0.5], [0.3, 0.7]], (Normal([0.0, 1.0], [1.0, 1.0]), Normal([4.0, 5.0], [0.5, 1.0]))),
        Samples([[0.0, 1.0, 3.0], [2.0, 5.0, 3.0]]),
    ],
    ids=lambda law: type(law).__name__,
)
def test_predictions_of_a_recalibrated_version_are_kept_exactly(base: Distribution) -> None:
    law = recalibrated(base, BENT)
    arrays: dict[str, np.ndarray] = {}
    description = describe(law, arrays)
    found = restore(description, arrays)
    assert type(found) is type(law)
    y = np.array([1.0, 3.0])
    np.testing.assert_array_equal(found.cdf(y), law.cdf(y))
    np.testing.assert_array_equal(found.crps(y), law.crps(y))


@pytest.mark.parametrize("kernel", [Polynomial(3, 1.0, 1.0), RBF(0.5) + Linear(), RBF(0.3) * Polynomial(2)])
def test_a_map_survives_its_file(kernel: Kernel) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(300, 3)), rng.normal(size=300)
    law = Normal(0.5 * x[:, 0], np.full(300, 0.6))
    features = input_features(input_spectrum(x, kernel, 0.1), x)
    fitted = fit_recalibration(features, y, law)
    found = map_of(from_npz(to_npz(map_arrays(fitted))))
    new = rng.normal(size=(5, 3))
    assert found.form == fitted.form
    np.testing.assert_array_equal(found.at(new).factor, fitted.at(new).factor)
    np.testing.assert_array_equal(found.at(new).shares, fitted.at(new).shares)
    with pytest.raises(InvalidInputError, match="no recalibration map"):
        map_of({name: values for name, values in map_arrays(fitted).items() if name != "weights"})


def test_a_map_that_is_the_same_everywhere_needs_no_inputs() -> None:
    kernel, levels = Polynomial(3, 1.0, 1.0), np.linspace(0.0, 1.0, 17)
    arrays = np.zeros((4, 2)), np.r_[0.0, np.log(2.0), np.zeros(15)], np.zeros((4, 17)), levels
    fitted = RecalibrationMap(Form(factor=np.inf), kernel, *arrays)
    assert not fitted.depends_on_input
    np.testing.assert_allclose(fitted.everywhere(3).factor, [2.0, 2.0, 2.0])
    varying = RecalibrationMap(Form(factor=1.0), kernel, arrays[0], arrays[1], np.ones((4, 17)), levels)
    with pytest.raises(InvalidInputError, match="from input to input"):
        varying.everywhere(3)


@pytest.mark.parametrize("is_native", [True, False])
def test_a_version_at_another_temperature_answers_in_bins(is_native: bool) -> None:
    """The full output of a TabPFN (see ``tasks.readers.regressors``), and logits in columns."""
    logits, borders = np.random.default_rng(0).normal(size=(3, 4)), [-2.0, -1.0, 0.0, 1.0, 2.0]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    settings = PredictionSettings(family="histogram", borders=borders, transforms={"probabilities": "softmax"})
    columns = pd.DataFrame({f"probabilities_{k}": logits[:, k] for k in range(4)})
    output = spec("histogram", borders=np.array(borders), probabilities=shares, tail_share=0.5)
    model = RecalibratedModel()
    model.settings, model.embedding = settings, None
    law = Histogram(np.array(borders), shares)
    model.parent = SimpleNamespace(output=lambda frame: output if is_native else columns, predict=lambda frame: law)
    model.fitted = RecalibrationMap(
        Form(temperature=2.0), Polynomial(3, 1.0, 1.0), np.zeros((1, 2)), np.zeros(17), np.zeros((1, 17))
    )
    answered = model.predict(None, pd.DataFrame({"x": [1.0, 2.0, 3.0]}))
    found = read_distribution(answered, model.read_by, 3)
    cooled = np.exp(logits / 2.0)
    assert isinstance(found, Histogram)
    np.testing.assert_allclose(found.probabilities, cooled / cooled.sum(axis=1, keepdims=True), rtol=1e-12)
    assert float(found.tail_share) == (0.5 if is_native else 0.0)
    assert in_words(model.fitted, np.zeros((3, 2))) == "probabilities of bins taken at temperature 2"


def test_halves_follow_the_keys_alone() -> None:
    keys = np.array([f"row-{number}" for number in range(12_000)])
    half = hold_out(keys).fitting
    assert 0.47 < half.mean() < 0.53
    order = np.random.default_rng(0).permutation(12_000)
    np.testing.assert_array_equal(hold_out(keys[order]).fitting, half[order])
    chosen, fitting = rows_to_try(Rows({}, np.zeros(12_000), Normal(np.zeros(12_000), 1.0), keys=keys))
    assert (int(fitting.sum()), int((~fitting).sum())) == (4000, 4000)
    np.testing.assert_array_equal(half[chosen], fitting)


def test_weights_of_this_machines_own_files_are_packed(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "mine.pt")
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "open_clip_config.json").write_text("{}")
    file = EncoderSettings(kind="open_clip", model="ViT-B-32", pretrained=str(tmp_path / "mine.pt"), device="cpu")
    packed, key = pack_encoder(file, tmp_path / "packed")
    assert (packed.pretrained, key, packed.device) == ("{folder}/mine.pt", "pretrained", "auto")
    assert (tmp_path / "packed" / "mine.pt").is_file()
    folder = EncoderSettings(kind="open_clip", model=f"local-dir:{tmp_path / 'clip'}")
    packed, key = pack_encoder(folder, tmp_path / "packed")
    assert (packed.model, key) == ("local-dir:{folder}/clip", "model")
    assert (tmp_path / "packed" / "clip" / "open_clip_config.json").is_file()
    compact = EncoderSettings(kind="open_clip", model="compact")
    assert pack_encoder(compact, tmp_path / "none") == (compact, "")


def test_a_preview_is_of_rows_that_the_fit_has_not_seen_and_stands_in_the_report() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(700, 3))
    y = x[:, 0] + rng.normal(size=700)
    law = Normal(x[:, 0], np.full(700, 0.5))
    rows = Rows({}, y, law)
    chosen, half = rows_to_try(rows)
    tried = preview(EXACT, rows[chosen], x[chosen], half)
    assert tried.rows + tried.fitted_on == 700
    table = {row.name: row for row in tried.table}
    assert list(table) == ["NLL", "CRPS", "CCE", "MAE", "calibration p"]
    assert tried.judgement == "no fault is found after it; NLL, CRPS and CCE fall (better)"
    held_out = chosen[~half]
    expected = 0.5 * np.log(2 * np.pi * 0.25) + (y[held_out] - x[held_out, 0]) ** 2 / 0.5
    assert table["NLL"].now == pytest.approx(expected.mean())
    assert table["NLL"].then < table["NLL"].now - 0.5
    assert table["CCE"].then < 0.5 * table["CCE"].now
    assert table["calibration p"].now < 0.001
    assert tried.said.startswith("spreads multiplied by")
    draws = [Samples(law.loc[:, None] + 0.5 * rng.normal(size=(700, count))) for count in (10, 200)]
    few, many = (preview(EXACT, Rows({}, y, each)[chosen], x[chosen], half) for each in draws)
    assert few.judgement.endswith("CRPS and CCE fall (better)")
    assert many.judgement.endswith("CRPS and CCE fall (better)")
    page = render("what_to_do.html", preview=tried, model=angle("3"))
    assert "recalibrate FILE --version models:/angle/3" in page
    assert page.count("<tr>") == 6
    assert "NLL, CRPS and CCE fall (better)" in page


def test_what_gets_worse_is_said_too() -> None:
    rows = [PreviewRow("CCE", 0.0187, 0.0103, 0.001), PreviewRow("MAE", 0.101, 0.104, 0.001), PreviewRow("p", 0.1, 0.2)]
    assert judgement(rows) == "CCE falls (better), MAE rises (worse)"
    assert judgement([PreviewRow("NLL", 0.2182, 0.2185, 0.001)]) == "nothing changes beyond chance"
    few = (PreviewRow("CRPS", 0.599, 0.587, 0.0064), PreviewRow("calibration p", 0.001, 0.758))
    said = CorrectionPreview("spreads multiplied by 1.49", 298, 302, few).judgement
    assert said == "no fault is found after it; the change of the scores is within chance"


def test_a_preview_is_made_only_where_a_fault_was_found_and_can_be_mended() -> None:
    law = Normal([0.0, 1.0], [1.0, 1.0])
    rows = Rows({}, np.array([0.0, 1.0]), law)
    found, none = {"calibration_p_value": MetricValue(0.02)}, {"calibration_p_value": MetricValue(0.06)}
    asked = ("cce", "calibration", "recalibration")
    assert is_wanted(asked, found, rows)
    assert not is_wanted(asked, none, rows)
    assert not is_wanted(asked, {}, rows)
    assert not is_wanted(asked[:2], found, rows)
    assert not is_wanted(asked, found, Rows({}, np.zeros((2, 2)), law))
    assert preview(EXACT, rows, np.eye(2), np.array([True, False])) is None
    alike = Rows({}, np.zeros(200), Samples(np.zeros((200, 1))))
    assert preview(EXACT, alike, np.eye(200), np.arange(200) < 99) is None
