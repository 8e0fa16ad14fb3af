"""`congruence init`: a file that the other commands read, from a data set and what a model says of itself."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from congruence.flows.operations.columns import ModelFacts, columns_roles
from congruence.flows.operations.init import evaluation_text, write_evaluation
from congruence.kernels.distributions import Normal
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.contract.reading import read_distribution
from congruence.tasks.data.split import open_split
from congruence.tasks.evaluate.stored import opened
from congruence.tasks.runtime.errors import ContractError, SettingsError, SplitError
from congruence.tasks.settings.evaluation import EvaluationSettings, load_settings

ROWS = 64


def frame(**columns: object) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    base = {
        "id": np.arange(ROWS),
        "rooms": rng.integers(1, 6, ROWS),
        "area": rng.normal(80.0, 10.0, ROWS),
        "city": rng.choice(["Bern", "Genf"], ROWS),
        "price": rng.normal(size=ROWS),
    }
    return pd.DataFrame(base | columns)


def written(folder: Path, data: pd.DataFrame, **options: object) -> Path:
    data.to_parquet(folder / "rows.parquet")
    return written_of(folder / "rows.parquet", **options)


def written_of(data: Path, **options: object) -> Path:
    output = data.parent / "evaluation.yaml"
    write_evaluation(str(data), output, **options)  # type: ignore[arg-type]
    return output


def test_the_file_is_read_as_it_was_meant(tmp_path: Path) -> None:
    reasons = np.where(np.arange(ROWS) % 2, "sold", "let")  # called as a column of scores: no slice
    output = written(tmp_path, frame(reason=reasons), target="price")
    (split,) = load_settings(output).splits
    assert (split.target, split.input, split.input_kind) == ("price", ["rooms", "area"], "features")
    assert (split.key, split.slices) == ("id", ["city"])
    assert open_split(split).rows == ROWS
    beside = written(tmp_path, frame(label=1.0, Actual=2.0), target="price", overwrite=True)
    assert load_settings(beside).splits[0].input == ["rooms", "area"]  # what is called as a target is none
    output = written(tmp_path, frame(reason=reasons), target="price", overwrite=True)
    assert "uri: rows.parquet" in output.read_text()
    assert output.read_text().count("#") > 10


def test_names_stand_as_they_are_and_unused_columns_are_named(tmp_path: Path) -> None:
    rest = {"Größe in m²": np.arange(ROWS), "age": ["unknown" if row % 9 == 0 else str(row) for row in range(ROWS)]}
    text = written(tmp_path, frame(**rest), target="price").read_text(encoding="utf-8")
    assert "input: [rooms, area, Größe in m²]    # what the encoder reads; without age" in text


TEXTS = [f"policy {row}" for row in range(40)]


@pytest.mark.parametrize(
    ("name", "values", "is_key"),
    [
        ("policy_id", pa.array(TEXTS), True),
        ("policy_id", pa.array(TEXTS, pa.large_string()), True),
        ("policy_id", pa.array(["a"] * 40), False),
        ("policy_id", pa.array(["a"] * 40, pa.large_string()), False),
        ("IDpol", np.arange(40), True),
        ("policyID", np.arange(40), True),
        ("rowId", np.arange(40), True),
        ("idle", np.arange(40), False),
    ],
)
def test_a_key_is_told_by_its_name_and_values(name: str, values: Any, is_key: bool) -> None:
    table = pa.table({name: values, "claims": np.arange(40) % 3, "power": np.arange(40) / 7.0})
    assert columns_roles(table, "claims").key == (name if is_key else None)


@pytest.mark.parametrize(
    ("columns", "kind", "chosen"),
    [
        ({"photo": [b"\x89PNG"] * ROWS}, "image", "photo"),
        ({"photo": [f"{row}.jpg" for row in range(ROWS)]}, "image", "photo"),
        ({"embedding": [[0.5, 1.0]] * ROWS}, "features", ["rooms", "area", "embedding"]),
    ],
)
def test_what_the_encoder_reads_follows_from_the_columns(
    tmp_path: Path, columns: dict[str, object], kind: str, chosen: object
) -> None:
    (split,) = load_settings(written(tmp_path, frame(**columns), target="price")).splits
    assert (split.input_kind, split.input) == (kind, chosen)


def test_the_model_says_what_it_is_given_and_so_what_is_left_to_predict() -> None:
    first = pa.Table.from_pandas(frame())
    roles = columns_roles(first, None, ModelFacts("models:/house/1", inputs=("rooms", "area", "city")))
    assert roles.target == "price"
    assert (roles.input, roles.model_inputs) == (["rooms", "area"], ["rooms", "area", "city"])
    told = evaluation_text("rows.parquet", roles, ModelFacts("models:/house/1", describes_itself=True))
    assert "own metadata say" in told
    assert "models: [models:/house/1]" in told


TEXT = {"price": ["12.5"] * 9 + ["1,250"] * (ROWS - 9)}


@pytest.mark.parametrize(
    ("columns", "target", "said"),
    [
        ({}, "prize", "--target: there is no column 'prize'"),
        ({}, None, r"--target: which column is to be predicted\? The numeric ones"),
        ({"y": 1.0, "target": 2.0}, None, "target and y are all called as one"),
        (TEXT, "price", "column 'price' holds text, for example '1,250'"),
        ({}, "city", "column 'city' holds text, for example '"),
        ({"label": "yes"}, None, "numeric ones are rooms, area, price; label holds text"),
    ],
)
def test_a_target_that_cannot_be_or_be_told_is_asked_for(
    tmp_path: Path, columns: dict[str, object], target: str | None, said: str
) -> None:
    with pytest.raises(SettingsError, match=said):
        written(tmp_path, frame(**columns), target=target)
    assert not (tmp_path / "evaluation.yaml").exists()


def test_nothing_is_overwritten_and_missing_data_are_named(tmp_path: Path) -> None:
    output = written(tmp_path, frame(), target="price")
    with pytest.raises(SettingsError, match="exists; give another name with --output, or --force"):
        written(tmp_path, frame(), target="price")
    assert written(tmp_path, frame(), target="rooms", overwrite=True) == output
    with pytest.raises(SplitError, match="no such file"):
        written_of(tmp_path / "nowhere.parquet", overwrite=True)


def test_slices_are_columns_that_the_model_reads_first_and_none_is_left_out_in_silence() -> None:
    """A column that no model reads was sliced by, and Region, of 22 values, left out without a word."""
    rows = np.arange(200)
    table = pa.table(
        {
            **{
                name: pa.array([f"{name}{value % groups}" for value in rows])
                for name, groups in (("agent", 4), ("Area", 6), ("Region", 22), ("VehGas", 2))
            },
            "power": rows / 7.0,
            "claims": rows % 3,
        }
    )
    facts = ModelFacts("models:/claims/1", ("Area", "Region", "VehGas", "power"))
    roles = columns_roles(table, "claims", facts)
    assert roles.slices == ["Area", "Region", "VehGas"]
    assert roles.more_slices == ["agent"]
    assert "could be, too: agent" in evaluation_text("rows.parquet", roles, facts)


def test_columns_of_the_design_are_proposed_by_name_and_type(tmp_path: Path) -> None:
    data = frame(
        patient_id=np.arange(ROWS) // 2,
        measured_at=pd.date_range("2024-01-01", periods=ROWS, freq="h"),
        sample_weight=np.ones(ROWS),
        Exposure=np.full(ROWS, 0.5),
        weight=np.ones(ROWS),
    )
    (split,) = load_settings(written(tmp_path, data, target="price")).splits
    assert split.design_columns == {
        "groups": "patient_id",
        "time": "measured_at",
        "weight": "sample_weight",
        "exposure": "Exposure",
    }
    assert split.input == ["rooms", "area", "Exposure", "weight"]  # somebody's weight may be an input
    asked = ModelFacts("models:/m/1", inputs=("rooms", "weight", "patient_id"))
    roles = columns_roles(pa.Table.from_pandas(data.drop(columns="sample_weight")), "price", asked)
    assert roles.design == {"exposure": "Exposure", "time": "measured_at"}
    assert "# groups: patient" in evaluation_text("rows.parquet", roles, asked)
    again = columns_roles(pa.Table.from_pandas(data), "price", ModelFacts("models:/m/1", inputs=("rooms",)))
    assert again.design["weight"] == "sample_weight"


def test_several_models_are_asked_for_a_row_each_and_written_as_entries(tmp_path: Path, home: Path) -> None:
    """A formula's columns are found by asking without each; what says itself what it is needs no word."""
    data = frame().rename(columns={"price": "y"})

    class Formula(mlflow.pyfunc.PythonModel):
        def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
            suburb = np.where(model_input["city"] == "Bern", 1.0, 2.0)
            return pd.DataFrame({"mean": model_input["area"] * suburb, "std": 1.0})

    class Guessed(mlflow.pyfunc.PythonModel):
        def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
            return pd.DataFrame({"this": model_input["area"], "that": 1.0})

    class Lacking(mlflow.pyfunc.PythonModel):
        def predict(self, context: Any, model_input: pd.DataFrame, params: Any = None) -> pd.DataFrame:
            return pd.DataFrame({"mean": model_input["floors"], "std": 1.0})

    given = ModelFacts("m", outputs=("lower", "upper"))
    shown = evaluation_text("rows.csv", columns_roles(pa.Table.from_pandas(data), "y"), given, given)
    assert "- m    # say how it is read, by predictions; it gives lower, upper; `congruence validate` names" in shown
    for name, model in (("formula", Formula()), ("guessed", Guessed()), ("lacking", Lacking())):
        mlflow.pyfunc.log_model(name=name, python_model=model, registered_model_name=name, pip_requirements=["numpy"])
    log_predictive_model(lambda rows: Normal(rows["area"], 1.0), name="own", input_example=data[["area"]].head(),
                         registered_model_name="own")  # fmt: skip
    text = written(tmp_path, data, model=["formula", "own", "guessed", "lacking"]).read_text()
    found = load_settings(tmp_path / "evaluation.yaml")
    assert found.models == ["formula", "own", "guessed", "lacking"]
    assert found.splits[0].model_input_columns == ["area", "city"], "what the formula fails without"
    assert found.entry_of("formula").model_inputs is None
    assert "- own    # its own metadata say how it is read" in text
    assert "# its answer is read as normal" in text
    assert found.entry_of("guessed").predictions is not None
    assert "- {uri: guessed, predictions: {family: normal, columns: " in text
    assert "- lacking    # asked for a row: lacking/1: predict failed on rows 0 to 0: KeyError: 'floors'\n" in text
    assert found.entry_of("lacking").predictions is None, "its columns are not known"
    assert "check: how it is read is a guess" in text


