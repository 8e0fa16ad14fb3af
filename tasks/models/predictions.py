"""Predictions of one version on one split, shard by shard on disk: a finished shard is never predicted again.

A distribution is stored as the arrays of its parameters with the name of its family (NPZ, no pickle), written beside
its final name and then renamed, so a file that exists is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution, Mixture
from congruence.tasks.contract import PredictiveModel
from congruence.tasks.contract.settings import families, family_name
from congruence.tasks.sources import Shard, Split


def predict_split(
    model: PredictiveModel,
    split: Split,
    valid: Array,
    folder: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> Distribution:
    """Predictive distributions of the valid rows of a split, in split order.

    Args:
        model: the version.
        split: the split.
        valid: which rows to predict, (rows,) of bool; the others cannot be embedded or have no target.
        folder: where finished shards are kept, for this version and this split (its digest) alone.
        progress: told the number of rows after each shard.

    Raises:
        ContractError: the model's output is not what its contract says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts: list[Distribution] = []
    for shard in split.shards:
        mask = valid[shard.start : shard.start + shard.rows]
        if mask.any():
            parts.append(_predict_shard(model, split, shard, mask, _path(folder, shard, mask)))
        if progress is not None:
            progress(shard.rows)
    return concatenate(parts)


def _path(folder: Path, shard: Shard, mask: Array) -> Path:
    rows = hashlib.sha256(np.packbits(mask).tobytes()).hexdigest()[:8]
    return folder / f"{shard.start:09d}-{shard.rows}-{rows}.npz"


def _predict_shard(model: PredictiveModel, split: Split, shard: Shard, mask: Array, path: Path) -> Distribution:
    if path.exists():
        try:
            return read_distribution(path)
        except (zipfile.BadZipFile, ValueError, KeyError, EOFError):
            path.unlink()  # damaged after it was written: predict it again
    frame = split.frame(shard, split.settings.model_input_columns)[mask]
    predicted = model.predict(frame, start=shard.start)
    write_distribution(path, predicted)
    return predicted


def concatenate(parts: Sequence[Distribution]) -> Distribution:
    """The rows of several parts of one version's predictions."""
    return parts[0] if len(parts) == 1 else type(parts[0]).concatenate(parts)


def write_distribution(path: Path, distribution: Distribution) -> None:
    """Store ``distribution`` at ``path``, whole or not at all."""
    arrays: dict[str, Array] = {}
    description = json.dumps(_describe(distribution, arrays, "")).encode()
    arrays["description"] = np.frombuffer(description, dtype=np.uint8)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_distribution(path: Path) -> Distribution:
    """The distribution stored at ``path``.

    Raises:
        ValueError, KeyError, zipfile.BadZipFile: the file is damaged.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    return _restore(json.loads(arrays["description"].tobytes()), arrays)


def _describe(distribution: Distribution, arrays: dict[str, Array], prefix: str) -> dict[str, Any]:
    """The family and the names of its arrays in the constructor's order; a mixture's components one below it."""
    if isinstance(distribution, Mixture):
        arrays[f"{prefix}weights"] = distribution.weights
        parts = [_describe(part, arrays, f"{prefix}{k}.") for k, part in enumerate(distribution.components)]
        return {"family": "mixture", "components": parts}
    parameters = distribution.parameters()
    arrays |= {f"{prefix}{name}": values for name, values in parameters.items()}
    return {"family": family_name(type(distribution)), "parameters": list(parameters)}


def _restore(description: dict[str, Any], arrays: dict[str, Array], prefix: str = "") -> Distribution:
    if description["family"] == "mixture":
        parts = [_restore(part, arrays, f"{prefix}{k}.") for k, part in enumerate(description["components"])]
        return Mixture(arrays[f"{prefix}weights"], parts)
    return families()[description["family"]](*(arrays[f"{prefix}{name}"] for name in description["parameters"]))
