"""What an image encoder knows of the digits: linear probes for rotation and digit, on base images it has not seen."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import LogisticRegression, Ridge

from congruence.tasks.digits.dataset import digit_rows
from congruence.tasks.digits.images import draw

Preprocess = Callable[[Image.Image], torch.Tensor]


@dataclass(frozen=True)
class Probe:
    """Held-out fit of linear probes; the noiseless rotation in degrees, the digit out of ten, and the speed."""

    angle_r2: float
    angle_rmse: float
    digit_accuracy: float
    images_per_second: float


def _embed(
    model: Any, preprocess: Preprocess, base: NDArray[np.int64], angle: NDArray[np.float64]
) -> tuple[NDArray[np.float32], float]:
    images = torch.stack([preprocess(draw(int(b), float(a))) for b, a in zip(base, angle, strict=True)])
    started = time.perf_counter()
    with torch.inference_mode():
        parts = [model.encode_image(images[i : i + 64], normalize=True).numpy() for i in range(0, len(images), 64)]
    return np.concatenate(parts), len(images) / (time.perf_counter() - started)


def probe(model: Any, preprocess: Preprocess, *, rows: int = 4000, seed: int = 0) -> Probe:
    """Fit the probes on unit-norm embeddings of the training digits, and judge them on the test digits."""
    train, test = digit_rows("train", rows, seed), digit_rows("test", rows, seed)
    seen, _ = _embed(model, preprocess, train.base, train.angle)
    unseen, speed = _embed(model, preprocess, test.base, test.angle)
    ridge = Ridge(alpha=1e-3).fit(seen, train.angle)
    classifier = LogisticRegression(C=100.0, max_iter=500).fit(seen, train.digit)
    residual = ridge.predict(unseen) - test.angle
    return Probe(
        angle_r2=float(ridge.score(unseen, test.angle)),
        angle_rmse=float(np.sqrt(np.mean(residual**2))),
        digit_accuracy=float(classifier.score(unseen, test.digit)),
        images_per_second=speed,
    )
