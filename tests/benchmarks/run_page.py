"""Time to log an evaluation of 1,000 and of 1,000,000 rows, and to open its pages in MLflow with a real browser.

    python tests/benchmarks/run_page.py

The rows go through the product's own logging to an MLflow server on loopback (SQLite, artifacts over HTTP); headless
Chromium opens each page and the clock stops when its content is there. Medians of three, after one unmeasured visit.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from loopback import MlflowServer
from mlflow_pages import CHROMIUM, Browser

from congruence.kernels.calibration import pit_values
from congruence.kernels.distributions import Normal
from congruence.kernels.protocol.protocol import EXACT
from congruence.kernels.scores import point_scores
from congruence.kernels.streams import hashed_keys
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.links import run_link
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import ModelVersion, resolve
from congruence.tasks.scores.block_statistics import ScoreBlocks
from congruence.tasks.scores.evaluation import Evaluation, Metric, SplitSummary

CITIES = 300
VISITS = 3


class Constant(mlflow.pyfunc.PythonModel):
    def predict(self, context: Any, model_input: list[float]) -> list[float]:
        return model_input


def evaluation_of(rows: int, model: ModelVersion) -> Evaluation:
    """All columns that an evaluation has, two slice columns, an embedding map and thumbnails; CCE drawn, not solved."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, np.pi, rows)
    targets = 2 * angle + rng.normal(size=rows)
    predictive = Normal(2 * angle + 0.3, np.full(rows, 0.8))
    floor = rng.gamma(20, 0.001, rows)
    p_values = rng.uniform(size=rows)
    keys = np.array([f"image-{row:07d}.jpg" for row in range(rows)])
    points = {"cce": floor + rng.gamma(2, 0.01, rows), "cce_noise_floor": floor, "cce_p_value": p_values}
    points["cce_excess"] = np.sqrt(points["cce"] ** 2 - floor**2)
    points |= point_scores(predictive, targets)
    points["pit"] = pit_values(targets, predictive, seed=0, keys=keys)
    scores = pd.DataFrame({"key": keys, "valid": True, "reason": None, "target": targets})
    scores["city"] = rng.choice([f"city {number}" for number in range(CITIES)], rows)
    scores["half"] = np.where(angle < np.pi / 2, "left", "right")
    scores = scores.assign(**points)
    requested = ("cce", "nll", "crps", "mae")
    blocks = ScoreBlocks(requested, points, predictive, targets, hashed_keys(keys))
    means = {"cce_mean": "cce", "cce_noise_floor": "cce_noise_floor", "nll_mean": "nll", "crps_mean": "crps"}
    return Evaluation(
        model=model,
        split=SplitSummary(f"{rows} rows", f"{rows:064d}", rows, rows),
        protocol=EXACT,
        metrics={name: Metric(float(scores[column].mean())) for name, column in means.items()},
        scores=scores,
        predictive=predictive,
        targets=targets,
        slices=blocks.slice_table(scores[["city", "half"]]),
        embedding_map=pd.DataFrame(np.column_stack([np.cos(angle), np.sin(angle)]) + 0.1 * rng.normal(size=(rows, 2))),
        thumbnails=lambda chosen: [Image.fromarray(np.full((96, 96, 3), row % 256, np.uint8)) for row in chosen],
        metric_list=requested,
    )


def pages(page: Callable[[str], str], report: Path) -> dict[str, tuple[str, str]]:
    """What is opened, and the JavaScript condition under which its content is there."""
    text = "document.body.innerText.includes"
    drawn = "[...document.images].some(image => image.naturalWidth > 400)"
    return {
        "overview": (page(""), f"{text}('cce_mean') && {text}('CCE is')"),
        "metric charts": (page("model-metrics"), "document.querySelectorAll('.js-plotly-plot, canvas').length > 0"),
        "artifacts: small table": (page("artifacts/tables/points.json"), f"{text}('highest CCE 1')"),
        "artifacts: slices": (page("artifacts/tables/slices.json"), f"{text}('cce_mean')"),
        "artifacts: CCE histogram": (page("artifacts/plots/cce_histogram.png"), drawn),
        "artifacts: rejection": (page("artifacts/plots/rejection.png"), drawn),
        "artifacts: the Parquet file": (page("artifacts/scores/columns.parquet"), f"{text}('columns.parquet')"),
        "artifacts: HTML report": (page("artifacts/report.html"), "document.querySelector('iframe') !== null"),
        "HTML report, opened as a file": (report.as_uri(), f"{text}('Provenance') && {drawn}"),
    }


