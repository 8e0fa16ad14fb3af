"""Splits to embed: small images that differ from each other, in any format that a split may have."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from saved_pictures import noise, saved

from congruence.tasks.data.settings import SplitSettings


@pytest.fixture(scope="session")
def jpegs() -> list[bytes]:
    return [saved(noise(12, 12, number), "JPEG", quality=90) for number in range(300)]


@pytest.fixture
def rows(jpegs: list[bytes]) -> Callable[[int], pd.DataFrame]:
    """``count`` labelled images: key, image, angle, digit."""

    def make(count: int) -> pd.DataFrame:
        angles = np.random.default_rng(1).normal(size=len(jpegs))[:count]
        keys = [f"image-{number}" for number in range(count)]
        return pd.DataFrame(
            {"key": keys, "image": jpegs[:count], "angle": angles, "digit": [number % 3 for number in range(count)]}
        )

    return make


@pytest.fixture
def image_split(tmp_path: Path, rows: Callable[[int], pd.DataFrame]) -> Callable[..., SplitSettings]:
    """Writes a Parquet split of ``count`` images and returns its settings."""

    def write(count: int, folder: str = "split", frame: pd.DataFrame | None = None, **changes: object) -> SplitSettings:
        path = tmp_path / folder
        path.mkdir(exist_ok=True)
        (rows(count) if frame is None else frame).to_parquet(path / "0.parquet", index=False)
        base = {"uri": str(path), "key": "key", "input": "image", "target": "angle", "slices": ["digit"]}
        return SplitSettings.model_validate(base | {"shard_rows": 20} | changes)

    return write
