"""What a further version costs beyond its predictions: `python tests/benchmarks/version_cost.py --rows 20000`.

The kept record is version_cost.md.

One split of 16 features, one prepared Gram system, and versions of five families that go the way of the flow after
predicting: congruence, what it would be if true, its test, calibration given the input and what it says is wrong,
scores of every row, metrics, slices, tables, plots, report, MLflow (SQLite in a temporary folder). CPU seconds of the
process with all its threads, part by part. The Gram system is solved by Nystrom features, so that the passes over K,
which a group of versions shares, stay out of the account, as do the bases, draws and regions of the calibration.

The preview of recalibration is paid where a fault is found: here it is made of every version, and counted apart.
"""

from __future__ import annotations

import argparse
import cProfile
import logging
import os
import platform
import pstats
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
from mlflow import MlflowClient

from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.conditional_calibration.regions import Regions, regions
from congruence.kernels.conditional_calibration.version_calibration import SplitCalibration, VersionCalibration
from congruence.kernels.congruence.expected import expected_congruence
from congruence.kernels.congruence.preparation import prepare
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.congruence.test import congruence_tests
from congruence.kernels.distributions import Distribution, Mixture, NegativeBinomial, Normal, Quantiles, Samples
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.protocol.evaluation import resolved_output_kernel
from congruence.kernels.protocol.protocol import EXACT
from congruence.kernels.solvers import Nystrom
from congruence.kernels.streams import hashed_keys
from congruence.tasks.mlflow import evaluations as logging_of_evaluations
from congruence.tasks.mlflow.evaluations import log_evaluation
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import ModelVersion, list_versions
from congruence.tasks.scores.block_statistics import ScoreBlocks
from congruence.tasks.scores.evaluation import Evaluation, SplitSummary
from congruence.tasks.scores.kernel_calibration import kernel_calibration_error
from congruence.tasks.scores.logged_table import influence_columns, influence_table
from congruence.tasks.scores.names import METRICS
from congruence.tasks.scores.points import score_points
from congruence.tasks.scores.reading import read_what_is_wrong
from congruence.tasks.scores.recalibration_preview import preview, rows_to_try
from congruence.tasks.scores.summary import (
    calibration_metrics,
    column_metrics,
    congruence_metrics,
    estimated_of,
    score_decomposition,
)

FEATURES = 16
LANDMARKS = 1_000
PREVIEW = "preview of recalibration"
LEVELS = np.array([0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975])


