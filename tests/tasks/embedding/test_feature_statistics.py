"""Statistics of tabular features: fitted once to one split, kept, and the same for every split of an evaluation."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from congruence.flows.evaluation import splits
from congruence.flows.evaluation.splits import with_encoder_at_hand, with_fitted_encoder
from congruence.kernels.arrays import Array
from congruence.tasks.data import Split, open_split
from congruence.tasks.data.errors import SplitError
from congruence.tasks.embeddings import standardisation
from congruence.tasks.embeddings.standardisation import fit_here, require_features, with_statistics
from congruence.tasks.encoders import load_encoder
from congruence.tasks.encoders.moments import Moments
from congruence.tasks.encoders.moments import standardisation as in_one_pass
from congruence.tasks.mlflow_plugin.table_evaluation import TableEvaluationSettings, embed_table
from congruence.tasks.settings.evaluation import EvaluationSettings

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
    assert by_first.mean is not None
    assert by_first.scale is not None
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


def test_statistics_are_kept_and_do_not_depend_on_shards(tmp_path: Path) -> None:
    write(tmp_path / "one.parquet", 1)
    home, chosen = tmp_path / "home" / "statistics", settings(tmp_path, ["one"])
    fitted = with_fitted_encoder(chosen).encoder
    (kept,) = home.iterdir()
    before = kept.stat().st_mtime_ns
    assert with_fitted_encoder(chosen).encoder == fitted
    assert kept.stat().st_mtime_ns == before
    kept.write_text(kept.read_text().replace("0.3", "0.4"))
    assert with_fitted_encoder(chosen).encoder == fitted
    other = settings(tmp_path, ["one"], splits=[split(tmp_path, "one", shard_rows=64)])
    assert with_statistics(chosen.encoder, open_split(other.splits[0]), tmp_path / "elsewhere") == fitted


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
    chosen = with_fitted_encoder(settings(tmp_path, ["one"])).encoder
    x = embed_table(frame, COLUMNS, load_encoder(chosen))
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(x.std(axis=0), [1, 0, 1], atol=1e-5)
    assert TableEvaluationSettings.model_validate({"encoder": {"kind": "identity"}}).encoder is not None


def test_the_numbers_do_not_depend_on_who_takes_the_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standardisation, "PART_ROWS", 256)
    frame = write(tmp_path / "one.parquet", 1)
    chosen = settings(tmp_path, ["one"])
    opened = open_split(chosen.splits[0])

    def backwards(
        split: Split, parts: list[standardisation.Part], origin: Array, missing: bool
    ) -> list[Moments | None]:
        return [pickle.loads(pickle.dumps(fit_here(split, [part], origin)[0])) for part in reversed(parts)][::-1]

    assert len(standardisation.parts_of(opened)) == 12
    here = with_statistics(chosen.encoder, opened, tmp_path / "here")
    there = with_statistics(chosen.encoder, opened, tmp_path / "there", backwards)
    assert (here.mean, here.scale) == (there.mean, there.scale)
    other = settings(tmp_path, ["one"], splits=[split(tmp_path, "one", shard_rows=64)])
    assert with_statistics(chosen.encoder, open_split(other.splits[0]), tmp_path / "shards").mean == here.mean
    one_pass = in_one_pass(frame[COLUMNS].dropna().to_numpy())
    assert here.mean is not None
    assert here.scale is not None
    np.testing.assert_allclose(here.mean, one_pass[0], rtol=1e-12)
    np.testing.assert_allclose(here.scale, one_pass[1], rtol=1e-12)


@pytest.mark.parametrize("rows", [100, 300])
def test_a_long_split_is_not_read_to_look_for_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(splits, "PART_ROWS", 200)
    write(tmp_path / "one.parquet", 1, rows)
    chosen = settings(tmp_path, ["one"])
    assert (with_encoder_at_hand(chosen) is None) == (rows > 200)
    fitted = with_fitted_encoder(chosen)
    assert with_encoder_at_hand(chosen) == fitted


@pytest.mark.parametrize("missing", ["mean", "indicator"])
def test_each_feature_is_standardised_by_the_values_that_it_has(
    tmp_path: Path, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standardisation, "PART_ROWS", 1000)
    rows = write(tmp_path / "one.parquet", 1)
    rows.loc[rows.index % 3 == 0, "a"] = np.nan
    rows.loc[[5, 6], "b"] = [np.nan, np.inf]
    rows.to_parquet(tmp_path / "one.parquet")
    chosen = settings(tmp_path, ["one"], encoder={"kind": "identity", "missing": missing})
    opened = open_split(chosen.splits[0])
    fitted = with_statistics(chosen.encoder, opened, tmp_path / "kept")
    known = rows[COLUMNS].drop(index=6)
    assert fitted.mean is not None
    assert fitted.scale is not None
    np.testing.assert_allclose(fitted.mean, known.mean(), rtol=1e-10)
    np.testing.assert_allclose(fitted.scale, [known["a"].std(ddof=0), 1.0, known["c"].std(ddof=0)], rtol=1e-10)
    raw = rows[COLUMNS].to_numpy()
    assert in_one_pass(raw, missing=True) == (fitted.mean, fitted.scale)
    assert with_statistics(chosen.encoder, opened, tmp_path / "kept") == fitted
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
        with_statistics(empty.encoder, open_split(empty.splits[0]), tmp_path / "kept")
