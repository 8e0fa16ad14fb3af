"""New pictures judged by labelled ones: noise, blanks and pictures of another kind are withheld, with reasons."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner

from congruence.flows.cli.app import app
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.digits.dataset import write_digits
from congruence.tasks.digits.images import encode_png

ORDINARY, STRANGE = 120, 8


def _predict(frame: pd.DataFrame) -> pd.DataFrame:
    sizes = {Image.open(io.BytesIO(image)).size for image in frame["image"]}
    if sizes - {(64, 64)}:
        raise ValueError("expected 64 x 64 pixels")
    return pd.DataFrame({"loc": frame["angle"], "scale": 5.0 + 2.5 * frame["digit"]})


def _strange() -> pd.DataFrame:
    """Noise, blanks, a slope of grey, pictures of a size that the version refuses, and one that is none."""
    rng = np.random.default_rng(0)
    slope = np.broadcast_to(np.linspace(0, 255, 64), (64, 64))
    pixels = {
        "noise": [rng.integers(0, 256, (64, 64)) for _ in range(STRANGE)],
        "blank": [np.full((64, 64), shade) for shade in np.linspace(0, 255, STRANGE)],
        "slope": [np.rot90(slope, turn) for turn in range(4)],
        "large": [rng.integers(0, 256, (80, 64)) for _ in range(3)],
    }
    rows = [
        (f"{kind}-{number}", encode_png(Image.fromarray(one.astype(np.uint8))))
        for kind, some in pixels.items()
        for number, one in enumerate(some)
    ]
    return pd.DataFrame([*rows, ("broken-0", b"no image")], columns=["key", "image"]).assign(angle=0.0, digit=1)


@pytest.mark.usefixtures("prefect_server")
def test_pictures_of_another_kind_are_withheld_and_ordinary_ones_are_not(registry: Any) -> None:
    folder = registry.folder
    write_digits(folder / "labelled", "test", rows=300)
    (ordinary,) = write_digits(folder / "ordinary", "test", rows=ORDINARY, seed=1)
    fresh = pd.concat([pd.read_parquet(ordinary).drop(columns="target"), _strange()], ignore_index=True)
    fresh.to_parquet(folder / "pictures.parquet")
    example = pd.read_parquet(ordinary)[["image", "angle", "digit"]].head(2)
    log_predictive_model(
        _predict, name="pictures", family="normal", input_example=example, registered_model_name="pictures",
        pip_requirements=["mlflow"],
    )  # fmt: skip
    split = {"name": "digits", "uri": str(folder / "labelled"), "key": "key", "input": "image", "target": "target",
             "model_inputs": ["image", "angle", "digit"], "shard_rows": 100}  # fmt: skip
    file = registry.file(splits=[split], encoder={"kind": "open_clip", "model": "compact"}, protocol="exact")
    output = folder / "output"
    arguments = ["score", file, "-m", "pictures/1", "--inputs", folder / "pictures.parquet", "--output", output,
                 "--no-log", "--home", folder]  # fmt: skip
    shown = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert shown.exit_code == 0, shown.output
    assert "3 rows are left out of" in shown.output
    scores = pd.read_parquet(output / "scores.parquet")
    kind = scores["key"].str.partition("-")[0]
    assert scores.loc[kind == "test", "withhold"].mean() <= 0.025
    others = scores[kind != "test"]
    assert others["withhold"].all()
    reasons = others["reason"].groupby(kind)
    assert reasons.apply(lambda some: some.str.contains("the split holds ").all())[["noise", "blank", "slope"]].all()
    assert set(scores.loc[kind == "large", "reason"]) == {
        "pictures/1: predict failed on this row: ValueError: expected 64 x 64 pixels"
    }
    assert scores.loc[kind == "large", "mean"].isna().all()
    assert "not an image" in scores.loc[kind == "broken", "reason"].item()
    withheld = int(scores["withhold"].sum())
    assert f"and {withheld - 10} more" in shown.output
    assert f"{withheld} inputs should be withheld" in (output / "report.html").read_text()
    assert len(list(folder.glob("embeddings/pictures/*/*.npz"))) == 2  # of either split, for the next call
