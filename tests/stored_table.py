"""Requests, what comes of them, and what production stored of them: for tests of stored predictions."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ROWS = 300


def requests(rows: int = ROWS, seed: int = 0) -> pd.DataFrame:
    """Inputs of requests, and what comes of them."""
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"request": [f"r{n}" for n in range(rows)], "x1": draw.normal(size=rows)})
    frame["x2"] = draw.uniform(size=rows)
    frame["y"] = frame["x1"] + (0.5 + frame["x2"]) * draw.normal(size=rows)
    return frame


def predict(frame: pd.DataFrame, factor: float = 1.0) -> pd.DataFrame:
    return pd.DataFrame({"loc": frame["x1"], "scale": factor * (0.5 + frame["x2"])})


def scored(frame: pd.DataFrame, version: str, factor: float = 1.0) -> pd.DataFrame:
    """Rows as production stores them."""
    made = predict(frame, factor).rename(columns={"loc": "mu", "scale": "sigma"})
    return pd.concat([frame[["request", "x1", "x2"]], made], axis=1).assign(version=version)


def content(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "predictions": {
            "from": str(folder / "inference*.parquet"),
            "key": "request",
            "version": "version",
            "targets": {"uri": str(folder / "outcomes.parquet"), "key": "id", "target": "y"},
            "family": "normal",
            "columns": {"loc": "mu", "scale": "sigma"},
        },
        "splits": [{"name": "production", "input": ["x1", "x2"], "input_kind": "features"}],
        "encoder": {"kind": "identity"},
        "metrics": ["cce", "congruence_test", "calibration", "nll", "crps"],
        "tracking": {"report": False},
        **changes,
    }


def write(folder: Path, labels: pd.DataFrame, *tables: pd.DataFrame) -> None:
    pd.concat(tables).to_parquet(folder / "inference.parquet", index=False)
    labels.rename(columns={"request": "id"})[["id", "y"]].to_parquet(folder / "outcomes.parquet", index=False)
