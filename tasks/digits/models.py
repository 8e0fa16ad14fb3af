"""The demonstration's registered versions: one that knows the truth, four trained ones, and one that ignores its input.

Each is an MLflow pyfunc with a signature (image, angle, digit in; distribution parameters out). The trained versions
look at the image alone. The last has the right marginal law, so its expected calibration error is good although it says
nothing about the input (Young et al. 2025, figure 1): the trap that a conditional metric is for.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.special
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_MODEL_VERSIONS
from numpy.typing import NDArray

from congruence.kernels.errors import InvalidInputError
from congruence.tasks.contract import log_predictive_model
from congruence.tasks.contract.predictors import FramePredictor
from congruence.tasks.digits.dataset import noise_scale
from congruence.tasks.digits.network import UNIT, Network, mixture_nll, normal_nll, pixels, squared_error, train
from congruence.tasks.mlflow.connection import connect, experiment_id
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import list_versions
from congruence.tasks.models.version import ModelVersion

MODEL_NAME = "digit-angle"
TRAINING_EXPERIMENT = "digit-angle training"
COMPONENTS = 2

DESCRIPTION = (
    "The angle of a rotated handwritten digit, in degrees, seen through noise that grows with the digit. "
    "Version 1 is the distribution that generated the data: it shows what a perfect model scores."
)

DESCRIPTIONS = {
    "truth": "the true distribution",
    "trained": "trained, normal with its own scale per image",
    "overconfident": "version 2 with its scale halved",
    "homoscedastic": "trained, one scale for all images",
    "mixture": "trained, mixture of two normals",
    "marginal": "ignores the image, right on average",
}
"""What each version is, by its alias, in the order of registration."""

Frame = pd.DataFrame


class TrueLaw(FramePredictor):
    """N(angle, (5 + 2.5 digit)^2): reads the columns that generated the target."""

    def columns(self, frame: Frame) -> Frame:
        """Columns loc and scale."""
        return pd.DataFrame({"loc": frame["angle"], "scale": noise_scale(frame["digit"])})


@dataclass
class NormalNetwork(FramePredictor):
    """A network whose outputs are loc and, unless ``scale`` is given, log scale."""

    network: Network
    scale: float | None = None
    factor: float = 1.0

    def columns(self, frame: Frame) -> Frame:
        """Columns loc and scale, in degrees."""
        output = self.network(pixels(frame["image"].tolist()))
        scale = np.exp(output[:, 1]) * UNIT if self.scale is None else np.full(len(output), self.scale)
        return pd.DataFrame({"loc": output[:, 0] * UNIT, "scale": self.factor * scale})


@dataclass
class MixtureNetwork(FramePredictor):
    """A network whose outputs are the logits, locs and log scales of a mixture of normals."""

    network: Network

    def columns(self, frame: Frame) -> Frame:
        """Columns weights_k, loc_k and scale_k, in degrees."""
        logits, loc, log_scale = np.split(self.network(pixels(frame["image"].tolist())), 3, axis=1)
        return _mixture_columns(scipy.special.softmax(logits, axis=1), loc * UNIT, np.exp(log_scale) * UNIT)


@dataclass
class MarginalLaw(FramePredictor):
    """One mixture of normals for every row, whatever the image shows."""

    weights: NDArray[np.float64]
    loc: NDArray[np.float64]
    scale: NDArray[np.float64]

    def columns(self, frame: Frame) -> Frame:
        """Columns weights_k, loc_k and scale_k, in degrees."""
        shape = (len(frame), len(self.weights))
        return _mixture_columns(*(np.broadcast_to(part, shape) for part in (self.weights, self.loc, self.scale)))


def register_versions(training: Path) -> list[ModelVersion]:
    """Train and register every version of ``MODEL_NAME`` that the registry lacks; all of them, in order.

    ``training`` is the folder of the training split's Parquet files (``write_digits``).

    Raises:
        InvalidInputError: there are no training files.
    """
    present = _present()
    missing = [kind for kind in DESCRIPTIONS if kind not in present]
    if missing and not _exists():
        MlflowClient().create_registered_model(MODEL_NAME, description=DESCRIPTION)
    if missing:
        table = _read(training)
        for kind, model in _trained(table, missing).items():
            _register(kind, model, table)
    return list_versions(MODEL_NAME)


def _present() -> set[str]:
    found = MlflowClient().search_model_versions(f"name = '{MODEL_NAME}'")
    return {version.tags.get("kind", "") for version in found if version.status == "READY"}


def _exists() -> bool:
    return bool(MlflowClient().search_registered_models(f"name = '{MODEL_NAME}'"))


def _read(training: Path) -> Frame:
    files = sorted(training.glob("*.parquet"))
    if not files:
        raise InvalidInputError(f"{training}: holds no Parquet file; write the training split with write_digits first")
    table: Frame = pa.concat_tables([pq.read_table(file) for file in files]).to_pandas()
    return table


def _trained(table: Frame, kinds: list[str]) -> dict[str, FramePredictor]:
    """The models of ``kinds`` in order; versions that share a network train it once."""
    x, y = pixels(table["image"].tolist()), table["target"].to_numpy(dtype=np.float64)
    makers: dict[str, Callable[[], FramePredictor]] = {
        "truth": TrueLaw,
        "trained": lambda: NormalNetwork(_cached_normal()),
        "overconfident": lambda: NormalNetwork(_cached_normal(), factor=0.5),
        "homoscedastic": lambda: _homoscedastic(x, y),
        "mixture": lambda: MixtureNetwork(train(x, y, mixture_nll, outputs=3 * COMPONENTS)),
        "marginal": lambda: _marginal(y),
    }
    networks: list[Network] = []

    def _cached_normal() -> Network:
        if not networks:
            networks.append(train(x, y, normal_nll, outputs=2))
        return networks[0]

    return {kind: makers[kind]() for kind in kinds}


def _homoscedastic(x: NDArray[np.float32], y: NDArray[np.float64]) -> NormalNetwork:
    # The scale comes from rows the network has not seen: on its own rows it would be too small.
    seen = int(0.8 * len(y))
    network = train(x[:seen], y[:seen], squared_error, outputs=1, steps=200)
    residuals = y[seen:] - network(x[seen:])[:, 0] * UNIT
    return NormalNetwork(network, scale=float(np.std(residuals)))


def _marginal(y: NDArray[np.float64]) -> MarginalLaw:
    from sklearn.mixture import GaussianMixture

    fit = GaussianMixture(4, random_state=0).fit(y[:, None])
    return MarginalLaw(fit.weights_, fit.means_[:, 0], np.sqrt(fit.covariances_[:, 0, 0]))


def _register(kind: str, model: FramePredictor, table: Frame) -> None:
    """Log one version under a training run of its own and register it, with the words for the registry's page."""
    tracking = TrackingSettings()
    client = connect(tracking)
    # Named, not set: the experiment that a process has set outlives the database that it is in.
    place = experiment_id(client, TRAINING_EXPERIMENT, tracking)
    mixture = kind in ("mixture", "marginal")
    with mlflow.start_run(experiment_id=place, run_name=f"{MODEL_NAME}: {DESCRIPTIONS[kind]}"):
        mlflow.log_params({"kind": kind, "training_rows": len(table)})
        info = log_predictive_model(
            model,
            name=MODEL_NAME,
            family="mixture" if mixture else "normal",
            component="normal" if mixture else None,
            input_example=table[["image", "angle", "digit"]].head(5).astype({"digit": "float64"}),
        )
    # Tags at creation: a version that is there without its kind would be trained again.
    version = client.create_model_version(
        MODEL_NAME,
        source=info.model_uri,
        run_id=info.run_id,
        model_id=info.model_id,
        tags={"what": DESCRIPTIONS[kind], "kind": kind},
        description=DESCRIPTIONS[kind],
    )
    link = [{"name": MODEL_NAME, "version": version.version}]
    client.set_logged_model_tags(info.model_id, {MLFLOW_MODEL_VERSIONS: json.dumps(link)})
    client.set_registered_model_alias(MODEL_NAME, kind, version.version)


def _mixture_columns(weights: NDArray[np.float64], loc: NDArray[np.float64], scale: NDArray[np.float64]) -> Frame:
    parts = {"weights": weights, "loc": loc, "scale": scale}
    return pd.DataFrame({f"{name}_{k}": part[:, k] for name, part in parts.items() for k in range(part.shape[1])})
