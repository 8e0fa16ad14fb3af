"""Features are embedded as one matrix of a shard: the same bytes and reasons as row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split
from congruence.tasks.embeddings.shard import embed_each
from congruence.tasks.embeddings.worker import open_store
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.moments import standardisation
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.settings.evaluation import StoreSettings

ROWS = 130


class RowByRow(Encoder):
    """An encoder of features that is only asked for single rows."""

    def __init__(self, encoder: Any) -> None:
        self._encoder = encoder
        self.dimension, self.batch_size = encoder.dimension, encoder.batch_size
        self.id, self.preprocessing_digest = encoder.id, encoder.preprocessing_digest

    def preprocess(self, raw: Any) -> Any:
        return self._encoder.preprocess(raw)

    def encode(self, batch: list[Any]) -> Any:
        return self._encoder.encode(batch)


def columns(rng: np.random.Generator) -> dict[str, Any]:
    """Numbers of several types, with what cannot be embedded among them."""
    a, b = rng.normal(size=ROWS), rng.normal(size=ROWS).astype(np.float32)
    a[3], a[60], b[7], a[9] = np.nan, np.inf, -np.inf, 1e300
    c: list[int | None] = [*range(2**53, 2**53 + ROWS)]
    c[11] = None
    return {"a": a, "b": b, "c": pd.array(c, dtype="Int64"), "d": rng.random(ROWS) < 0.5, "y": np.zeros(ROWS)}


def vectors(rng: np.random.Generator) -> dict[str, Any]:
    """One column of vectors, of which some are shorter, longer, empty or missing."""
    x: list[Any] = [rng.normal(size=4) for _ in range(ROWS)]
    x[2], x[5], x[40], x[41] = x[2][:3], None, np.array([]), np.append(x[41], 1.0)
    x[42] = np.array([1.0, np.nan, 2.0, 3.0])
    return {"x": x, "y": np.zeros(ROWS)}


@pytest.mark.parametrize("make", [columns, vectors])
def test_a_matrix_gives_the_bytes_and_reasons_of_its_rows(make: Any, tmp_path: Path) -> None:
    table = make(np.random.default_rng(0))
    pd.DataFrame(table).to_parquet(tmp_path / "rows.parquet")
    names = [name for name in table if name != "y"]
    split = open_split(
        SplitSettings(uri=str(tmp_path / "rows.parquet"), input=names, input_kind="features", target="y", shard_rows=50)
    )
    mean, scale = (0.1, -0.2, 3.0, 0.0), (0.7, 1e-5, 2.0, 3.0)
    encoder = load_encoder(EncoderSettings(kind="identity", mean=mean, scale=scale))
    objects = []
    for number, each in enumerate((encoder, RowByRow(encoder))):
        store = open_store(str(tmp_path / str(number)), StoreSettings(), split, each)  # type: ignore[arg-type]
        for shard in split.shards:
            embed_each(split, [shard], each, store, threads=1)
        assert store.pending() == []
        files = sorted((tmp_path / str(number)).rglob("*"))
        objects.append(
            {path.relative_to(tmp_path / str(number)): path.read_bytes() for path in files if path.is_file()}
        )
    assert objects[0] == objects[1]
    assert len(store.reasons()) >= 4
    assert any("the encoder's output is not finite" in reason for reason in store.reasons().values()) == (
        make is columns
    )


def test_statistics_of_matrices_are_those_of_their_rows() -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(5000, 6)) * 10.0 ** np.arange(-3, 3) + 1e4
    rows[rng.random(rows.shape) < 0.001] = np.nan
    one_by_one = standardisation(iter(rows))
    cuts = np.sort(rng.integers(0, len(rows), 7))
    assert standardisation(np.split(rows, cuts)) == one_by_one
    mixed = [rows[:700], *rows[700:800], rows[800:], np.ones((3, 2)), "text", 3.0]
    assert standardisation(mixed) == one_by_one  # type: ignore[arg-type]


def test_another_number_of_features_is_the_row_s_fault() -> None:
    encoder = load_encoder(EncoderSettings(kind="identity", dimension=3, standardise=False))
    assert np.isnan(encoder.encode_matrix(np.ones((2, 4)))).all()  # type: ignore[attr-defined]
    with pytest.raises(InvalidRow, match=r"shape \(4,\); expected \(3,\)"):
        encoder.preprocess(np.ones(4))
