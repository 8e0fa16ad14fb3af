"""Rows meet a model's signature: what is usual or loses nothing is converted and said, the rest is refused by name."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import pytest
import torch
from encoder_inputs import of_features
from logged_models import log_by_us, newest, predicted
from mlflow.types import ColSpec, DataType, Schema

from congruence.tasks.contract import ContractError, check_contract
from congruence.tasks.contract.reading import output_columns
from congruence.tasks.contract.signature import to_signature, to_tensor
from congruence.tasks.data.split import open_split
from congruence.tasks.settings.sections import PredictionSettings


def converted(values: Any, kind: DataType) -> tuple[pd.Series, str]:
    frame, notes = to_signature(pd.DataFrame({"x": values}), Schema([ColSpec(kind, "x")]))
    return frame["x"], notes.get("x", "")


THIRD = 1.0 / 3.0
PARIS = pd.Series(pd.to_datetime(["2026-03-01 12:00", "2026-07-01 12:00"])).dt.tz_localize("Europe/Paris")
UTC = pd.to_datetime(["2026-03-01 11:00", "2026-07-01 10:00"]).to_numpy()
LOSSLESS: dict[str, tuple[Any, DataType, Any]] = {
    "whole numbers as doubles": ([1, 2], DataType.double, np.array([1.0, 2.0])),
    "32 bits as doubles": (np.float32([0.5, THIRD]), DataType.double, np.float32([0.5, THIRD]).astype(np.float64)),
    "missing whole numbers as doubles": (pd.array([1, None], "Int64"), DataType.double, np.array([1.0, np.nan])),
    "objects as doubles": ([1, None], DataType.double, np.array([1.0, np.nan])),
    "decimals as doubles": ([Decimal("1.5"), Decimal(2)], DataType.double, np.array([1.5, 2.0])),
    "booleans as doubles": ([True, False], DataType.double, np.array([1.0, 0.0])),
    "halves as floats": ([0.5, 0.25], DataType.float, np.float32([0.5, 0.25])),
    "whole doubles as long": ([1.0, 2.0], DataType.long, np.array([1, 2])),
    "narrow ones as long": (np.int8([1, 2]), DataType.long, np.array([1, 2])),
    "long as integer": ([1, 2], DataType.integer, np.int32([1, 2])),
    "0 and 1 as booleans": ([0, 1], DataType.boolean, np.array([False, True])),
    "categories as texts": (pd.Categorical(["a", "b"]), DataType.string, np.array(["a", "b"], dtype=object)),
    "ISO dates as dates": (["2026-03-01", "2026-07-01"], DataType.datetime, UTC.astype("M8[D]").astype("M8[ns]")),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_what_loses_nothing_is_converted_without_a_word(name: str) -> None:
    values, kind, expected = LOSSLESS[name]
    found, note = converted(values, kind)
    np.testing.assert_array_equal(found.to_numpy(), expected)
    if kind not in (DataType.string, DataType.datetime):
        assert found.dtype == kind.to_numpy()
    assert note == ""


def test_doubles_for_a_signature_of_floats_are_rounded_and_the_largest_rounding_is_said() -> None:
    values = np.array([THIRD, 0.0, np.nan, 2.0])
    found, note = converted(values, DataType.float)
    np.testing.assert_array_equal(found, values.astype(np.float32))
    largest = abs(np.float64(np.float32(THIRD)) - THIRD) / THIRD
    said = "input column 'x' is given in 32 bits, as the signature says: rounded by up to"
    assert note == f"{said} {largest:.1g} of its value"


@pytest.mark.parametrize(
    ("values", "kind", "expected", "said"),
    [
        (PARIS, DataType.datetime, UTC, "input column 'x' is given in UTC without a zone (it has Europe/Paris)"),
        ([7, 12], DataType.string, ["7", "12"], "such as '7': if these are codes"),
        ([2**53 + 1], DataType.double, [2.0**53], "beyond 2^53"),
    ],
    ids=["zone", "codes", "beyond 53 bits"],
)
def test_what_is_usual_is_converted_and_said(values: Any, kind: DataType, expected: Any, said: str) -> None:
    found, note = converted(values, kind)
    np.testing.assert_array_equal(found.to_numpy(), expected)
    assert said in note


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (["3,5", "2"], DataType.double, r"'x' holds texts or objects, and .* numbers \(double\): row 0 is '3,5'"),
        ([1.0, 1e300], DataType.float, r"row 1 is 1e\+300, and it is too large for 32 bits"),
        ([1.0, 3.5], DataType.long, r"row 1 is 3.5, and it is no whole number"),
        ([1.0, np.nan], DataType.long, r"row 1 is nan, and it is no whole number: whole numbers know no missing"),
        ([1, 2**40], DataType.integer, r"row 1 is 1099511627776, and it is too large for 32 bits"),
        ([0, 2], DataType.boolean, r"row 1 is 2, and only 0 and 1 are"),
        ([0.5], DataType.string, r"numbers \(float64\), and .* texts \(string\).*more than one spelling"),
        ([5], DataType.datetime, r"dates \(datetime\).*a number does not say since when"),
        (["2026-03-01", "1 March"], DataType.datetime, r"row 1 is '1 March', and it is no date in ISO 8601"),
    ],
)
def test_what_cannot_be_converted_names_column_type_value_and_remedy(values: Any, kind: DataType, message: str) -> None:
    with pytest.raises(ContractError, match=message) as error:
        converted(values, kind)
    assert "log the model again with an input_example that is like these rows" in str(error.value)


def test_tensors_take_missing_numbers_as_nan_where_they_can() -> None:
    frame = pd.DataFrame({"a": pd.array([1, None], "Int64"), "b": [0.5, 1.5]})
    np.testing.assert_array_equal(to_tensor(frame, np.dtype(np.float32)), np.float32([[1.0, 0.5], [np.nan, 1.5]]))
    with pytest.raises(ContractError, match=r"column 'a': row 1 has no value, and .* tensor of int64"):
        to_tensor(frame, np.dtype(np.int64))
    with pytest.raises(ContractError, match=r"column 'b' holds texts or objects, .* tensor of float32: row 0 is 'x'"):
        to_tensor(frame.assign(b="x"), np.dtype(np.float32))


def test_missing_whole_numbers_and_zones_of_a_file_reach_tensors_and_signatures(tmp_path: Path) -> None:
    """mlflow 25593 and 16401."""
    columns = {"n": pd.array([1, None], "Int64"), "a": [0.1, 0.2], "at": PARIS, "y": [1.0, 2.0]}
    pd.DataFrame(columns).to_parquet(tmp_path / "rows.parquet", index=False)
    split = open_split(of_features(tmp_path / "rows.parquet", ["a"], model_inputs=["n", "a", "at"]))
    frame = split.frame(split.shards[0])
    np.testing.assert_array_equal(to_tensor(frame[["n", "a"]], np.dtype(np.float32))[:, 0], np.float32([1, np.nan]))
    found, notes = to_signature(frame[["at"]], Schema([ColSpec(DataType.datetime, "at")]))
    np.testing.assert_array_equal(found["at"].to_numpy(), UTC)
    assert "in UTC without a zone" in notes["at"]


def test_a_signature_of_floats_is_evaluated_from_doubles_and_missing_integers_are_nan(registry: str) -> None:
    """A network's signature is float32, a CSV has doubles; a tensor model is asked with a column that lacks a value."""
    example = pd.DataFrame({"a": np.float32([0.5, 0.25]), "b": np.float32([1.0, 2.0])})
    log_by_us(lambda frame: pd.DataFrame({"loc": frame["a"], "scale": 1.0}), registry, example, family="normal")
    model = newest(registry)
    rows = pd.DataFrame({"a": [THIRD, 2 * THIRD], "b": [1.0, 2.0]})
    np.testing.assert_allclose(model.predict(rows).mean(), rows["a"], rtol=1e-7)
    warnings = check_contract(model, rows).warnings
    assert [warning for warning in warnings if "rounded by up to 3e-08" in warning]
    assert len(warnings) == 1
    (said,) = check_contract(model, rows.assign(b=0.1)).warnings
    assert said.endswith("of its value; 1 other column is, too, and rounded by no more")
    assert "3e-08" in said


