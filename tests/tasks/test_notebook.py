"""Arrays and frames in one call: the pipeline's numbers, what may be given, what is refused, and what is shown."""

import html
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from databases import mlflow_at, mlflow_database
from scipy import stats

import congruence
from congruence.kernels import Mixture, MultivariateNormal, Normal, Poisson, Quantiles, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.evaluate.evaluation import evaluate as evaluate_plan
from congruence.tasks.evaluate.executors import LocalExecutor, Observer
from congruence.tasks.evaluate.plan import Plan
from congruence.tasks.mlflow.identity import run_metrics
from congruence.tasks.mlflow.reading import read_scores
from congruence.tasks.notebook.table import Given, rows_of
from congruence.tasks.report.evaluation import totals_of
from congruence.tasks.report.page import page_data
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import TrackingSettings

ROWS = 240
FEW = {"metrics": ["nll", "crps", "mae"]}
"""Metrics that take no time, where the numbers are not what is tested."""
TOLD = {"metrics": ["calibration"], "progress": False}
"""What sentences need."""


def table(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 3)), columns=["a", "b", "c"])
    frame["place"] = rng.choice(["town", "country"], rows)
    frame["patient"] = np.arange(rows) // 4
    frame["weight"] = rng.uniform(0.5, 2.0, rows)
    frame["y"] = frame["a"] + np.exp(0.3 * frame["b"]) * rng.normal(size=rows)
    return frame


def narrow(frame: pd.DataFrame) -> Normal:
    return Normal(frame["a"].to_numpy(float), np.full(len(frame), 0.6))


@pytest.fixture
def tracking(tmp_path: Path) -> TrackingSettings:
    return TrackingSettings(uri=mlflow_database(tmp_path), artifact_location=str(tmp_path / "artifacts"))


def test_the_numbers_are_those_of_the_pipeline(tmp_path: Path, tracking: TrackingSettings) -> None:
    """The same rows by an evaluation file and by the call: every metric, every score of every row, every sentence.

    Without groups and weights the test of the flow has the call beside it.
    """
    frame, design = table(), {"groups": "patient", "weights": "weight"}
    frame.loc[7, "b"] = np.nan
    frame.to_parquet(tmp_path / "rows.parquet")

    def model(asked: pd.DataFrame) -> Normal:
        return Normal(asked["a"].to_numpy(float), np.full(len(asked), 0.6))

    with mlflow_at(tracking.uri):
        mlflow.create_experiment("models", artifact_location=(tmp_path / "models").as_uri())
        mlflow.set_experiment("models")
        log_predictive_model(model, name="m", input_example=frame[["a", "b"]].head(), registered_model_name="narrow")
    split = {
        "uri": str(tmp_path / "rows.parquet"), "input": ["a", "b", "c"], "input_kind": "features", "target": "y",
        "slices": ["place"], "groups": design["groups"], "weight": design["weights"],
    }  # fmt: skip
    content = {"models": ["models:/narrow/1"], "splits": [split], "encoder": {"kind": "identity"}}
    there = {"home": tmp_path / "home", "tracking": tracking.model_copy(update={"report": False})}
    settings = EvaluationSettings.model_validate(content | there)
    (outcome,) = evaluate_plan(Plan(settings), LocalExecutor, Observer())
    found = congruence.evaluate(
        frame, "y", narrow(frame), inputs=["a", "b", "c"], slices=["place"], **design, progress=False
    )
    assert outcome.error is None
    assert set(found.metrics) == set(outcome.metrics)
    for name, metric in outcome.metrics.items():
        for bound in ("value", "low", "high"):
            there, here = getattr(metric, bound), getattr(found.metrics[name], bound)
            assert (there is None) == (here is None), name
            assert there is None or here == pytest.approx(there, rel=1e-6, abs=1e-9), name
    assert found.sentences == outcome.wrong
    logged, own = read_scores(outcome.run_id, settings.tracking), found.to_frame()
    assert list(logged["key"].astype(str)) == list(own["key"])
    assert not own["valid"][7]
    for name in ("cce", "pit", "nll", "calibration_spread"):
        np.testing.assert_allclose(own[name].to_numpy(float), logged[name].to_numpy(float), rtol=1e-4, atol=1e-6)


