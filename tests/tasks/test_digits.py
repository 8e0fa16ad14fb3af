"""The demonstration data: a known law, no image on both sides, the same bytes every time."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy import stats

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.digits.dataset import digit_rows, noise_scale, write_digits
from congruence.tasks.digits.images import base_images, draw, labels


def test_no_digit_is_in_both_splits_and_none_is_left_out() -> None:
    train, test = base_images("train"), base_images("test")
    assert not set(train) & set(test)
    assert sorted([*train, *test]) == list(range(1797))
    assert not set(digit_rows("train", 4000).base) & set(digit_rows("test", 4000).base)


def test_each_split_holds_every_digit_in_equal_shares() -> None:
    shares = np.bincount(labels()[base_images("test")], minlength=10) / np.bincount(labels())
    np.testing.assert_allclose(shares, 0.4, atol=0.01)


def test_angles_and_noise_follow_the_law() -> None:
    rows = digit_rows("test", 4000, seed=5)
    residual = (rows.target - rows.angle) / noise_scale(rows.digit)
    assert stats.kstest(residual, "norm").pvalue > 0.01
    assert stats.kstest(rows.angle, stats.uniform(-60, 120).cdf).pvalue > 0.01
    np.testing.assert_array_equal(noise_scale([0, 4, 9]), [5.0, 15.0, 27.5])
    for digit in range(10):
        assert residual[rows.digit == digit].std() == pytest.approx(1.0, abs=0.15)


def test_more_rows_begin_with_the_same_rows() -> None:
    few, many = digit_rows("train", 100, seed=3), digit_rows("train", 2000, seed=3)
    assert many.key[:100] == few.key
    for name in ("base", "angle", "digit", "target"):
        np.testing.assert_array_equal(getattr(many, name)[:100], getattr(few, name))
    assert not np.array_equal(digit_rows("train", 100, seed=4).angle, few.angle)


def test_positive_angles_turn_to_the_left() -> None:
    one = int(base_images("train")[labels()[base_images("train")] == 1][0])
    ink = np.asarray(draw(one, 45.0), dtype=float)
    rows, columns = np.mgrid[:64, :64] - 31.5
    # Turned to the left a stroke leans from the upper left to the lower right.
    assert (ink * rows * columns).sum() > 0


def test_no_rotation_cuts_a_stroke_off() -> None:
    for base in base_images("test")[:40]:
        ink = [np.asarray(draw(int(base), angle), dtype=float) for angle in (0.0, 60.0, -60.0)]
        assert all(image[[0, -1]].max() < 64 and image[:, [0, -1]].max() < 64 for image in ink)
        np.testing.assert_allclose([image.sum() for image in ink], ink[0].sum(), rtol=0.03)


def test_files_are_the_same_bytes_and_hold_the_rows(tmp_path: Path) -> None:
    first = write_digits(tmp_path / "a", "test", rows=50, seed=1, shard_rows=20)
    again = write_digits(tmp_path / "b", "test", rows=50, seed=1, shard_rows=20)
    assert [p.name for p in first] == ["test-00000.parquet", "test-00001.parquet", "test-00002.parquet"]
    assert [hashlib.sha256(p.read_bytes()).digest() for p in first] == [
        hashlib.sha256(p.read_bytes()).digest() for p in again
    ]
    assert not list(tmp_path.rglob("*.partial"))
    table = pq.read_table(first[0])
    assert table.column_names == ["key", "image", "angle", "digit", "target"]
    assert table.num_rows == 20
    rows = digit_rows("test", 50, seed=1)
    assert tuple(table["key"].to_pylist()) == rows.key[:20]
    np.testing.assert_array_equal(table["target"].to_numpy(), rows.target[:20])
    picture = Image.open(io.BytesIO(table["image"][3].as_py()))
    np.testing.assert_array_equal(np.asarray(picture), np.asarray(draw(int(rows.base[3]), float(rows.angle[3]))))


def test_a_split_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="rows is 0"):
        digit_rows("test", 0)
    with pytest.raises(InvalidInputError, match="shard_rows is 0"):
        write_digits(tmp_path, "test", shard_rows=0)