class Matrix(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: Any, params: Any = None) -> Any:
        return {"loc": np.nan_to_num(model_input[:, 0], nan=-1.0), "scale": np.ones(len(model_input))}


def test_a_tensor_model_is_given_nan_for_missing_integers(registry: str) -> None:
    mlflow.pyfunc.log_model(
        name="model", python_model=Matrix(), registered_model_name=registry, pip_requirements=["numpy"],
        signature=mlflow.models.infer_signature(np.zeros((2, 2), np.float32)),
    )  # fmt: skip
    frame = pd.DataFrame({"n": pd.array([3, None], "Int64"), "b": [0.0, 0.0]})
    found = predicted(registry, frame, PredictionSettings(family="normal"))
    assert found.mean().tolist() == [3.0, -1.0]
    with pytest.raises(ContractError, match="it takes 2 numbers a row and is given 3; name the columns"):
        predicted(registry, frame.assign(c=1.0), PredictionSettings(family="normal"))


def test_a_model_of_paths_is_given_paths_of_the_pictures_that_are_bytes(registry: str, tmp_path: Path) -> None:
    def sizes(frame: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"loc": [len(open(path, "rb").read()) for path in frame["photo"]], "scale": 1.0})

    photo = tmp_path / "a.png"
    photo.write_bytes(b"\x89PNG" + bytes(7))
    log_by_us(sizes, registry, pd.DataFrame({"photo": [str(photo)]}), family="normal")
    model = newest(registry)
    found = model.predict(pd.DataFrame({"photo": [b"\x89PNG" + bytes(5), b"\xff\xd8" + bytes(9)]}))
    assert found.mean().tolist() == [9.0, 11.0]
    assert "is given as paths of files" in model.casts["photo"]


def test_tensors_that_require_a_gradient_or_have_16_bits_are_numbers() -> None:
    for tensor in (torch.ones(3, requires_grad=True), torch.ones(3, dtype=torch.bfloat16)):
        assert output_columns({"loc": tensor}, 3)["loc"].tolist() == [1.0, 1.0, 1.0]