def test_an_input_that_is_no_number_is_told_by_its_row() -> None:
    """A text among a million numbers took its column's say in what is near in silence."""
    frame = table(60)
    rows = rows_of(
        Given(frame[["a", "b", "c"]].assign(a=with_a_text(frame)["mean"], b=frame["b"].astype(str)), frame["y"])
    )
    assert rows.notes == (
        "'a' holds numbers, but row 17 is 'n/a' (1 of 60 are none); 'b' holds numbers written as text: convert the "
        "column, which says nothing of which rows are near as it is.",
    )


def test_numbers_among_objects_say_what_is_near_and_lists_are_said_not_to() -> None:
    """Floats of dtype object were called text, and a column of lists ended in pandas' own error."""
    frame = table(60)
    lists, exact = [[1.0, 2.0]] * 60, frame["c"].map(lambda value: Decimal(f"{value:.3f}"))
    rows = rows_of(Given(frame[["a"]].astype(object).assign(b=lists, c=exact), frame["y"]))
    assert rows.embeddings().shape == (60, 1)
    assert rows.notes[0].startswith("'b' holds values of the type list; 'c' holds numbers written as Decimal: convert ")


def test_few_rows_are_said_to_be_too_few_for_a_reason() -> None:
    frame = table()[:12]
    x, y = frame[["a", "b"]], frame["y"]
    far = congruence.evaluate(x, y, (frame["a"] + 30.0, 1.0))
    assert far.verdict == "wrong"
    assert far.sentences == ("12 rows show that the predictions are wrong, and not how or where; bring 30 or more.",)
    assert far.sentences[0] in far.page
    right = congruence.evaluate(x, y, (y + 0.5 * (-1.0) ** np.arange(12), 1.0))
    assert right.verdict == "no fault found"
    assert right.sentences[0].startswith("No fault found in 12 rows: ")


def test_a_protocol_that_is_misspelled_is_told_by_its_key() -> None:
    frame = table()
    protocol = {"base": "exact", "regularisation": 0.1}
    said = r"protocol: regularisation: there is no such key; did you mean 'regularization'\?"
    with pytest.raises(SettingsError, match=said):
        congruence.evaluate(frame[["a", "b"]], frame["y"], narrow(frame), protocol=protocol)


def test_targets_of_counts_that_are_no_whole_numbers_are_told_first() -> None:
    frame = table()
    rates = np.abs(frame["y"].to_numpy()) + 0.001
    found = congruence.evaluate(frame[["a", "b"]], rates, Poisson(np.exp(frame["a"].to_numpy())), **TOLD)
    assert found.sentences[0] == (
        f"100 % of the targets are no whole numbers, such as {rates[0]:.6g} (row 0), and the predictions are of "
        "counts: is the target a rate?"
    )


def test_weights_are_said_to_be_of_scores_alone() -> None:
    frame = table()
    asked = {"X": frame[["a", "b", "c"]], "y": frame["y"], "predicted": narrow(frame), **TOLD}
    found, plain = congruence.evaluate(**asked, weights=frame["weight"]), congruence.evaluate(**asked)
    assert found.sentences == plain.sentences
    said = "Scores are weighted; tests, sentences and their shares of the rows count every row once."
    assert said in repr(found).splitlines()
    assert said in found.page
    assert "weighted" not in repr(plain)


def test_sentences_name_sizes_in_the_unit_of_the_targets() -> None:
    frame = table()
    moved = (frame["a"].to_numpy() + 1.0, np.exp(0.3 * frame["b"].to_numpy()))
    found = congruence.evaluate(frame[["a", "b", "c"]], frame["y"], moved, unit="mm", **TOLD)
    assert re.match(r"Predictions are [\d.]+ mm too high on average \([\d.]+ to [\d.]+\)\.", found.sentences[0])
    assert found.sentences[0] in found.page
    small = tuple(1e-9 * each for each in moved)
    found = congruence.evaluate(frame[["a", "b", "c"]], 1e-9 * frame["y"], small, unit="m", **TOLD)
    assert re.match(r"Predictions are [\d.]+e-10 m too high on average", found.sentences[0])


