"""What is measured of the pictures of a split: a row each, whatever the shards, and nothing of what is no picture."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from saved_pictures import saved

from congruence.flows.operations import score_inputs
from congruence.flows.operations.score_inputs import pictures_of
from congruence.kernels.trust.columns import PICTURE_COLUMNS, picture_statistics
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split, open_split
from congruence.tasks.data.usable import beginnings, measured_picture, picture_table, thumbnails
from congruence.tasks.store.embeddings import StoreError
from congruence.tasks.store.objects import ObjectStore


def test_every_picture_is_measured_in_the_order_of_the_rows(image_split: Any, rows: Any) -> None:
    frame = rows(45)
    frame.loc[7, "image"] = b"no image"
    table = picture_table(open_split(image_split(45, frame=frame)), 10_000)
    assert tuple(table.columns) == PICTURE_COLUMNS
    assert np.flatnonzero(table.isna().all(axis=1)).tolist() == [7]
    for row in (0, 22, 44):
        picture = Image.open(io.BytesIO(frame["image"][row])).convert("RGB")
        np.testing.assert_array_equal(table.iloc[row], measured_picture(picture))
        scaled = np.repeat(np.repeat(np.asarray(picture), 16, axis=0), 16, axis=1)  # 12 pixels to 192
        np.testing.assert_allclose(table["brightness"][row], picture_statistics(scaled)[0], atol=0.005)


def test_thumbnails_show_what_the_encoder_sees(image_split: Any, rows: Any) -> None:
    frame = rows(6)
    frame.loc[2, "image"], frame.loc[4, "image"] = saved(np.full((40, 50), 0x8000, dtype=np.uint16)), b"no image"
    grey, none, first = thumbnails(open_split(image_split(6, frame=frame)))([2, 4, 0])
    assert set(np.asarray(grey).ravel()) == {0x80}
    assert none.getpixel((0, 0)) == (211, 211, 211)
    picture = Image.open(io.BytesIO(frame["image"][0])).convert("RGB")
    np.testing.assert_array_equal(np.asarray(first), np.asarray(picture))


def test_texts_are_shown_by_their_beginnings(tmp_path: Path) -> None:
    pd.DataFrame({"text": ["a", "b" * 3000, "c"], "y": [1.0, 2.0, 3.0]}).to_csv(tmp_path / "t.csv", index=False)
    split = open_split(SplitSettings(uri=str(tmp_path / "t.csv"), input="text", input_kind="text", target="y"))
    assert beginnings(split)([1, 0]) == ["b" * 1000, "a"]


def test_pictures_above_the_limit_are_not_decoded(image_split: Any) -> None:
    assert picture_table(open_split(image_split(3)), 100).isna().all().all()


def test_pictures_are_measured_once_whatever_the_split_is_called(
    image_split: Any, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = ObjectStore(str(tmp_path / "store"), {}), list[str]()

    def measured(split: Split, most: int) -> pd.DataFrame:
        asked.append(f"{split.name} {most}")
        return picture_table(split, most)

    monkeypatch.setattr(score_inputs, "picture_table", measured)
    first = open_split(image_split(45))
    table = pictures_of(first, store, 10_000)
    moved = open_split(image_split(45, "elsewhere", shard_rows=9, name="moved"))
    pd.testing.assert_frame_equal(pictures_of(moved, store, 10_000), table)
    (key,) = store.objects("pictures")
    pictures_of(first, store, 100)
    others = rows(45)
    others.loc[3, "image"] = others.loc[4, "image"]
    changed = open_split(image_split(45, "others", frame=others))
    pictures_of(changed, store, 10_000)
    assert asked == [f"{first.name} 10000", f"{first.name} 100", f"{changed.name} 10000"]
    store.put(key, (store.get(key) or b"")[:-40])
    with pytest.raises(StoreError, match=rf"{key} is damaged .*; delete this file and run again"):
        pictures_of(first, store, 10_000)
