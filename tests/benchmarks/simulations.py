"""What the simulations share: their command line, inputs like real embeddings, numbers kept on disk, tables."""

import argparse
import os
import platform
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from congruence.kernels import EXACT

AT = 0.05
# Eigenvalues of the covariance of 1,332 real ViT-B-32 image embeddings (not normalised), and their mean's squared norm.
SPECTRUM_AT = np.array([1, 2, 3, 6, 11, 21, 51, 101, 201, 401, 512])
SPECTRUM = np.array([5.19, 4.14, 3.23, 1.61, 0.823, 0.450, 0.170, 0.0627, 0.0190, 0.00228, 0.0005])
MEAN_SQUARED = 71.9


def embeddings(n: int, seed: int = 0, d: int = 512) -> np.ndarray:
    """Gaussian rows with the mean and spectrum of real CLIP embeddings, float32, (n, d)."""
    basis = np.random.default_rng(7)
    values = np.exp(np.interp(np.log(np.arange(1, d + 1)), np.log(SPECTRUM_AT), np.log(SPECTRUM)))
    rotation, _ = np.linalg.qr(basis.standard_normal((d, d)))
    mean = basis.standard_normal(d)
    mean *= np.sqrt(MEAN_SQUARED) / np.linalg.norm(mean)
    factor = (rotation * np.sqrt(values)).T.astype(np.float32)
    rng = np.random.default_rng(seed)
    x = np.empty((n, d), dtype=np.float32)
    for start in range(0, n, 65_536):
        rows = slice(start, min(start + 65_536, n))
        x[rows] = rng.standard_normal((rows.stop - rows.start, d), dtype=np.float32) @ factor + mean.astype(np.float32)
    return x


def problem(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Such inputs at unit norm, and a conditional mean and spread that are smooth in them."""
    x = EXACT.apply(embeddings(n, seed=seed))
    centred = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    signal = centred @ np.random.default_rng(11).standard_normal((x.shape[1], 2))
    signal /= signal.std(axis=0)
    return x, 20.0 + 5.0 * np.tanh(signal[:, 0]), 1.0 + 0.5 * np.tanh(signal[:, 1])


class Kept:
    """Numbers of a split (p-values, mostly) by model, one row a split.

    Args:
        path: of a NumPy archive that every ``save`` writes; what is there already is gone on with.
    """

    def __init__(self, path: Path | None = None) -> None:
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


def machine() -> None:
    """Print what the numbers that follow were made by."""
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}, "
          f"SciPy {scipy.__version__}\n")  # fmt: skip


def head(*names: str) -> None:
    """Print the head of a Markdown table."""
    print("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|", flush=True)


def row(*cells: object) -> None:
    """Print a row of it; fractions with three digits."""
    print(
        "| " + " | ".join(f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in cells) + " |", flush=True
    )


def asked(about: str | None, parts: Collection[str] = (), /, **options: Any) -> argparse.Namespace:
    """What the command line gives: one of ``parts``, and options by their defaults.

    A default says what an option takes: False is a switch, a tuple the words to choose one of (by default the first), a
    list some values. A type stands for a value that is None unless it is given, and in a list for none by default.
    ``first`` is the number of the first split, ``keep`` the file of a ``Kept``.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    if parts:
        parser.add_argument("part", choices=list(parts))
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, list):
            kind = default[0]
            empty = isinstance(kind, type)
            parser.add_argument(flag, nargs="*", type=kind if empty else type(kind), default=[] if empty else default)
        elif isinstance(default, tuple):
            parser.add_argument(flag, choices=default, default=default[0])
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args()