def test_one_prediction_answers_with_verdict_sentences_and_report(tmp_path: Path) -> None:
    frame = table()
    found = congruence.report(frame[["a", "b", "c", "place"]], frame["y"], narrow(frame), slices=["place"], unit="mm")
    assert found.verdict == "wrong"
    assert found.p_value < 0.05
    said = repr(found)
    assert said.startswith("model on test (240 rows): wrong")
    assert found.sentences[0] in said
    assert "inputs of unit norm" in said
    assert "lambda 0.1" in said
    assert "Each value of 'place' is a column of 0 and 1." in said
    assert re.search(r"CRPS \S+ \[\S+ \S+\] mm, MAE \S+ \[\S+ \S+\] mm, NLL \S+ \[\S+ \S+\]\.", said)
    assert "mm" in found.page
    assert "unit of the target" not in found.page
    shown = found._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert found.page in html.unescape(shown)
    saved = found.save(tmp_path / "report.html")
    assert saved.read_text() == found.page
    assert len(found.page) < 1_000_000
    assert not re.search(r"(src|href)=\"https?:", found.page)


def test_a_true_prediction_is_not_called_wrong() -> None:
    frame = table()
    truth = Normal(frame["a"], np.exp(0.3 * frame["b"]))
    found = congruence.evaluate(frame[["a", "b", "c"]], frame["y"], {"truth": truth, "narrow": narrow(frame)}, **TOLD)
    assert found["truth"].verdict == "no fault found"
    assert list(found.to_frame()["verdict"]) == ["no fault found", "wrong"]
    assert "truth on test" in repr(found)
    assert "cce_mean" in found._repr_html_()


def test_predictions_are_compared_with_intervals() -> None:
    frame = table()
    two = {"truth": Normal(frame["a"], np.exp(0.3 * frame["b"])), "narrow": narrow(frame)}
    found = congruence.compare(frame[["a", "b", "c"]], frame["y"], two, baseline="narrow")
    assert found.baseline == "narrow"
    assert found.sentences[0].startswith("truth wins")
    differences = found.to_frame().set_index(["prediction", "metric"])
    assert differences.loc[("truth", "nll_mean"), "high"] < 0.0
    assert "narrow: wrong" in repr(found)
    assert f"\n  {found.evaluated['narrow'].sentences[0]}\n" in repr(found)
    assert "<iframe" in found._repr_html_()
    assert congruence.report(frame[["a", "b", "c"]], frame["y"], two, **FEW).baseline in two


def _fitted(frame: pd.DataFrame) -> Any:
    from sklearn.linear_model import BayesianRidge

    return BayesianRidge().fit(frame[["a", "b"]], frame["y"])


def test_beside_the_same_crps_stands_what_is_worse() -> None:
    """A spread that is a sixth too small cost NLL: "the same CRPS within chance" was all that was said."""
    rng = np.random.default_rng(5)
    x = pd.DataFrame({"a": rng.normal(size=700), "b": rng.uniform(size=700)})
    mean, spread = x["a"].to_numpy(), np.exp(x["b"].to_numpy() - 1.0)
    y = mean + 1.2 * spread * rng.normal(size=700)
    given = {"narrow": (mean, spread), "right": (mean, 1.2 * spread), "off": (mean + 0.1, 1.2 * spread)}
    found = congruence.compare(x, y, given, metrics=["nll", "crps", "recalibration"], baseline="right")
    said = next(each for each in found.sentences if each.startswith("narrow"))
    assert said.startswith("narrow and right have the same CRPS within chance")
    assert ". narrow is worse than right on NLL by 0.0408 (0.019" in said
    assert found.to_frame().index.is_unique


LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]
GIVEN = {
    "ours": (narrow, {}),
    "mean and std": (lambda frame: (frame["a"], 0.6), {}),
    "quantiles": (lambda frame: narrow(frame).quantile(np.array(LEVELS)[None, :]), {"levels": LEVELS}),
    "quantiles by name": (lambda frame: pd.DataFrame(
        {f"q{level}": narrow(frame).quantile(level) for level in LEVELS}), {}),
    "draws": (lambda frame: frame[["a"]].to_numpy() + 0.6 * np.random.default_rng(1).normal(size=(len(frame), 50)), {}),
    "scipy": (lambda frame: stats.norm(frame["a"], 0.6), {}),
    "arrow": (lambda frame: pa.table({"mean": frame["a"], "std": np.full(len(frame), 0.6)}), {}),
    "scikit-learn": (_fitted, {}),
}  # fmt: skip