def test_a_model_of_arrays_says_how_many_numbers_it_takes(tmp_path: Path, home: Path) -> None:
    """Its outputs were "it gives 0", or a TypeError."""

    class Array(mlflow.pyfunc.PythonModel):
        def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
            return np.ones((len(model_input), 2))

    signature = mlflow.models.infer_signature(np.zeros((2, 7), np.float32), np.zeros((2, 2)))
    mlflow.pyfunc.log_model(name="array", python_model=Array(), registered_model_name="array",
                            pip_requirements=["numpy"], signature=signature)  # fmt: skip
    text = written(tmp_path, frame(), model="array", target="price").read_text()
    assert (
        "    # model_inputs: [a, b]    # needed: the model takes 7 numbers a row; name what it was trained on" in text
    )
    assert (
        '# predictions: {family: normal, columns: {loc: "0", scale: "1"}}    # how the output is read: it gives 0, 1'
        in text
    )


def test_stored_predictions_are_told_by_the_names_of_their_columns(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = frame(mu=rng.normal(size=ROWS), sigma=1.0, model_version="v1").drop(columns="price")
    table["scored_at"] = pd.date_range("2026-01-05", periods=ROWS, freq="h")
    outcomes = tmp_path / "outcomes.parquet"
    pd.DataFrame({"id": range(9), "price": 1.5}).to_parquet(outcomes, index=False)
    settings = load_settings(written(tmp_path, table, targets=str(outcomes)))
    said = settings.predictions
    assert said is not None
    assert (said.key, said.version, said.time, said.family) == ("id", "model_version", "scored_at", "normal")
    assert said.columns == {"loc": "mu", "scale": "sigma"}
    assert said.targets is not None
    assert said.targets.uri == str(outcomes)
    (split,) = settings.splits
    assert (split.input, split.slices, split.target) == (["rooms", "area"], ["city"], "price")
    assert split.time is None  # `watch` bets on single rows without it
    assert "# time: scored_at    # the order of the rows" in (tmp_path / "evaluation.yaml").read_text()
    assert opened(settings).models == ["stored:v1"]
    levels = frame(**{"q0.1": 0.0, "q0.5": 1.0, "q0.9": 2.0})
    output = written(tmp_path, levels, target="price", overwrite=True)
    assert "# q0.1, q0.5, q0.9 are read as quantiles" in output.read_text()


def test_what_many_rows_of_a_version_are_of_is_a_group_and_no_key(tmp_path: Path) -> None:
    """As a key it left one row of each customer; as a group it was left out of the file."""
    table = frame(mu=1.0, sigma=0.5, version=np.arange(ROWS) % 2).drop(columns="id")
    table["customer_id"], table["timestamp"] = np.arange(ROWS) // 4, np.arange(ROWS)
    settings = load_settings(written(tmp_path, table, target="price"))
    (split,), said = settings.splits, settings.predictions
    assert said is not None
    assert (said.key, said.time, split.groups, split.time) == (None, None, "customer_id", "timestamp")
    table["customer_id"] = np.arange(ROWS) // 2  # once in each version
    said = load_settings(written(tmp_path, table, target="price", overwrite=True)).predictions
    assert said is not None
    assert said.key == "customer_id"


def test_draws_in_a_column_of_lists_are_stored_predictions(tmp_path: Path) -> None:
    """They were given to the encoder as features."""
    drawn = np.random.default_rng(0).normal(size=(ROWS, 5))
    for kind in (pa.list_(pa.float64()), pa.large_list(pa.float32())):
        table = pa.Table.from_pandas(frame()).append_column("samples", pa.array(list(drawn), kind))
        pq.write_table(table, tmp_path / "lists.parquet")
        settings = load_settings(written_of(tmp_path / "lists.parquet", target="price", overwrite=True))
        assert settings.splits[0].input == ["rooms", "area"]
        assert settings.predictions is not None
        read = read_distribution(table.select(["samples"]).to_pandas(), settings.predictions.read_by, ROWS)
        np.testing.assert_allclose(read.draws, drawn, rtol=1e-6)


def test_moments_as_text_and_the_only_shared_column_are_told(tmp_path: Path) -> None:
    """Without their time the prediction that came last in the files counted, and it was called the latest."""
    table = frame(mu=1.0, sigma=0.5, version="v1").drop(columns=["price", "id"])
    table["order no"] = np.arange(len(table))
    table["scored"] = "2026-01-02T03:04:05"
    table.to_csv(tmp_path / "scored.csv", index=False)
    orders = pd.DataFrame({"order no": np.arange(9).astype(str), "outcome": 1.5})
    outcomes = tmp_path / "outcomes.parquet"
    orders.to_parquet(outcomes, index=False)
    said = load_settings(written_of(tmp_path / "scored.csv", targets=str(outcomes))).predictions
    assert said is not None
    assert (said.key, said.time) == ("order no", "scored")
    orders.assign(**{"order no": "one of several"}).to_parquet(outcomes, index=False)
    with pytest.raises(SettingsError, match="which column names a row in both tables"):
        written_of(tmp_path / "scored.csv", targets=str(outcomes), overwrite=True)


@pytest.mark.parametrize(
    ("names", "family"),
    [
        (["draw_0", "draw_1", "draw_2", "draw_10"], "samples"),
        (["Sample 1", "Sample 2", "Sample 3"], "samples"),
        (["y_pred", "y_std"], "normal"),
        (["mean", "uncertainty"], "normal"),
        (["5", "50", "95"], "quantiles"),
        (["pred_q10", "pred_median", "pred_q90"], "quantiles"),
        (["10 %", "50 %", "90 %"], "quantiles"),
        (["q0,1", "q0,9"], "quantiles"),
        (["quantile_0_05", "quantile_0_5", "quantile_0_95"], "quantiles"),
        (["y_q10", "y_q90"], "quantiles"),
        (["loc", "scale"], "normal"),
        (["ens_0", "ens_1", "ens_2"], "samples"),
        (["predicted mean", "predicted variance"], "normal"),
    ],
)
def test_draws_and_a_prediction_with_its_spread_are_stored_predictions(
    names: list[str], family: str, tmp_path: Path
) -> None:
    """They were taken as features of a model: the encoder was given twenty draws of the target."""
    rng = np.random.default_rng(0)
    drawn = {name: rng.uniform(1, 2, ROWS) for name in reversed(names)}
    output = written(tmp_path, frame(**drawn), target="price")
    settings = load_settings(output)
    assert settings.splits[0].input == ["rooms", "area"]
    assert settings.predictions is not None
    read = read_distribution(pd.DataFrame(drawn), settings.predictions.read_by, ROWS)
    assert read.family == family
    if "predicted variance" in names:
        np.testing.assert_allclose(read.std() ** 2, drawn["predicted variance"])
    if family == "samples":
        assert (
            f"# {names[0]} to {names[-1]} are read as {len(names)} draws of the target by their names"
            in output.read_text()
        )
        np.testing.assert_array_equal(read.draws, pd.DataFrame(drawn)[names])


def test_quantiles_of_several_models_in_a_row_are_refused_with_a_remedy(tmp_path: Path) -> None:
    """Forecasts of Nixtla's libraries ended with a traceback."""
    names = [f"{model}-{end}-90" for model in ("NHITS", "ETS") for end in ("lo", "hi")]
    data = frame(**dict.fromkeys(names, 1.0))
    with pytest.raises(ContractError, match=r"\('ETS', 'NHITS'\); put their rows below each other"):
        written(tmp_path, data, target="price")
    output = written(tmp_path, frame(**{"q0.1": 0.0, "q0.9": 1.0}), target="price")
    (said,) = [each.uri for each in load_settings(output).splits]
    data.to_parquet(said, index=False)
    with pytest.raises(ContractError, match="put their rows below each other"):
        opened(load_settings(output))


def test_columns_called_as_predictions_are_no_inputs_unless_a_model_asks_for_them(tmp_path: Path) -> None:
    beside = frame(**{"q0.1": 0.0, "q0.9": 2.0, "mean": 1.0, "std": 0.5, "model_0": 1.0, "model_1": 2})
    output = written(tmp_path, beside, target="price")
    assert load_settings(output).splits[0].input == ["rooms", "area", "model_1"]
    assert "; not mean, std, model_0, called as predictions" in output.read_text()
    data = frame(y_hat=1.0, lower=0.0, pred_price=2.0, median=2.0, upper=3.0, lower_floor=1.0)
    output = written(tmp_path, data, target="price", overwrite=True)
    assert load_settings(output).splits[0].input == ["rooms", "area", "lower_floor"]
    assert "; not y_hat, lower, pred_price, upper, median, called as predictions: to judge these" in output.read_text()
    asked = columns_roles(pa.Table.from_pandas(data), "price", ModelFacts("m", inputs=("area", "y_hat")))
    assert (asked.input, asked.predicted) == (["area", "y_hat"], ["lower", "pred_price", "upper", "median"])


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "index", "rownames"])
def test_the_index_that_a_frame_was_written_with_is_no_input_unless_a_model_asks_for_it(
    tmp_path: Path, name: str
) -> None:
    data = frame().drop(columns="id").rename_axis(name)
    data.to_csv(tmp_path / "rows.csv")
    output = written_of(tmp_path / "rows.csv", target="price")
    (split,) = load_settings(output).splits
    assert (split.input, split.key) == (["rooms", "area"], None)
    assert re.search(f"encoder reads; without '?{name}" if name else "encoder reads\n", output.read_text())
    assert open_split(split).rows == ROWS
    table = pa.Table.from_pandas(data.reset_index())
    assert columns_roles(table, "price", ModelFacts("m", inputs=("area", name))).input == ["area", name]
    with pytest.raises(SettingsError, match=r"The numeric ones are rooms, area, price$"):
        columns_roles(table, None)
    moments = data.set_axis(pd.date_range("2026-01-01", periods=ROWS)).rename_axis(name).reset_index()
    unnamed = columns_roles(pa.Table.from_pandas(moments), "price")
    assert (unnamed.left_out, dict(unnamed.design)) == ([name], {}) if not name else ([], {"time": name})
    assert name not in columns_roles(table, name or "price").left_out, "what is predicted is not missed"
    changed = data.set_axis(data.index // 2).rename_axis(name).reset_index()
    assert (name in columns_roles(pa.Table.from_pandas(changed), "price").input) == bool(name)


def test_a_target_without_values_is_none_and_one_that_is_called_so_is_taken(tmp_path: Path) -> None:
    for nothing in (frame(price=None).astype({"price": "string"}), frame().head(0).astype({"price": "string"})):
        with pytest.raises(SettingsError, match="column 'price' holds text, for example None"):
            columns_roles(pa.Table.from_pandas(nothing), "price")
    assert load_settings(written(tmp_path, frame(y_true=1.0), target=None)).splits[0].target == "y_true"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": "pred_dist"}, "method: asks a model"),
        ({"key": None, "targets": {"uri": "y.csv", "key": "id", "target": "y"}}, "key: is missing"),
        ({"from": None, "key": "id"}, "key: is of stored predictions, and there is no from"),
    ],
)
def test_stored_predictions_that_cannot_be_meant_are_refused(changes: dict[str, Any], said: str) -> None:
    given = {"from": "scored.parquet", "key": "id"} | changes
    split = {"input": ["x"], "input_kind": "features", "target": "y"}
    content = {"predictions": given, "splits": [split], "encoder": {"kind": "identity"}}
    with pytest.raises(ValueError, match=said):
        EvaluationSettings.model_validate(content)
    two = {"predictions": {"from": "a.parquet"}, "splits": [split | {"name": name, "uri": name} for name in "ab"]}
    with pytest.raises(ValueError, match="name one split"):
        EvaluationSettings.model_validate({**content, **two})
