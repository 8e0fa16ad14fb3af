"""The demonstration's registered versions: one that knows the truth, four trained ones, one that ignores its input."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import chain, count, islice
from pathlib import Path

import mlflow
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from mlflow import MlflowClient
from numpy.typing import NDArray

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.contract.predictors import FramePredictor
from congruence.tasks.digits import describe_version, registered_kinds
from congruence.tasks.digits.models import (
    DESCRIPTIONS,
    MODEL_NAME,
    UNIT,
    Frame,
    MarginalLaw,
    MixtureNetwork,
    Network,
    NormalNetwork,
    TrueLaw,
    pixels,
)
from congruence.tasks.mlflow.connection import connect, open_experiment
from congruence.tasks.models.registry import list_versions
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

TRAINING_EXPERIMENT = "digit-angle training"
COMPONENTS = 2
HIDDEN, BATCH = 256, 128

DESCRIPTION = (
    "The angle of a rotated handwritten digit, in degrees, seen through noise that grows with the digit. "
    "Version 1 is the distribution that generated the data: it shows what a perfect model scores."
)

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def train(x: NDArray[np.float32], y: NDArray[np.float64], loss: Loss, outputs: int, steps: int = 384) -> Network:
    """Fit a network to targets (degrees) under ``loss(outputs, y / UNIT)`` by AdamW with one cosine cycle."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return _fit(x, y, loss, outputs, steps)
    finally:
        torch.set_num_threads(threads)


def _fit(x: NDArray[np.float32], y: NDArray[np.float64], loss: Loss, outputs: int, steps: int) -> Network:
    center = x.mean(axis=0)
    module = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(HIDDEN, outputs),
    )
    inputs, targets = torch.as_tensor(x - center), torch.as_tensor(y / UNIT, dtype=torch.float32)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    batches = chain.from_iterable(torch.split(torch.randperm(len(x)), BATCH) for _ in count())
    for rows in islice(batches, steps):
        optimizer.zero_grad()
        loss(module(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    linear = [layer for layer in module if isinstance(layer, torch.nn.Linear)]
    layers = tuple((layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy()) for layer in linear)
    return Network(center, layers)


def squared_error(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Mean squared error of the single output."""
    return (output[:, 0] - y).square().mean()


def normal_nll(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Negative log-likelihood (up to a constant) of a normal law with outputs loc and log scale."""
    loc, log_scale = output.unbind(1)
    return (log_scale + 0.5 * ((y - loc) * torch.exp(-log_scale)).square()).mean()


def mixture_nll(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The same for a mixture of K normals with outputs (logits, loc, log scale), K columns each."""
    logits, loc, log_scale = output.chunk(3, dim=1)
    parts = -log_scale - 0.5 * ((y[:, None] - loc) * torch.exp(-log_scale)).square()
    return -torch.logsumexp(torch.log_softmax(logits, dim=1) + parts, dim=1).mean()


def register_versions(training: Path) -> list[ModelVersion]:
    """Train and register every version of ``MODEL_NAME`` that the registry lacks; all of them, in order.

    ``training`` is the folder of the training split's Parquet files (``write_digits``).

    Raises:
        InvalidInputError: there are no training files.
    """
    missing = [kind for kind in DESCRIPTIONS if kind not in registered_kinds(MODEL_NAME)]
    if missing:
        table = _read(training)
        for kind, model in _trained(table, missing).items():
            _register(kind, model, table)
        MlflowClient().update_registered_model(MODEL_NAME, DESCRIPTION)
    return list_versions(MODEL_NAME)


def _read(training: Path) -> Frame:
    files = sorted(training.glob("*.parquet"))
    if not files:
        raise InvalidInputError(f"{training}: holds no Parquet file; write the training split with write_digits first")
    table: Frame = pa.concat_tables([pq.read_table(file) for file in files]).to_pandas()
    return table


def _trained(table: Frame, kinds: list[str]) -> dict[str, FramePredictor]:
    """The models of ``kinds`` in order; versions that share a network train it once."""
    x, y = pixels(table["image"].tolist()), table["target"].to_numpy(dtype=np.float64)
    normal = cache(lambda: train(x, y, normal_nll, outputs=2))

    def homoscedastic() -> NormalNetwork:
        # The scale comes from rows the network has not seen: on its own rows it would be too small.
        seen = int(0.8 * len(y))
        network = train(x[:seen], y[:seen], squared_error, outputs=1, steps=200)
        residuals = y[seen:] - network(x[seen:])[:, 0] * UNIT
        return NormalNetwork(network, scale=float(np.std(residuals)))

    def marginal() -> MarginalLaw:
        from sklearn.mixture import GaussianMixture

        fit = GaussianMixture(4, random_state=0).fit(y[:, None])
        return MarginalLaw(fit.weights_, fit.means_[:, 0], np.sqrt(fit.covariances_[:, 0, 0]))

    makers: dict[str, Callable[[], FramePredictor]] = {
        "truth": TrueLaw,
        "trained": lambda: NormalNetwork(normal()),
        "overconfident": lambda: NormalNetwork(normal(), factor=0.5),
        "homoscedastic": homoscedastic,
        "mixture": lambda: MixtureNetwork(train(x, y, mixture_nll, outputs=3 * COMPONENTS)),
        "marginal": marginal,
    }
    return {kind: makers[kind]() for kind in kinds}


def _register(kind: str, model: FramePredictor, table: Frame) -> None:
    """Log one version under a training run of its own and register it, with the words for the registry's page."""
    tracking = TrackingSettings()
    # Named, not set: the experiment that a process has set outlives the database that it is in.
    place = open_experiment(connect(tracking), TRAINING_EXPERIMENT, tracking).experiment_id
    mixture = kind in ("mixture", "marginal")
    with mlflow.start_run(experiment_id=place, run_name=f"{MODEL_NAME}: {DESCRIPTIONS[kind]}"):
        mlflow.log_params({"kind": kind, "training_rows": len(table)})
        info = log_predictive_model(
            model,
            name=MODEL_NAME,
            family="mixture" if mixture else "normal",
            component="normal" if mixture else None,
            input_example=table[["image", "angle", "digit"]].head(5).astype({"digit": "float64"}),
            registered_model_name=MODEL_NAME,
        )
    describe_version(MODEL_NAME, info.registered_model_version, kind, DESCRIPTIONS[kind])