@pytest.mark.parametrize("kind", GIVEN)
def test_whatever_libraries_answer_is_read(kind: str) -> None:
    frame = table(120)
    make, settings = GIVEN[kind]
    found = congruence.evaluate(frame[["a", "b"]], frame["y"], make(frame), **settings, **FEW)
    law = found.evaluation.predictive
    expected = Quantiles if "quantiles" in kind else Samples if kind == "draws" else Normal
    assert type(law) is expected
    if expected is Normal and kind != "scikit-learn":
        np.testing.assert_allclose(law.std(), 0.6)
    assert found.evaluation.stated == kind.split()[0] if expected is not Normal else "all"
    assert found.name == ("BayesianRidge" if kind == "scikit-learn" else "model")


def test_of_right_quantiles_nothing_but_chance_is_shown() -> None:
    """Their means are ours: of skewed targets the page called the sum of right quantiles' means 2 % too high."""
    frame, levels = table(600), np.array([0.05, 0.5, 0.95])
    location, spread = 30.0 + 5.0 * frame["a"].to_numpy(), np.exp(0.3 * frame["b"].to_numpy())
    y = location + spread * np.random.default_rng(1).exponential(size=600)
    stated = location[:, None] + spread[:, None] * stats.expon.ppf(levels)
    asked = {"metrics": ["cce", "crps", "mae", "pit", "sharpness"]}
    found = congruence.evaluate(frame[["a", "b"]], y, stated, levels=levels.tolist(), **asked).evaluation
    assert totals_of(found) is None
    for feature in page_data(found)["along"]:
        assert {"bias", "ratio"}.isdisjoint(feature)
        value, _, _, null_low, null_high = np.array(feature["level"])
        assert np.mean((null_low <= value) & (value <= null_high)) >= 0.6
    expected = found.metrics["cce_expected"]
    assert expected.low < found.metrics["cce_mean"].value < expected.high
    full = congruence.evaluate(frame[["a", "b"]], y, stats.expon(location, spread), **asked).evaluation
    assert totals_of(full) is not None
    assert found.metrics["crps_mean"].value == pytest.approx(full.metrics["crps_mean"].value, rel=0.03)


def test_impossible_targets_are_counted_and_no_variance_hinders_nothing() -> None:
    """Their infinite NLL went unsaid; a Student t of two degrees of freedom ended the evaluation."""
    frame = table(200)
    y = frame["a"] + np.random.default_rng(1).normal(size=200)
    x, negative = frame[["a", "b"]], int((y < 0.0).sum())
    said = str(congruence.evaluate(x, y, stats.gamma(2.0, scale=np.exp(0.1 * frame["a"])), metrics=["nll"]))
    assert f"NLL infinite: {negative} of the targets given no probability." in said
    found = congruence.evaluate(x, y, stats.t(2.0, frame["a"], 1.0), metrics=["crps", "skce"], progress=False)
    assert 0.0 <= found.metrics["skce_p_value"].value <= 1.0
    empty = np.where(np.arange(200) % 2, "", "a")
    shifted = congruence.evaluate(x, y + 2.0 * (empty == ""), (frame["a"], 1.0), slices={"seg": empty}, **TOLD)
    assert "where seg is (empty)" in str(shifted)


def test_a_mixture_and_a_matrix_of_inputs_are_taken() -> None:
    frame = table(120)
    law = Mixture(np.full((120, 2), 0.5), [narrow(frame), Normal(frame["a"], np.full(120, 2.0))])
    found = congruence.evaluate(frame[["a", "b"]].to_numpy(), frame["y"].to_list(), law, **FEW)
    assert found.evaluation.split.target == "y"
    assert list(found.evaluation.features) == ["x0", "x1"]


