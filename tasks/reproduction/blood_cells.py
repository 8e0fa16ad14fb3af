"""Photographs of blood smears with their numbers of red cells (BCCD, github.com/Shenggan/BCCD_Dataset).

No network that knows photographs is shipped, and the shipped CLIP sees nothing of the cells: ridge regression on its
embeddings explains none of the counts' variance, on colours and textures 30 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from congruence.kernels.arrays import Array
from congruence.tasks.reproduction.counted_images import CountedImages, Encode

SPLITS = ("train", "val", "test")
_SIZE = (112, 84)
_LEVELS, _RINGS = 16, 24


def blood_cells(folder: Path) -> dict[str, CountedImages]:
    """The data set's own splits, without the photographs whose red cells nobody counted.

    ``folder`` holds ``labels.csv`` (path, rbc, split, rbc_unlabelled) and the photographs that it names.
    """
    table = pd.read_csv(folder / "labels.csv")
    table = table[table["rbc_unlabelled"] == 0]
    return {name: _read(folder, table[table["split"] == name]) for name in SPLITS}


def _read(folder: Path, table: pd.DataFrame) -> CountedImages:
    images = []
    for path in table["path"]:
        with Image.open(folder / path) as file:
            images.append(file.convert("RGB"))
    return CountedImages(tuple(images), table["rbc"].to_numpy(np.float64))


def colours_and_textures(fitted: Sequence[Image.Image]) -> Encode:
    """An encoder: shares of each colour's levels, log power by frequency; standardised on ``fitted``, of unit norm."""
    known = _described(fitted)
    center, scale = known.mean(axis=0), np.maximum(known.std(axis=0), 1e-6)

    def encode(images: Sequence[Image.Image]) -> Array:
        rows = (_described(images) - center) / scale
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))

    return encode


def _described(images: Sequence[Image.Image]) -> Array:
    """(n, 3 (16 + 24)) numbers of each image's three colours."""
    colours = np.stack([np.asarray(image.resize(_SIZE), dtype=np.float64) / 255.0 for image in images])
    planes = np.moveaxis(colours, 3, 1)
    height, width = planes.shape[2:]
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    ring = np.digitize(frequency, np.linspace(0.0, 0.5, _RINGS + 1))
    power = np.abs(np.fft.rfft2(planes - planes.mean(axis=(2, 3), keepdims=True))) ** 2
    texture = [np.log(power[:, :, ring == place].mean(axis=2) + 1e-9) for place in range(1, _RINGS + 1)]
    level = np.minimum((planes * _LEVELS).astype(int), _LEVELS - 1)
    shares = [(level == place).mean(axis=(2, 3)) for place in range(_LEVELS)]
    return np.concatenate([*shares, *texture], axis=1)