def seconds_to_open(browser: Browser, url: str, condition: str) -> float:
    """From the address to the content."""
    browser.call("Page.navigate", url="about:blank")
    started = time.perf_counter()
    browser.call("Page.navigate", url=url)
    if not browser.wait(f"Boolean(document.body) && {condition}"):
        raise RuntimeError(f"{url}: {condition} did not come true")
    return time.perf_counter() - started


def medians(
    browser: Browser, opened: dict[int, dict[str, tuple[str, str]]], look: Callable[[int, str], None]
) -> dict[int, dict[str, float]]:
    """Median seconds of each page, few rows and many in turn, so that both see the same load of the machine."""
    found: dict[int, dict[str, float]] = {rows: {} for rows in opened}
    for name in next(iter(opened.values())):
        times: dict[int, list[float]] = {rows: [] for rows in opened}
        for _ in range(VISITS + 1):
            for rows, addresses in opened.items():
                times[rows].append(seconds_to_open(browser, *addresses[name]))
                look(rows, name)
        for rows, seconds in times.items():
            found[rows][name] = statistics.median(seconds[1:])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs=2, default=[1_000, 1_000_000])
    parser.add_argument("--pictures", type=Path, help="keep a picture of every page here")
    chosen = parser.parse_args()
    load = os.getloadavg()[0]
    logging: dict[int, float] = {}
    measured: dict[int, dict[str, float]] = {}
    sizes: dict[int, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        server = MlflowServer(Path(folder))
        server.start()
        browser = Browser()
        try:
            mlflow.set_tracking_uri(server.uri)
            mlflow.pyfunc.log_model(
                name="model", python_model=Constant(), registered_model_name="angle", pip_requirements=[]
            )
            settings = TrackingSettings(uri=server.uri, link=server.uri)
            opened: dict[int, dict[str, tuple[str, str]]] = {}
            for rows in chosen.rows:
                evaluation = evaluation_of(rows, resolve("models:/angle/1"))
                started = time.perf_counter()
                run_id = log_evaluation(evaluation, settings)
                logging[rows] = time.perf_counter() - started
                experiment = MlflowClient(server.uri).get_run(run_id).info.experiment_id
                kept = {path.name: path for path in Path(folder, "artifacts", experiment, run_id).rglob("*.*")}
                names = ("columns.parquet", "points.json", "slices.json", "report.html")
                sizes[rows] = {name: kept[name].stat().st_size for name in names}
                opened[rows] = pages(partial(run_link, server.uri, experiment, run_id), kept["report.html"])

            def look(rows: int, name: str) -> None:
                if chosen.pictures:
                    chosen.pictures.mkdir(parents=True, exist_ok=True)
                    browser.picture(chosen.pictures / f"{rows}-{name.replace(': ', '-').replace(' ', '-')}.png")

            measured = medians(browser, opened, look)
            measured = {rows: {"logging": logging[rows]} | measured[rows] for rows in chosen.rows}
        finally:
            browser.close()
            server.kill()
    few, many = chosen.rows
    version = subprocess.run([str(CHROMIUM), "--version"], capture_output=True, text=True, check=False).stdout.strip()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} before and {os.getloadavg()[0]:.1f} after")
    print(f"MLflow {importlib.metadata.version('mlflow')}, {version}")
    print(f"\n| seconds | {few:,} rows | {many:,} rows | ratio |\n|---|---|---|---|")
    for name, first in measured[few].items():
        print(f"| {name} | {first:.2f} | {measured[many][name]:.2f} | {measured[many][name] / first:.2f} |")
    print(f"\n| bytes | {few:,} rows | {many:,} rows |\n|---|---|---|")
    for name, size in sizes[few].items():
        print(f"| {name} | {size:,} | {sizes[many][name]:,} |")


if __name__ == "__main__":
    main()
