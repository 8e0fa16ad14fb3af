"""Photographs of blood smears with their numbers of red cells (BCCD, github.com/Shenggan/BCCD_Dataset)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from congruence.tasks.reproduction.counted_images import CountedImages

SPLITS = ("train", "val", "test")


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