@dataclass
class Account:
    """CPU seconds by part, for one version."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[name] += time.process_time() - started


@dataclass(frozen=True)
class Problem:
    """A split whose targets are counts of a smooth rate, with what all versions share."""

    embeddings: np.ndarray
    x: np.ndarray
    rate: np.ndarray
    y: np.ndarray
    keys: np.ndarray
    slices: pd.DataFrame
    prepared: PreparedCongruence
    kernel: Kernel
    picture: np.ndarray
    calibration: PreparedCalibration
    places: Regions

    @classmethod
    def of(cls, rows: int) -> Problem:
        rng = np.random.default_rng(1)
        raw = rng.standard_normal((rows, FEATURES))
        x = EXACT.apply(raw.astype(np.float32 if rows > 20_000 else np.float64))
        rate = np.exp(1.5 + 0.6 * np.tanh(raw[:, 0]) + 0.4 * np.sin(raw[:, 1]))
        y = NegativeBinomial(rate, np.full(rows, 0.3)).sample(1, seed=2)[:, 0]
        prepared = prepare(x, input_kernel=EXACT.input_kernel, solver=Nystrom(LANDMARKS))
        prepared.smoother  # noqa: B018 - made once for all versions
        slices = pd.DataFrame({"region": rng.integers(0, 20, rows).astype(str), "age": raw[:, 2]})
        keys = np.array([f"policy-{row}" for row in range(rows)], dtype=object)
        kernel = resolved_output_kernel(EXACT, y, x, prepared)
        picture = np.ascontiguousarray(x[:, :2])
        calibration, places = prepare_calibration(prepared, seed=0), regions(x, seed=0)
        return cls(raw, x, rate, y, keys, slices, prepared, kernel, picture, calibration, places)

    def version(self, family: str, number: int) -> Distribution:
        """A version of a family: the numbers differ by a few per cent of the rate."""
        n = len(self.y)
        rate = self.rate * (1.0 + 0.02 * number)
        spread = np.sqrt(rate + 0.3 * rate**2)
        if family == "negative binomial":
            return NegativeBinomial(rate, np.full(n, 0.3 + 0.01 * number))
        if family == "normal":
            return Normal(rate, spread)
        if family == "ensemble of 10":
            return Samples(Normal(rate, spread).sample(10, seed=number))
        if family == "mixture of 2":
            return Mixture(np.array([0.6, 0.4]), (Normal(0.7 * rate, 0.5 * spread), Normal(1.45 * rate, spread)))
        return Quantiles(LEVELS, Normal(rate, spread).quantile(LEVELS[None, :]))


def evaluated(problem: Problem, family: str, number: int, model: ModelVersion, account: Account) -> Evaluation:
    """What the flow does with one version after it has been solved for."""
    predictive, y, keys = problem.version(family, number), problem.y, problem.keys
    prepared, kernel = problem.prepared, problem.kernel
    with account.part("congruence"):
        result = prepared.congruence_errors(y, {"": predictive}, output_kernel=kernel, uncertainty=True)[""]
    with account.part("expected if true"):
        expected = expected_congruence(
            prepared.smoother,
            y,
            predictive,
            kernel,
            mean_squared_floor=float(np.mean(result.noise_floor_values**2)),
        )
    with account.part("congruence test"):
        test = congruence_tests(
            prepared, y, {"": predictive}, output_kernel=EXACT.output_kernel, output_scale=EXACT.output_scale
        )[""]
    with account.part("calibration given the input"):
        calibration = calibration_of(problem, predictive)
    with account.part("scores of rows"):
        hashed = hashed_keys(keys)
        points = score_points(result, predictive, y, seed=0, keys=hashed, test=test, calibration=calibration)
        named = calibration.regions.named({})
        points["calibration_region"] = np.array(named.names)[named.labels]
    with account.part("metrics but SKCE"):
        blocks = ScoreBlocks(METRICS, points, predictive, y, hashed)
        metrics = congruence_metrics(result, test, expected) | estimated_of(blocks.statistics(), 0)
        metrics |= column_metrics(METRICS, points) | calibration_metrics(calibration.test)
    with account.part("score decomposition"):
        metrics |= score_decomposition(predictive, y, 0)
    with account.part("SKCE"):
        metrics |= kernel_calibration_error(predictive, y, 0)
    with account.part("what is wrong"):
        wrong = read_what_is_wrong(calibration, named, points["pit"], metrics, np.arange(len(y)), problem.slices)
    with account.part("slices"):
        slices = blocks.slice_table(problem.slices)
    with account.part(PREVIEW):
        chosen, half = rows_to_try(hashed, 0)
        rows = problem.embeddings[chosen]
        tried = preview(EXACT, rows, y[chosen], predictive[chosen], hashed[chosen], half, 0)
    frame = pd.DataFrame({"key": keys, "valid": True, "reason": None, "target": y, **points, **problem.slices})
    return Evaluation(
        model=model,
        split=SplitSummary("rows", "d" * 64, len(y), len(y)),
        protocol=EXACT,
        metrics=metrics,
        scores=frame,
        predictive=predictive,
        targets=y,
        slices=slices,
        embedding_map=pd.DataFrame(problem.picture),
        provenance={"seed": 0},
        influence=influence_table(influence_columns(result.uncertainty.influence), keys),
        influence_noise=result.uncertainty.influence.noise,
        settings_digest=f"{len(y)} {family} {number}",
        wrong=wrong,
        preview=tried,
    )


def calibration_of(problem: Problem, predictive: Distribution) -> VersionCalibration:
    """Of a further version: what depends on the inputs alone is made already."""
    split = SplitCalibration(problem.calibration, problem.places)
    return split.of_version(problem.y, predictive, keys=problem.keys, seed=0)


def cost(problem: Problem, family: str, number: int, model: ModelVersion, settings: TrackingSettings) -> Account:
    """The account of one version, from its predictions to MLflow."""
    account = Account()
    evaluation = evaluated(problem, family, number, model, account)
    original = logging_of_evaluations.write_artifacts

    def write_artifacts(*arguments: object) -> None:
        with account.part("tables, plots, report"):
            original(*arguments)

    logging_of_evaluations.write_artifacts = write_artifacts
    try:
        with account.part("MLflow"):
            log_evaluation(evaluation, settings)
    finally:
        logging_of_evaluations.write_artifacts = original
    account.seconds["MLflow"] -= account.seconds["tables, plots, report"]
    return account


class Registered(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input: list[float]) -> list[float]:
        return model_input


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000])
    families = ["normal", "negative binomial", "ensemble of 10", "mixture of 2", "quantiles"]
    parser.add_argument("--families", nargs="+", default=families, choices=families)
    parser.add_argument("--profile", type=Path, help="write the profile of the further versions to this file")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, NumPy {np.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        settings = TrackingSettings(uri=f"sqlite:///{folder}/mlflow.db", artifact_location=f"{folder}/artifacts")
        mlflow.set_tracking_uri(settings.uri)
        MlflowClient()
        with mlflow.start_run():
            mlflow.pyfunc.log_model(
                name="model", python_model=Registered(), registered_model_name="rate", pip_requirements=[]
            )
        (model,) = list_versions("rate")
        for rows in arguments.rows:
            problem = Problem.of(rows)
            found = {f"first ({arguments.families[0]})": cost(problem, arguments.families[0], 0, model, settings)}
            profile = cProfile.Profile() if arguments.profile else None
            for number, family in enumerate(arguments.families, start=1):
                if profile:
                    profile.enable()
                found[family] = cost(problem, family, number, model, settings)
                if profile:
                    profile.disable()
            if profile:
                profile.dump_stats(arguments.profile)
                pstats.Stats(str(arguments.profile)).sort_stats("cumulative").print_stats(100)
            print_table(rows, found)


def print_table(rows: int, found: dict[str, Account]) -> None:
    """CPU seconds by part and version."""
    print(f"\n## {rows:,} rows: CPU seconds of a version\n")
    print("| part | " + " | ".join(found) + " |")
    print("|---|" + "---:|" * len(found))
    parts = [part for part in next(iter(found.values())).seconds if part != PREVIEW]
    for part in parts:
        print(f"| {part} | " + " | ".join(f"{account.seconds[part]:.2f}" for account in found.values()) + " |")
    sums = [sum(account.seconds[part] for part in parts) for account in found.values()]
    print("| **all** | " + " | ".join(f"**{total:.1f}**" for total in sums) + " |")
    previews = [account.seconds[PREVIEW] for account in found.values()]
    print(f"| {PREVIEW} | " + " | ".join(f"{seconds:.2f}" for seconds in previews) + " |")
    wrong = [total + seconds for total, seconds in zip(sums, previews, strict=True)]
    print("| all, where a fault was found | " + " | ".join(f"{total:.1f}" for total in wrong) + " |", flush=True)


if __name__ == "__main__":
    main()
