"""Compressed arrays are decompressed once on a machine, and never shown in a state that the file no longer has."""

from __future__ import annotations

import logging
import os
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from congruence.kernels.arrays import Array
from congruence.tasks.data import Split, SplitError, SplitSettings, open_split

ROWS = 3000


@pytest.fixture
def x(tmp_path: Path) -> Array:
    return save(tmp_path / "split.npz", 1)


def save(path: Path, seed: int) -> Array:
    x = np.random.default_rng(seed).normal(size=(ROWS, 4))
    np.savez_compressed(path, x=x, y=x[:, 0])
    return x


def opened(tmp_path: Path) -> Split:
    settings = SplitSettings(
        uri=str(tmp_path / "split.npz"), input="x", input_kind="features", target="y", shard_rows=200
    )
    return open_split(settings, tmp_path / "plans", tmp_path / "copies")


def rows(split: Split) -> Array:
    return np.stack([row for shard in split.shards for row in split.read_encoder_inputs(shard)])  # type: ignore[arg-type]


def copies(tmp_path: Path) -> dict[Path, int]:
    found = [path for path in (tmp_path / "copies").rglob("*") if path.is_file() and path.name != "lock"]
    return {path: path.stat().st_ino for path in found}


def test_every_shard_is_read_from_one_copy(tmp_path: Path, x: Array) -> None:
    split = opened(tmp_path)
    made = copies(tmp_path)
    assert len(made) == 2  # x and y
    assert sorted(path.stat().st_size for path in made) == [128 + 8 * ROWS, 128 + 8 * 4 * ROWS]
    travelled: Split = pickle.loads(pickle.dumps(split))
    np.testing.assert_array_equal(rows(travelled), x)
    np.testing.assert_array_equal(np.concatenate([split.targets(shard) for shard in split.shards]), x[:, 0])
    assert copies(tmp_path) == made


def test_who_comes_at_the_same_time_waits_for_one_copy(tmp_path: Path, x: Array) -> None:
    split = opened(tmp_path)
    for path in copies(tmp_path):
        path.unlink()
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda _: rows(opened(tmp_path)), range(8)):
            np.testing.assert_array_equal(found, x)
    assert len(copies(tmp_path)) == 1
    assert rows(split).shape == x.shape


def test_a_file_that_changed_is_decompressed_again(tmp_path: Path, x: Array) -> None:
    before = opened(tmp_path)
    old = copies(tmp_path)
    for path in old:
        os.utime(path, (0, 0))  # last used long ago
    other = save(tmp_path / "split.npz", 2)
    after = opened(tmp_path)
    np.testing.assert_array_equal(rows(after), other)
    assert after.digest != before.digest
    assert not set(old) & set(copies(tmp_path))


def test_a_copy_that_is_cut_off_is_made_again(tmp_path: Path, x: Array) -> None:
    split = opened(tmp_path)
    for path in copies(tmp_path):
        os.truncate(path, 1000)
    np.testing.assert_array_equal(rows(split), x)


@pytest.mark.parametrize("with_copies", [True, False])
def test_damaged_bytes_are_told(tmp_path: Path, x: Array, with_copies: bool) -> None:
    path = tmp_path / "split.npz"
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("x.npy")
    content = bytearray(path.read_bytes())
    content[member.header_offset + member.compress_size // 2] ^= 0xFF
    path.write_bytes(content)
    settings = SplitSettings(uri=str(path), input="x", input_kind="features", target="y")
    with pytest.raises(SplitError, match=r"split\.npz, member 'x\.npy': is damaged"):
        open_split(settings, copies=tmp_path / "copies" if with_copies else None)


def test_without_a_place_for_copies_the_rows_are_the_same(
    tmp_path: Path, x: Array, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "copies").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        split = opened(tmp_path)
    assert "decompressed again for every shard" in caplog.text
    np.testing.assert_array_equal(rows(split), x)
