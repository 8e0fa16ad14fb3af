"""A file that is replaced after its split was indexed is noticed whoever reads it, and nothing of the mixture stays."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from congruence.tasks.data.errors import SplitChangedError
from congruence.tasks.data.opening import open_split
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.embeddings.shard import embed_each
from congruence.tasks.embeddings.store import EmbeddingStore
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.features import FeatureEncoder
from congruence.tasks.encoders.settings import EncoderSettings

ROWS = 40


def table(seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"a": rng.normal(size=ROWS).round(6), "y": rng.normal(size=ROWS).round(6)})


def write(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    frame = table(seed)
    match path.suffix:
        case ".parquet":
            frame.to_parquet(path)
        case ".csv":
            frame.to_csv(path, index=False)
        case ".jsonl":
            frame.to_json(path, orient="records", lines=True)
        case _:
            np.savez(path, a=frame["a"], y=frame["y"])
    return path


def opened(path: Path, folder: Path) -> Split:
    settings = SplitSettings(uri=str(path), input="a", input_kind="features", target="y", shard_rows=20)
    return open_split(settings, folder / "index")


def replaced(path: Path, seed: int) -> None:
    """Another content of about the same size, renamed over the file, with the times of the first."""
    before = path.stat()
    other = write(path.parent / "other" / path.name, seed)
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl", ".npz"])
def test_a_replaced_file_is_named_and_nothing_of_it_is_kept(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"rows{suffix}", 0)
    split = opened(path, tmp_path)
    right = np.concatenate([split.features(shard)[0] for shard in split.shards])
    encoder = FeatureEncoder(EncoderSettings(kind="identity", dimension=1))
    store = EmbeddingStore.open(
        str(tmp_path / "store"), split=split, encoder_id="e", preprocessing_digest="p", dimension=1
    )
    embed_each(split, split.shards[:1], encoder, store)
    replaced(path, 1)
    elsewhere = pickle.loads(pickle.dumps(split))
    for reader in (split, elsewhere):
        with pytest.raises(SplitChangedError, match=rf"{path.name}: was replaced or written to since the split"):
            reader.features(reader.shards[1])
        with pytest.raises(SplitChangedError):
            list(reader.input_readers(reader.shards[1]))
        with pytest.raises(SplitChangedError):
            embed_each(reader, reader.shards, encoder, store)
    assert store.pending() == split.shards[1:]
    # What the index holds is of the first content, and stays readable.
    np.testing.assert_array_equal(elsewhere.targets(elsewhere.shards[0]), table(0)["y"][:20])
    assert opened(path, tmp_path).digest != split.digest
    write(path, 0)
    again = opened(path, tmp_path)
    assert again.digest == split.digest
    np.testing.assert_array_equal(np.concatenate([again.features(shard)[0] for shard in again.shards]), right)


def test_a_file_that_is_replaced_while_it_is_indexed_is_no_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from congruence.tasks.data import index

    path, original = write(tmp_path / "rows.csv", 0), index.write_part

    def slow(*arguments: object, **options: object) -> object:
        replaced(path, 1)
        return original(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "write_part", slow)
    with pytest.raises(SplitChangedError, match=r"rows\.csv"):
        opened(path, tmp_path)
    monkeypatch.undo()
    assert opened(path, tmp_path).digest == opened(path, tmp_path / "fresh").digest


def test_an_image_beside_the_table_is_the_one_that_was_indexed(tmp_path: Path) -> None:
    for number in range(3):
        Image.fromarray(np.full((4, 4, 3), 80 * number, np.uint8)).save(tmp_path / f"{number}.png")
    rows = pd.DataFrame({"image": [f"{number}.png" for number in range(4)], "y": 1.0})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    settings = SplitSettings(uri=str(tmp_path / "rows.csv"), input="image", target="y")
    split = open_split(settings, tmp_path / "index")
    (shard,) = split.shards
    first, _, _, absent = list(split.read_encoder_inputs(shard))
    assert first == (tmp_path / "0.png").read_bytes()
    assert isinstance(absent, InvalidRow)
    shutil.copy(tmp_path / "2.png", tmp_path / "1.png")
    with pytest.raises(SplitChangedError, match=r"1\.png: was replaced"):
        list(split.read_encoder_inputs(shard))
    (tmp_path / "1.png").unlink()
    with pytest.raises(SplitChangedError, match=r"1\.png: cannot be read any more \(file '1\.png' does not exist\)"):
        split.frame(shard, ["image"])


def test_objects_are_known_by_what_listing_and_request_both_say(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    data = write(tmp_path / "rows.parquet", 0).read_bytes()
    files.pipe_file("/replaced/rows.parquet", data)
    settings = SplitSettings(uri="memory://replaced", input="a", input_kind="features", target="y")
    split = open_split(settings, tmp_path / "index")
    split.features(split.shards[0])
    files.pipe_file("/replaced/rows.parquet", data)
    with pytest.raises(SplitChangedError, match=r"rows\.parquet"):
        split.features(split.shards[0])
