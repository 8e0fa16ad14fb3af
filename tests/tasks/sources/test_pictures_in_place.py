"""Pictures stay where they are: in Parquet or Arrow files, in tars, in files beside a table, or in arrays as PNG."""

import io
import os
import pickle
import shutil
import tarfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from encoder_inputs import encoder_inputs
from PIL import Image
from source_forms import ROWS, add, described, forms, pictures

from congruence.tasks.data import sources
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.sources import SourceFile
from congruence.tasks.data.sources.tables import read_parquet
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.runtime.errors import SplitChangedError, SplitError
from congruence.tasks.scores.points import row_frame


@pytest.mark.parametrize("form", forms("pictures"))
def test_every_source_gives_the_pictures_that_were_written(form: str, tmp_path: Path) -> None:
    frame = pictures()
    asked = described(tmp_path / "data", form, pictures())
    split: Split = pickle.loads(pickle.dumps(open_split(asked, tmp_path / "index")))
    read = [value for shard in split.shards for value in encoder_inputs(split, shard)]
    assert read == frame["image"].tolist()
    assert split.keys().tolist() == frame["id"].tolist()
    middle = split.frame(split.shards[1])
    assert middle["group"].tolist() == frame["group"][30:60].tolist()
    assert middle[split.settings.input].tolist() == frame["image"][30:60].tolist()
    for number in (2, 0, 1):  # in any order, and only in part
        assert next(split.input_readers(split.shards[number]))() == frame["image"][30 * number]
    size = sum(path.stat().st_size for path in (tmp_path / "index").rglob("*.parquet"))
    assert size < frame["image"].map(len).sum() / 5


def test_the_shards_have_the_same_digests_wherever_pictures_are(tmp_path: Path) -> None:
    splits = [open_split(described(tmp_path / form, form, pictures())) for form in forms("pictures")]
    assert len({tuple(shard.digest for shard in split.shards) for split in splits}) == 1


def test_a_group_of_rows_is_decoded_once_by_who_reads_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pictures(600)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), tmp_path / "data" / "0.parquet")
    base = {"uri": str(tmp_path / "data"), "input": "image", "target": "y", "shard_rows": 50}
    split = open_split(SplitSettings.model_validate(base), tmp_path / "index")
    whole, begun = sources.all_sources()["parquet"], list[int]()

    def noted(file: SourceFile) -> Any:
        begun.append(file.start)
        return read_parquet(file)

    monkeypatch.setattr(sources, "_SOURCES", {**sources.all_sources(), "parquet": replace(whole, read=noted)})
    split = pickle.loads(pickle.dumps(split))
    for shard in split.shards:
        read = [reader() for reader in split.input_readers(shard)]
        assert read == frame["image"][shard.start : shard.stop].tolist()
    assert begun == [0]


def test_appended_rows_leave_the_full_shards_before_them_as_they_were(tmp_path: Path) -> None:
    before = open_split(described(tmp_path / "before", "parquet", pictures(75)))
    after = open_split(described(tmp_path / "after", "tar", pictures(130)))
    assert [s.digest for s in after.shards[:2]] == [s.digest for s in before.shards[:2]]
    assert after.shards[2].digest != before.shards[2].digest
    assert after.digest != before.digest


def test_the_digest_sees_content_and_not_names_or_partition(tmp_path: Path) -> None:
    frame = pictures()
    original = open_split(described(tmp_path / "a", "parquet", pictures()))
    assert open_split(described(tmp_path / "b", "parquet", pictures(), shard_rows=7)).digest == original.digest
    changed = frame.assign(image=[image + b"." * (row == 41) for row, image in enumerate(frame["image"])])
    other = open_split(described(tmp_path / "c", "parquet of paths", changed))
    assert other.digest != original.digest
    assert [a.digest == b.digest for a, b in zip(other.shards, original.shards, strict=True)] == [True, False, True]
    relabelled = open_split(described(tmp_path / "d", "parquet", frame.assign(y=frame["y"] + 1.0)))
    assert relabelled.digest != original.digest
    assert relabelled.shards == original.shards


