"""Splits are read from an object store as from a disk."""

import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from embed_process import PixelEncoder, embed_all, open_store
from encoder_inputs import encoder_inputs
from source_forms import add

from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split
from congruence.tasks.encoders.base import InvalidRow


def test_a_split_is_read_from_s3(s3: dict[str, Any], image_split: Any, tmp_path: Path) -> None:
    import s3fs

    local = image_split(45)
    s3fs.S3FileSystem(**s3).put(local.uri + "/0.parquet", "congruence/split/0.parquet")
    there = open_split(local.model_copy(update={"uri": "s3://congruence/split", "storage_options": s3}))
    here = open_split(local)
    assert there.digest == here.digest
    assert there.shards == here.shards
    store = open_store("s3://congruence/from-s3", there, storage_options=s3)
    embed_all(there, store, PixelEncoder())
    on_disk = open_store(str(tmp_path / "store"), here)
    embed_all(here, on_disk, PixelEncoder())
    np.testing.assert_array_equal(store.read(), on_disk.read())


def test_manifests_tars_and_arrays_are_read_from_s3_as_from_a_disk(
    s3: dict[str, Any], jpegs: list[bytes], tmp_path: Path
) -> None:
    import s3fs

    (tmp_path / "manifest").mkdir()
    for row in range(5):
        (tmp_path / "manifest" / f"{row}.jpg").write_bytes(jpegs[row])
    lines = "".join(f"{row}.jpg,{row}\n" for row in (0, 1, 2, 3, 4, 9))
    (tmp_path / "manifest" / "rows.csv").write_text("image,y\n" + lines + "../secret.jpg,7\n")
    with tarfile.open(tmp_path / "rows.tar", "w") as archive:
        for row in range(5):
            add(archive, f"{row}.jpg", jpegs[row])
            add(archive, f"{row}.cls", b"1")
    np.savez(tmp_path / "rows.npz", x=np.eye(5), y=np.arange(5.0))
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    group.create_array("x", data=np.eye(5))
    group.create_array("y", data=np.arange(5.0))
    s3fs.S3FileSystem(**s3).put(f"{tmp_path}/", "congruence/sources/", recursive=True)
    columns = {
        "manifest/rows.csv": {"input": "image", "target": "y"},
        "rows.tar": {"input": "jpg", "target": "cls"},
        "rows.npz": {"input": "x", "target": "y", "input_kind": "features"},
        "rows.zarr": {"input": "x", "target": "y", "input_kind": "features"},
    }
    for name, roles in columns.items():
        here = open_split(SplitSettings.model_validate({"uri": str(tmp_path / name), **roles}))
        remote = {"uri": f"s3://congruence/sources/{name}", "storage_options": s3, **roles}
        there = open_split(SplitSettings.model_validate(remote), tmp_path / "plans")
        assert (there.digest, there.shards) == (here.digest, here.shards), name
        kept = open_split(SplitSettings.model_validate(remote), tmp_path / "plans")
        assert (kept.digest, kept.shards) == (here.digest, here.shards), name
        for mine, other in zip(
            encoder_inputs(here, here.shards[0]), encoder_inputs(there, there.shards[0]), strict=True
        ):
            if isinstance(mine, InvalidRow):
                assert isinstance(other, InvalidRow)
                assert mine.reason == other.reason
            else:
                np.testing.assert_array_equal(np.asarray(mine), np.asarray(other))
