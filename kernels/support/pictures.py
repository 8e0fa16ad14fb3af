"""What a picture is like before any encoder sees it: brightness, contrast, detail, roughness and colour.

An encoder that never saw noise or blank pictures may put them in the midst of ordinary ones, where no distance finds
them. Five numbers of the pixels do, whatever the encoder: as columns of a table they have ranges as other columns have,
in logarithms, since what is without contrast is infinitely far from any contrast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from congruence.kernels.arrays import Array

if TYPE_CHECKING:
    import pandas as pd

PICTURE_COLUMNS = ("brightness", "contrast", "detail", "roughness", "colourfulness")
"""Mean of the luminance; its standard deviation; root mean square of the difference of neighbouring pixels; detail over
contrast (white noise has 1.41, smooth shades less than .1); root mean square of red and of blue less luminance."""

PICTURE_SIDE = 64
"""Pixels a side to which pictures are scaled before they are measured, so that their size does not enter."""

SMALLEST = 0.005
"""Of all luminance there is: what is below is taken for none."""

_SATURATED = 0.01

_LUMINANCE = np.array([0.299, 0.587, 0.114])


def picture_statistics(pixels: Any) -> Array:
    """``PICTURE_COLUMNS`` of 8-bit pixels (height, width, 3), (5,), each at least ``SMALLEST``."""
    colours = np.asarray(pixels, dtype=np.float64) / 255.0
    grey = colours @ _LUMINANCE
    contrast = max(float(grey.std()), SMALLEST)
    across, down = np.diff(grey, axis=1), np.diff(grey, axis=0)
    detail = np.sqrt((np.sum(across**2) + np.sum(down**2)) / max(1, across.size + down.size))
    apart = colours[:, :, [0, 2]] - grey[:, :, None]
    found = [grey.mean(), contrast, detail, max(float(detail), SMALLEST) / contrast, np.sqrt(np.mean(apart**2))]
    return np.maximum(np.asarray(found, dtype=np.float64), SMALLEST)


def is_of_pictures(table: pd.DataFrame) -> bool:
    """Whether the columns of a table are ``PICTURE_COLUMNS``."""
    return tuple(table.columns) == PICTURE_COLUMNS


def blank(table: pd.DataFrame) -> Array:
    """Pictures of one shade, or black or white nearly everywhere, (n,) booleans; no row of another table is one."""
    if not is_of_pictures(table):
        return np.zeros(len(table), dtype=bool)
    brightness, contrast = (table[name].to_numpy(np.float64) for name in PICTURE_COLUMNS[:2])
    return np.asarray((contrast <= SMALLEST) | (brightness <= _SATURATED) | (brightness >= 1.0 - _SATURATED))
