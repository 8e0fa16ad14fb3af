"""Inputs that people reported to other projects, each made anew: read as they are meant, or refused with a remedy."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mlflow.types import ColSpec, DataType, Schema

from congruence.tasks.contract.model import to_signature, to_tensor
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split

FRAME = pd.DataFrame({"a": [0.1, 0.2, 1.0 / 3.0], "y": [1.0, 2.0, 3.0]})


def rows(uri: Path | str, *columns: str, **named: Any) -> pd.DataFrame:
    """What a model is given of a split."""
    asked = {"uri": str(uri), "input": ["a"], "input_kind": "features", "target": "y", "model_inputs": list(columns)}
    split = open_split(SplitSettings.model_validate(asked | named))
    return pd.concat([split.frame(shard, list(columns)) for shard in split.shards])


def floats_from_a_csv(folder: Path) -> None:
    """A network's signature is of float; a CSV has doubles."""
    FRAME.to_csv(folder / "rows.csv", index=False)
    found, notes = to_signature(rows(folder / "rows.csv", "a"), Schema([ColSpec(DataType.float, "a")]))
    np.testing.assert_array_equal(found["a"], FRAME["a"].astype(np.float32))
    assert "rounded by up to" in notes["a"]


def an_index_of_pandas(folder: Path) -> None:
    """Its name is in the file's metadata, and the column is asked for by name."""
    FRAME.set_index("a").to_parquet(folder / "rows.parquet")
    assert rows(folder / "rows.parquet", "a", "y")["a"].tolist() == FRAME["a"].tolist()


def missing_whole_numbers_before_a_tensor(folder: Path) -> None:
    FRAME.assign(n=pd.array([1, None, 3], "Int64")).to_parquet(folder / "rows.parquet", index=False)
    found = to_tensor(rows(folder / "rows.parquet", "n", "a"), np.dtype(np.float32))
    np.testing.assert_array_equal(found[:, 0], np.float32([1, np.nan, 3]))


def a_zone_against_a_date(folder: Path) -> None:
    when = pd.Series(pd.to_datetime(["2026-03-01 12:00"] * 3)).dt.tz_localize("Europe/Paris")
    FRAME.assign(at=when).to_parquet(folder / "rows.parquet", index=False)
    found, notes = to_signature(rows(folder / "rows.parquet", "at"), Schema([ColSpec(DataType.datetime, "at")]))
    assert found["at"].tolist() == [pd.Timestamp("2026-03-01 11:00")] * 3
    assert "in UTC without a zone" in notes["at"]


def _tar(folder: Path, names: list[str]) -> SplitSettings:
    with tarfile.open(folder / "rows.tar", "w") as archive:
        for name in names:
            content = name[-5:-4].encode() if name.endswith("cls") else b"a text"
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return SplitSettings(uri=str(folder / "rows.tar"), input="txt", input_kind="text", target="cls")


def what_macos_adds_to_a_tar(folder: Path) -> None:
    """``._1.txt`` holds attributes of a file, and is none of its sample."""
    names = [f"{row}.{part}" for row in "123" for part in ("txt", "cls")]
    split = open_split(_tar(folder, [each for name in names for each in (f"._{name}", name)]))
    assert (split.rows, split.targets(split.shards[0]).tolist()) == (3, [1.0, 2.0, 3.0])


def files_whose_columns_differ_in_order_and_type(folder: Path) -> None:
    texts = pa.array(["u", "v", "u"])
    written = {
        "asy": (texts, pa.int64()),
        "yas": (texts.cast(pa.large_string()), pa.float64()),
        "say": (texts.dictionary_encode(), pa.int32()),
    }
    for order, (text, kind) in written.items():
        columns = {"a": pa.array(FRAME["a"]), "s": text, "y": pa.array([1, 2, 3]).cast(kind)}
        pq.write_table(pa.table({name: columns[name] for name in order}), folder / f"{order}.parquet")
    found = rows(folder, "a", "s")
    assert found["s"].tolist() == ["u", "v", "u"] * 3
    assert found["a"].tolist() == FRAME["a"].tolist() * 3


REPORTS: dict[str, Callable[[Path], None]] = {
    "mlflow 7215": floats_from_a_csv,
    "arrow 1302": an_index_of_pandas,
    "mlflow 25593": missing_whole_numbers_before_a_tensor,
    "mlflow 16401": a_zone_against_a_date,
    "webdataset 407, macOS": what_macos_adds_to_a_tar,
    "arrow 47592": files_whose_columns_differ_in_order_and_type,
}
"""By the project and the number of the report. Those of mlflow 24389, fsspec 838, polars 18568 and webdataset 407 are
among the tests of signatures, of ingesting, of every source and of pictures in place."""


@pytest.mark.parametrize("report", REPORTS)
def test_a_public_report(report: str, tmp_path: Path) -> None:
    REPORTS[report](tmp_path)
