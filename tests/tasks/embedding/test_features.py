"""Features: embedded as one matrix of a shard, standardised by statistics that are fitted once to one split."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from encoder_inputs import of_features

from congruence.tasks.data.split import open_split
from congruence.tasks.encoders.base import Encoder, InvalidRow
from congruence.tasks.encoders.loading import Moments, load_encoder, statistics
from congruence.tasks.evaluate.pieces import embed_each, require_features
from congruence.tasks.evaluate.plan import with_fitted_encoder, with_statistics
from congruence.tasks.notebook.table import Given, rows_of
from congruence.tasks.runtime.errors import SplitError
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import EncoderSettings
from congruence.tasks.store.embeddings import EmbeddingStore

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
    split = open_split(of_features(tmp_path / "rows.parquet", names, shard_rows=50))
    mean, scale = (0.1, -0.2, 3.0, 0.0), (0.7, 1e-5, 2.0, 3.0)
    encoder = load_encoder(EncoderSettings(kind="identity", mean=mean, scale=scale))
    objects = []
    for number, each in enumerate((encoder, RowByRow(encoder))):
        store = EmbeddingStore.open(str(tmp_path / str(number)), split, each)
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


def test_another_number_of_features_is_the_row_s_fault() -> None:
    encoder = load_encoder(EncoderSettings(kind="identity", dimension=3, standardise=False))
    assert np.isnan(encoder.encode_matrix(np.ones((2, 4)))).all()  # type: ignore[attr-defined]
    with pytest.raises(InvalidRow, match=r"shape \(4,\); expected \(3,\)"):
        encoder.preprocess(np.ones(4))


COLUMNS = ["a", "b", "c"]


def write(path: Path, seed: int, rows: int = 3000) -> pd.DataFrame:
    """A feature with a large offset, one that never varies, and one that is missing in some rows."""
    rng = np.random.default_rng(seed)
    features = {"a": 1e4 + rng.normal(size=rows), "b": np.full(rows, 0.3), "c": seed * rng.exponential(size=rows)}
    frame = pd.DataFrame(features | {"y": rng.normal(size=rows)})
    frame.loc[rng.random(rows) < 0.01, "c"] = np.nan
    frame.to_parquet(path)
    return frame


def settings(tmp_path: Path, names: list[str], **changes: Any) -> EvaluationSettings:
    splits = [split(tmp_path, name) for name in names]
    content = {"splits": splits, "encoder": {"kind": "identity"}, "home": str(tmp_path / "home")}
    return EvaluationSettings.model_validate(content | changes)


def split(tmp_path: Path, name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "uri": str(tmp_path / f"{name}.parquet"),
        "input": COLUMNS,
        "input_kind": "features",
        "target": "y",
        "shard_rows": 700,
    } | changes


def test_the_first_split_or_the_reference_gives_the_statistics_of_all(tmp_path: Path) -> None:
    frames = {name: write(tmp_path / f"{name}.parquet", seed) for seed, name in enumerate(["one", "two", "val"], 1)}
    by_first = with_fitted_encoder(settings(tmp_path, ["one", "two"])).encoder
    valid = frames["one"][COLUMNS].dropna()
    np.testing.assert_allclose(by_first.mean, valid.mean(), rtol=1e-12)
    np.testing.assert_allclose(by_first.scale, [valid["a"].std(ddof=0), 1.0, valid["c"].std(ddof=0)], rtol=1e-10)

    protocol = {"base": "exact", "reference": "validation"}
    with_reference = settings(tmp_path, ["one", "two"], reference=split(tmp_path, "val"), protocol=protocol)
    by_reference = with_fitted_encoder(with_reference).encoder
    np.testing.assert_allclose(by_reference.mean, frames["val"][COLUMNS].dropna().mean(), rtol=1e-12)  # type: ignore[arg-type]
    digests = {load_encoder(encoder).preprocessing_digest for encoder in (by_first, by_reference)}
    assert len(digests) == 2

    given = settings(tmp_path, ["one"], encoder={"kind": "identity", "scale": [1, 2, 3]})
    assert with_fitted_encoder(given) == given


def test_statistics_do_not_depend_on_shards_and_hardly_on_files(tmp_path: Path) -> None:
    frame = write(tmp_path / "one.parquet", 1)
    chosen = settings(tmp_path, ["one"])
    fitted = with_fitted_encoder(chosen).encoder
    assert with_fitted_encoder(chosen).encoder == fitted
    other = settings(tmp_path, ["one"], splits=[split(tmp_path, "one", shard_rows=64)])
    assert with_fitted_encoder(other).encoder == fitted
    (tmp_path / "many").mkdir()
    for number, start in enumerate((0, 1, 40, 2000)):
        frame[start : [1, 40, 2000, 3000][number]].to_parquet(tmp_path / "many" / f"{number}.parquet")
    many = settings(tmp_path, ["one"], splits=[split(tmp_path, "one", uri=str(tmp_path / "many"))])
    found = with_fitted_encoder(many).encoder
    np.testing.assert_allclose(found.scale, fitted.scale, rtol=1e-12)
    np.testing.assert_allclose((np.array(found.mean) - fitted.mean) / fitted.scale, 0.0, atol=1e-12)
    assert statistics(Moments.of(frame[COLUMNS].to_numpy()))[1][1] == 1.0 == found.scale[1]


def test_splits_of_other_width_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "one.parquet", 1)
    narrow = settings(tmp_path, ["one"], splits=[split(tmp_path, "one", input=["a", "b"])]).splits[0]
    with pytest.raises(
        SplitError, match=r"split 'one': its rows have 2 features.*standardises 3.*split 'first'.*same columns"
    ):
        require_features(open_split(narrow), 3, "first")
    with pytest.raises(SplitError, match="split 'one': no row of finite features with 2 values"):
        with_fitted_encoder(settings(tmp_path, ["one"], encoder={"kind": "identity", "dimension": 2}))


def test_a_table_in_memory_is_standardised_by_its_own(tmp_path: Path) -> None:
    frame = write(tmp_path / "one.parquet", 1).dropna()
    rows = rows_of(Given(frame[COLUMNS], np.arange(len(frame))))
    assert rows.encoder.id == load_encoder(with_fitted_encoder(settings(tmp_path, ["one"])).encoder).id
    x = rows.embeddings()
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(axis=0), [1, 0, 1], atol=1e-5)


@pytest.mark.parametrize("missing", ["mean", "indicator"])
def test_each_feature_is_standardised_by_the_values_that_it_has(tmp_path: Path, missing: str) -> None:
    rows = write(tmp_path / "one.parquet", 1)
    rows.loc[rows.index % 3 == 0, "a"] = np.nan
    rows.loc[[5, 6], "b"] = [np.nan, np.inf]
    rows.to_parquet(tmp_path / "one.parquet")
    chosen = settings(tmp_path, ["one"], encoder={"kind": "identity", "missing": missing})
    opened = open_split(chosen.splits[0])
    fitted = with_statistics(chosen.encoder, opened)
    known = rows[COLUMNS].drop(index=6)
    np.testing.assert_allclose(fitted.mean, known.mean(), rtol=1e-10)
    np.testing.assert_allclose(fitted.scale, [known["a"].std(ddof=0), 1.0, known["c"].std(ddof=0)], rtol=1e-10)
    raw = rows[COLUMNS].to_numpy()
    in_one_pass = statistics(Moments.of(known.to_numpy()))
    np.testing.assert_allclose(in_one_pass, (fitted.mean, fitted.scale), rtol=1e-12)
    assert with_statistics(chosen.encoder, opened) == fitted
    encoder = load_encoder(fitted)
    expected = (known - known.mean()) / fitted.scale
    if missing == "indicator":
        expected = pd.concat([expected, known.isna().astype(float)], axis=1)
    found = encoder.encode([encoder.preprocess(row) for row in np.delete(raw, 6, axis=0)])
    np.testing.assert_allclose(found, expected.fillna(0.0), atol=1e-5)
    everything = encoder.encode_matrix(raw)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.delete(everything, 6, axis=0), found)
    assert not np.isfinite(everything[6]).all()
    others = load_encoder(fitted.model_copy(update={"missing": "leave_out"}))
    assert others.preprocessing_digest != encoder.preprocessing_digest
    rows.assign(a=np.nan).to_parquet(tmp_path / "two.parquet")
    empty = settings(tmp_path, ["two"], encoder={"kind": "identity", "missing": missing})
    with pytest.raises(SplitError, match="feature 0 has no value in any row; leave it out of the input"):
        with_statistics(empty.encoder, open_split(empty.splits[0]))