@pytest.mark.parametrize("form", forms("within"))
def test_pictures_in_a_file_that_is_replaced_end_the_run(form: str, tmp_path: Path) -> None:
    split = open_split(described(tmp_path / "data", form, pictures()), tmp_path / "index")
    described(tmp_path / "other", form, pictures().assign(image=b"another"))
    for path in sorted((tmp_path / "data").iterdir()):
        os.replace(tmp_path / "other" / path.name, path)
    for read in (partial(encoder_inputs, split), split.frame):
        with pytest.raises(SplitChangedError, match="was replaced or written to since"):
            list(read(split.shards[0]))  # type: ignore[operator]


def test_a_picture_beside_the_table_is_the_one_that_was_ingested(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.png").write_bytes(b"picture %d" % number)
    rows = pd.DataFrame({"image": [*(f"{number}.png" for number in range(4)), None], "y": 1.0})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    split = open_split(SplitSettings(uri=str(tmp_path / "rows.csv"), input="image", target="y"), tmp_path / "index")
    (shard,) = split.shards
    first, _, _, absent, unnamed = list(encoder_inputs(split, shard))
    assert first == b"picture 0"
    assert isinstance(absent, InvalidRow)
    assert isinstance(unnamed, InvalidRow)
    assert unnamed.reason == "column 'image' holds no path"
    shutil.copy(tmp_path / "2.png", tmp_path / "1.png")
    with pytest.raises(SplitChangedError, match=r"1\.png: was replaced"):
        list(encoder_inputs(split, shard))
    (tmp_path / "1.png").unlink()
    with pytest.raises(SplitChangedError, match=r"1\.png: cannot be read any more \(file '1\.png' does not exist\)"):
        split.frame(shard, ["image"])


def test_pictures_are_named_by_their_paths_where_these_are_the_key(tmp_path: Path) -> None:
    split = open_split(described(tmp_path / "data", "csv", pictures(), key="image"))
    paths = [f"images/{row}.jpg" for row in range(ROWS)]
    assert split.keys().tolist() == paths
    logged = row_frame(split, {}, np.ones(ROWS, dtype=bool))
    assert logged["key"].tolist() == paths
    assert split.frame(split.shards[0])["image"][0] == pictures()["image"][0]  # what a model is given


def test_pictures_beside_a_table_that_changed_are_looked_at_again(tmp_path: Path) -> None:
    asked = described(tmp_path / "data", "csv", pictures())
    before = open_split(asked, tmp_path / "index")
    (tmp_path / "data/images/7.jpg").write_bytes(b"another")
    (tmp_path / "data/images/41.jpg").unlink()
    changed = open_split(asked, tmp_path / "index")
    assert changed.digest == open_split(asked).digest != before.digest
    assert [a == b for a, b in zip(changed.shards, before.shards, strict=True)] == [False, False, True]


def test_pictures_in_an_array_reach_the_encoder_without_loss(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", image=pixels, y=np.arange(5.0))
    split = open_split(SplitSettings(uri=str(tmp_path / "images.npz"), input="image", target="y"))
    read = [np.asarray(Image.open(io.BytesIO(value))) for value in encoder_inputs(split, split.shards[0])]
    np.testing.assert_array_equal(np.stack(read), pixels)


def test_members_of_a_sample_that_lie_apart_are_told_how_to_be_written(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "rows.tar", "w") as archive:
        for extension in ("jpg", "cls"):
            for row in range(3):
                add(archive, f"{row}.{extension}", b"%d" % row)
    with pytest.raises(SplitError, match=r"holds '0' twice: .* side by side, as tar --sort=name does"):
        open_split(SplitSettings(uri=str(tmp_path / "rows.tar"), input="jpg", target="cls"))
