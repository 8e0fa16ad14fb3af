"""p-values of true models over simulated splits: kept on disk while they are made, and what a table says of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats


class KeptPValues:
    """Rows of p-values (or of other numbers of a split) by model.

    Args:
        path: of a NumPy archive that every ``save`` writes; what is there already is gone on with.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[str, list[np.ndarray]] = {}
        if path is not None and path.exists():
            with np.load(path) as kept:
                self._rows = {name: list(kept[name]) for name in kept.files}

    def add(self, name: str, *values: float) -> None:
        self._rows.setdefault(name, []).append(np.array(values, dtype=float))

    def save(self) -> None:
        if self._path is not None:
            arrays: dict[str, Any] = {name: np.array(rows) for name, rows in self._rows.items()}
            np.savez(self._path, **arrays)

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        """By model: one row a split, (splits, columns)."""
        for name, rows in self._rows.items():
            yield name, np.array(rows)


def share(hits: np.ndarray) -> str:
    """A share of splits with its standard error, ".052 (.007)"."""
    found = float(np.mean(hits))
    error = np.sqrt(found * (1.0 - found) / len(hits))
    return f"{found:.3f} ({error:.3f})".replace("0.", ".")


def uniformity(p: np.ndarray, draws: int) -> float:
    """Kolmogorov-Smirnov p-value of Monte-Carlo p-values, each spread evenly over its step of 1 / (draws + 1)."""
    smooth = p - np.random.default_rng(0).uniform(size=len(p)) / (draws + 1)
    return float(scipy.stats.kstest(smooth, "uniform").pvalue)