def test_vectors_of_targets_are_judged_together_and_one_by_one() -> None:
    """Their means and spreads are no columns of the table of scores, and stopped every evaluation of them."""
    frame, draw = table(120), np.random.default_rng(2)
    mean = frame[["a", "b"]].to_numpy()
    y = mean + draw.normal(size=(120, 2)) * [1.0, 2.0]
    law = MultivariateNormal(mean, np.ones((120, 2)))
    found = congruence.evaluate(frame[["a", "b"]], y, law, metrics=["calibration"])
    assert found.sentences[0].startswith("For y 2 the predicted spread is too small by a factor of")
    assert {"y 1", "y 2", "cce", "nll"} <= set(found.to_frame()) - {"mean", "std"}
    assert "For y 2" in found.page


def test_vectors_are_named_and_predicted_as_single_targets_are() -> None:
    frame = table(60)
    pair = (frame[["a", "c"]].to_numpy(), frame["weight"])
    found = congruence.evaluate(frame[["a", "b", "c", "y"]], ["b", "y"], pair, metrics=["nll"]).evaluation
    expected = stats.norm.logpdf(frame[["b", "y"]], pair[0], frame[["weight"]]).sum(axis=1)
    np.testing.assert_allclose(found.scores["nll"], -expected)
    assert not rows_of(Given(frame[["a"]], frame[["b", "y"]])).notes
    (note,) = rows_of(Given(frame[["a"]], frame[["b", "y"]] * [1.0, 1e3])).notes
    assert note.startswith(
        "CCE, CRPS, MAE and RMSE of several targets are distances in their units, which 'y' decides: "
    )
    assert list(found.features) == ["a", "c"]


def test_long_numbers_of_groups_are_told_apart() -> None:
    """As floats, ids of 19 digits were one group, and nothing could be tested."""
    frame = table(120)
    rows = rows_of(Given(frame[["a"]], frame["y"], groups=10**18 + frame["patient"], inputs="a"))
    assert len(np.unique(rows.design().groups)) == 30


def test_what_holds_rows_is_read_whatever_holds_them() -> None:
    """Tensors that require grad ended with torch's own error, a mapping of tensors was called a point forecast."""
    frame = table(120)
    expected = congruence.evaluate(frame[["a", "b"]], frame["y"], (frame["a"], frame["weight"]), **FEW)
    tensor = {name: torch.tensor(frame[name], requires_grad=True) for name in ("a", "b", "y", "weight")}
    stated = {"mean": tensor["a"], "std": tensor["weight"]}
    for X in (torch.stack([tensor["a"], tensor["b"]], dim=1), {"a": frame["a"], "b": frame["b"]},
              frame[["a", "b"]].to_dict("records")):  # fmt: skip
        found = congruence.evaluate(X, tensor["y"], stated, target_name=3, slices=frame["place"].to_numpy(), **FEW)
        assert found.metrics["crps_mean"].value == expected.metrics["crps_mean"].value
    assert rows_of(Given(frame, "y", inputs=frame.columns[:2])).split.settings.input_columns == ["a", "b"]


