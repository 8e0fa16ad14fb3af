"""Splits to embed: small images that differ from each other, in any format that a split may have."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from congruence.tasks.data.settings import SplitSettings


def _jpeg(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG", quality=90)
    return stream.getvalue()


@pytest.fixture(scope="session")
def jpegs() -> list[bytes]:
    return [_jpeg(number) for number in range(300)]


@pytest.fixture(scope="session")
def embed_process() -> ModuleType:
    """The embedding script as a module: its encoder and how it embeds."""
    path = Path(__file__).with_name("embed_process.py")
    spec = importlib.util.spec_from_file_location("embed_process", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
        pq.write_table(
            pa.Table.from_pandas(rows(count) if frame is None else frame, preserve_index=False), path / "0.parquet"
        )
        settings = {
            "uri": str(path),
            "key": "key",
            "input": "image",
            "target": "angle",
            "slices": ["digit"],
            "shard_rows": 20,
        }
        return SplitSettings.model_validate(settings | changes)

    return write
