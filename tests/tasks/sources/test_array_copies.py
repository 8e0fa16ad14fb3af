"""Arrays that cannot be read in place are copied once, and never shown in a state that the file no longer has."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import fsspec
import numpy as np
import pytest

from congruence.kernels.arrays import Array
from congruence.tasks.data.errors import SplitError
from congruence.tasks.data.opening import open_split
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split

ROWS = 3000


def save(path: Path, seed: int, write: Callable[..., None] = np.savez_compressed) -> Array:
    x = np.random.default_rng(seed).normal(size=(ROWS, 4))
    write(path, x=x, y=x[:, 0])
    return x


def opened(tmp_path: Path, uri: str | None = None) -> Split:
    settings = SplitSettings(
        uri=uri or str(tmp_path / "split.npz"), input="x", input_kind="features", target="y", shard_rows=200
    )
    return open_split(settings, tmp_path / "plans")


def rows(split: Split) -> Array:
    return np.stack([row for shard in split.shards for row in split.read_encoder_inputs(shard)])  # type: ignore[arg-type]


def copies(tmp_path: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in (tmp_path / "plans" / "arrays").iterdir()}


@pytest.mark.parametrize("write", [np.savez, np.savez_compressed])
def test_every_shard_is_read_from_one_copy(tmp_path: Path, write: Callable[..., None]) -> None:
    x = save(tmp_path / "split.npz", 1, write)
    split = opened(tmp_path)
    made = copies(tmp_path)
    assert sorted(path.stat().st_size for path in made) == [128 + 8 * ROWS, 128 + 8 * 4 * ROWS]
    travelled: Split = pickle.loads(pickle.dumps(split))
    np.testing.assert_array_equal(rows(travelled), x)
    np.testing.assert_array_equal(np.concatenate([split.targets(shard) for shard in split.shards]), x[:, 0])
    assert opened(tmp_path).digest == split.digest
    assert copies(tmp_path) == made


def test_a_copy_that_is_gone_is_made_again(tmp_path: Path) -> None:
    x = save(tmp_path / "split.npz", 1)
    digest = opened(tmp_path).digest
    for path in copies(tmp_path):
        path.unlink()
    again = opened(tmp_path)
    np.testing.assert_array_equal(rows(again), x)
    assert again.digest == digest


def test_a_file_that_changed_is_copied_again(tmp_path: Path) -> None:
    save(tmp_path / "split.npz", 1)
    before, old = opened(tmp_path), copies(tmp_path)
    other = save(tmp_path / "split.npz", 2)
    after = opened(tmp_path)
    np.testing.assert_array_equal(rows(after), other)
    assert after.digest != before.digest
    assert set(old) < set(copies(tmp_path))


def test_arrays_of_another_file_system_are_copied(tmp_path: Path) -> None:
    files = fsspec.filesystem("memory")
    x = save(tmp_path / "split.npz", 1)
    for name, array in (("x", x), ("y", x[:, 0])):
        np.save(tmp_path / f"{name}.npy", array)
        files.pipe_file(f"/arrays/{name}.npy", (tmp_path / f"{name}.npy").read_bytes())
    split = opened(tmp_path, "memory://arrays")
    np.testing.assert_array_equal(rows(split), x)
    assert split.digest == opened(tmp_path).digest


def test_damaged_bytes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "split.npz"
    save(path, 1)
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("x.npy")
    content = bytearray(path.read_bytes())
    content[member.header_offset + member.compress_size // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(SplitError, match=r"split\.npz, member 'x\.npy': is damaged"):
        opened(tmp_path)