class Net(torch.nn.Module):
    """Of a and b to a standard normal law around a."""

    def forward(self, x: torch.Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(x[:, 0], torch.ones(len(x)))


def test_a_torch_module_is_a_model_and_a_law_of_ngboost_a_prediction() -> None:
    """The module was refused; a law that has every attribute, as None, ended with a TypeError."""
    from ngboost.distns import LogNormal

    frame = table(120)
    module, plain = (
        congruence.evaluate(frame[["a", "b"]], frame["y"], each, **FEW) for each in (Net(), (frame["a"], 1.0))
    )
    assert module.metrics["crps_mean"].value == pytest.approx(plain.metrics["crps_mean"].value, rel=1e-6)
    law, y = LogNormal(np.stack([frame["a"], np.full(120, -0.5)])), np.exp(frame["y"])
    found = congruence.evaluate(frame[["a", "b"]], y, {"one": law}, **FEW)["one"]
    stated = stats.lognorm(s=np.exp(-0.5), scale=np.exp(frame["a"]))
    assert found.metrics["nll_mean"].value == pytest.approx(-stated.logpdf(y).mean(), rel=1e-6)


def test_masked_targets_are_missing_ones() -> None:
    frame = table(120)
    y = np.ma.masked_array(frame["y"], mask=frame.index == 7)
    assert rows_of(Given(frame[["a"]], y)).left_out == {7: "target 'y' is nan"}


def test_a_model_is_asked_with_its_columns_and_its_own_error_is_told_with_a_remedy() -> None:
    frame = table(120)
    model = _fitted(frame)
    more, own = (congruence.evaluate(frame[names], frame["y"], model, **FEW) for names in (["c", "a", "b"], ["a", "b"]))
    assert more.metrics["crps_mean"].value == own.metrics["crps_mean"].value
    with pytest.raises(
        InvalidInputError, match=r"predicted: BayesianRidge: .* ValueError: The feature .*; give X the "
    ):
        congruence.evaluate(frame[["a", "c"]], frame["y"], model)


def test_of_scores_those_are_shown_that_say_something() -> None:
    """An NLL of 1,250 (-76 to 7,911), of quantiles that crossed, and scores in powers of ten."""
    frame = table(120)
    stated = 1e5 * narrow(frame).quantile(np.array(LEVELS)[None, :])
    few = congruence.evaluate(frame[["a"]], 1e5 * frame["y"], stated, levels=LEVELS, **FEW)
    assert re.search(r"^CRPS \d\d,\d{3} \[\d\d,\d{3}, \d\d,\d{3}\], MAE [^N]*\.$", repr(few), re.MULTILINE)
    weights = np.where(frame.index < 9, 1000.0, 1.0)
    heavy = congruence.evaluate(frame[["a"]], frame["y"], narrow(frame), weights=weights, **FEW)
    assert "without intervals: 9 effective rows of 120, and intervals need 20." in repr(heavy)


def test_missing_values_are_left_out_or_stay_and_a_model_is_asked_for_the_rows_that_are_left() -> None:
    frame = table(120)
    frame.loc[[3, 50], "b"] = np.nan
    refused = r"2 of 120 rows cannot be used, more than 1 %: row 3: feature 'b' is missing.*missing='mean'"
    with pytest.raises(InvalidInputError, match=refused):
        rows_of(Given(frame[["a", "b"]], frame["y"]))
    rows = rows_of(Given(frame[["a", "b"]], frame["y"], missing="indicator"))
    assert rows.embeddings().shape == (120, 4)
    frame.loc[50, "b"] = 0.0
    found = congruence.evaluate(frame[["a", "b"]], frame["y"], _fitted(table(120)), **FEW)
    assert (found.evaluation.split.rows, found.evaluation.split.valid_rows) == (120, 119)
    assert len(found.evaluation.predictive) == 119
    assert "1 of 120 rows is left out: row 3: feature 'b' is missing" in repr(found)


def with_a_text(frame: pd.DataFrame) -> pd.DataFrame:
    """Means and spreads, of which one is no number."""
    return pd.DataFrame({"mean": frame["a"].astype(object).where(frame.index != 17, "n/a"), "std": 1.0})


def three(frame: pd.DataFrame) -> np.ndarray:
    """Quantiles of three levels, or three draws."""
    return frame["a"].to_numpy()[:, None] + np.array([-1.6, 0.0, 1.6])


DAYS = pd.date_range("2024-01-01", periods=ROWS + 5)
TURNED = "its index holds the rows of X in another order"
SHARES = re.escape("must be two or more levels inside (0, 1); of percentages give the shares [0.05, 0.5, 0.95]")
REFUSED = [
    ({"y": lambda f: f["y"].head(9)}, "y: has 9 rows, but X has 240"),
    ({"y": lambda f: f["y"].sample(frac=1, random_state=0)}, "y: its index holds the rows of X in another order"),
    ({"y": lambda f: narrow(f)}, r"y: holds predictive distributions.*\(X, y, predicted\)"),
    ({"y": lambda f: f["y"].astype(object).where(f.index != 5, "n/a")}, "y: column 'y': row 5 is 'n/a'"),
    ({"y": lambda f: "price"}, "y: X has no column 'price'; it has 'a', 'b', 'c'"),
    ({"y": lambda f: np.ones(ROWS)}, "y: 'y' is 1 in every row"),
    ({"y": lambda f: pd.to_timedelta(f["y"], unit="h")}, "y: column 'y': row 0 is Timedelta.*, expected a number"),
    ({"X": lambda f: f[["a"]].set_index(DAYS[5:]), "y": lambda f: f[["y"]].set_index(DAYS[:-5])["y"]},
     r"y: its index holds other rows than that of X \(row 0 is '2024-01-01.*', in X '2024-01-06"),
    ({"X": lambda f: f[["a", "y"]]}, "X: column 'y' holds the targets themselves; drop it, or give y='y'"),
    ({"X": lambda f: pd.concat([f[["a"]]] * 2, axis=1)}, "X: two columns are called 'a'"),
    ({"X": lambda f: f[["a"]].assign(none=np.nan), "missing": lambda f: "mean"}, "X: column 'none' has no value"),
    ({"groups": lambda f: "nobody"}, "groups: X has no column 'nobody'"),
    ({"weights": lambda f: np.where(f.index == 4, -1.0, 1.0)}, "weights: row 4 is -1"),
    ({"time": lambda f: pd.Series(["2024-01-01"] * 239 + ["soon"])}, "time: row 239 is 'soon'"),
    ({"time": lambda f: pd.Series(["soon"] * 240)}, "time: row 0 is 'soon'"),
    ({"slices": lambda f: ["cce"]}, "slices: 'cce' is the name of a column of scores"),
    ({"missing": lambda f: "drop"}, "missing: is 'drop'"),
    ({"protocol": lambda f: "best"}, "protocol: 'best' is none; choose from exact"),
    ({"protocol": lambda f: "ecai"}, "protocol: 'ecai' estimates on a validation split"),
    ({"metrics": lambda f: ["rmsle"]}, "metrics: 'rmsle' is no metric"),
    ({"predicted": lambda f: narrow(f.head(9))}, "predicted: model: 9 distributions for the 240 rows of X"),
    ({"predicted": lambda f: f["a"].to_numpy()}, "one number a row is a point forecast"),
    ({"predicted": lambda f: np.zeros((50, ROWS))}, "its second axis has 240: give predicted.T"),
    ({"predicted": lambda f: np.sort(np.random.default_rng(0).normal(size=(ROWS, 9)))}, r"rows increase: give levels"),
    ({"predicted": lambda f: (f["a"], -np.ones(ROWS))}, "predicted: model: .*scale"),
    ({"predicted": lambda f: {"one": "normal"}}, "predicted: one: it is a str.*; give a distribution of"),
    ({"predicted": lambda f: "ridge"}, r"model: it is a str; give a distribution"),
    ({"predicted": lambda f: {}}, "predicted: names nothing"),
    ({"predicted": lambda f: (f["a"][::-1], np.ones(ROWS))}, f"predicted: model: {TURNED}"),
    ({"predicted": lambda f: pd.DataFrame({"mean": f["a"][::-1], "std": 1.0})}, f"predicted: model: {TURNED}"),
    ({"predicted": lambda f: {"mean": f["a"][::-1], "std": f["weight"]}}, f"predicted: model: {TURNED}"),
    ({"metrics": lambda f: "rmsle"}, "metrics: 'rmsle' is no metric"),
    ({"predicted": lambda f: stats.norm(f["a"][:9], 1.0)}, rf"shape \(9,\), expected one value for .* {ROWS} rows"),
    ({"predicted": with_a_text}, "predicted: model: column 'mean', row 17 is 'n/a', expected a number"),
    ({"predicted": lambda f: tuple(with_a_text(f)[name] for name in ("mean", "std"))},
     r"\(mean, std\): mean: column 'mean', row 17 is 'n/a'"),
    ({"predicted": three, "levels": lambda f: [5, 50, 95]}, SHARES),
    ({"predicted": lambda f: dict(zip((5, 50, 95), three(f).T, strict=True))},
     r"5 is no name; .*; of quantiles the levels are shares: \{0.05:"),
    ({"predicted": lambda f: {0.1: Net(), 0.9: Net()}}, r"0.1 is no name; .*give what the models predict: \{0.1: "),
    ({"predicted": lambda f: pd.DataFrame(three(f), columns=["ridge", "forest", "boosting"])},
     r"give levels=.* are quantiles, predicted.to_numpy\(\) where they are draws; or a distribution"),
    ({"predicted": lambda f: f[["a", "weight"]].to_numpy()}, r"\(240, 2\): give \(array\[:, 0\], .*mean and std"),
    ({"predicted": lambda f: np.full((ROWS, 3), "n/a")}, "predicted: model: row 0 is 'n/a', expected a number"),
    ({"slices": lambda f: {"place": f["place"][::-1]}}, f"slices: 'place': {TURNED}"),
    ({"slices": lambda f: {"level": f["y"]}}, "slices: 'level' is the target; name another"),
    ({"X": lambda f: f[["a", "b"]].assign(a=1.0, b=2)}, "X: 'a', 'b': each has one value in all rows"),
    ({"y": lambda f: f["y"].to_numpy() + 1j}, "y: column 'y': row 0 is .*j., expected a number"),
    ({"X": lambda f: f.iterrows()}, "X: is a generator, expected a frame or a matrix"),
    ({"inputs": lambda f: []}, "inputs: names no column of X"),
    ({"predicted": lambda f: Normal}, "predicted: Normal is a class; give a fitted model"),
    ({"y": lambda f: (f["a"], 1.0), "predicted": lambda f: f["y"]},
     r"y: a tuple of parts .* the order is \(X, y, predicted\)"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_cannot_be_evaluated_is_named(changes: dict[str, Any], message: str) -> None:
    frame = table()
    given = {"X": lambda f: f[["a", "b", "c"]], "y": lambda f: f["y"], "predicted": narrow} | changes
    with pytest.raises(InvalidInputError, match=message):
        congruence.evaluate(**{name: make(frame) for name, make in given.items()})


def test_one_prediction_is_no_comparison() -> None:
    frame = table(60)
    with pytest.raises(InvalidInputError, match="give at least two by name"):
        congruence.compare(frame[["a"]], frame["y"], narrow(frame), **FEW)
    with pytest.raises(InvalidInputError, match="give two by name"):
        congruence.compare(frame[["a"]], frame["y"], {"mean": frame["a"], "std": frame["weight"]}, **FEW)
    with pytest.raises(InvalidInputError, match="baseline: 'c' is not among"):
        congruence.compare(frame[["a"]], frame["y"], {"a": narrow(frame), "b": (0.0, 1.0)}, baseline="c", **FEW)


def test_an_answer_is_logged_as_the_pipeline_logs_a_version(tracking: TrackingSettings) -> None:
    frame = table(120)
    found = congruence.compare(frame[["a", "b"]], frame["y"], {"narrow": narrow(frame), "wide": (frame["a"], 2.0)})
    run_id = found.log(tracking)
    assert found.log(tracking) == run_id
    own = found.evaluated["narrow"].log(tracking)
    client = mlflow.MlflowClient(tracking.uri)
    logged = run_metrics(client.get_run(own))["cce_mean"].value
    assert logged == pytest.approx(found.evaluated["narrow"].metrics["cce_mean"].value, rel=1e-3)
    assert {file.path for file in client.list_artifacts(own)} >= {"report.html", "scores.parquet"}
    assert len(read_scores(own, tracking)) == 120


def test_models_are_chosen_by_a_score_of_their_distributions() -> None:
    from sklearn.linear_model import BayesianRidge, LinearRegression
    from sklearn.model_selection import GridSearchCV

    frame = table()
    grid = {"alpha_1": [1e-6, 1e6]}  # the second makes its predictions far too narrow
    chosen = GridSearchCV(BayesianRidge(), grid, scoring=congruence.scorer("nll"), cv=3).fit(frame[["a"]], frame["y"])
    assert chosen.best_params_ == {"alpha_1": 1e-6}
    law = narrow(frame)
    assert congruence.scorer().of(frame["y"], law) == pytest.approx(np.mean(law.crps(frame["y"].to_numpy())))
    weights = np.arange(ROWS) < 10
    assert congruence.scorer("mae").of(frame["y"], law, weights) == pytest.approx(
        np.abs(frame["y"] - frame["a"])[:10].mean()
    )
    with pytest.raises(InvalidInputError, match="score: 'rmsle' is none; choose from crps, nll, mae, mse"):
        congruence.scorer("rmsle")
    point = LinearRegression().fit(frame[["a"]], frame["y"])
    with pytest.raises(InvalidInputError, match=r"LinearRegression: .*give method="):
        congruence.scorer()(point, frame[["a"]], frame["y"])
