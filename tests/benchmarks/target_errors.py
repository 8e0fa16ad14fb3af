"""Time, rank and stated error of the target errors by family, kernel and dimension: ``target_errors.py [n]``."""

from __future__ import annotations

import sys
import time

import numpy as np

from congruence.kernels import (
    RBF,
    Distribution,
    Kernel,
    Laplacian,
    Logistic,
    Matern,
    MultivariateNormal,
    Normal,
    Samples,
    StudentT,
    multiscale_rbf,
    variance_gamma,
)
from congruence.kernels.errors import BudgetError
from congruence.kernels.mean_embeddings.residuals import target_errors


def measure(name: str, y: np.ndarray, law: Distribution, kernel: Kernel) -> None:
    """One line: the bound on a CCE of .03 with k_X(x, x) = 1 and lambda = .1."""
    start = time.perf_counter()
    try:
        errors = target_errors(y, law, kernel)
    except BudgetError as error:
        print(f"| {name} | refused: {error} | | {time.perf_counter() - start:.1f} |")
        return
    bound = errors.feature_error.bound(np.array([0.03]), 1.0, 0.1 * len(y))
    seconds = time.perf_counter() - start
    print(
        f"| {name} | {errors.delta.shape[1]} | {bound:.1e} ({errors.feature_error.kind}) | {seconds:.2f} |", flush=True
    )


def main(n: int) -> None:
    """Every case at n rows."""
    rng = np.random.default_rng(0)
    center, ones = rng.normal(size=n), np.ones(n)
    y = center + rng.normal(size=n)
    wide = np.where(np.arange(n) == 5, 150.0, 1.0)
    rbf, multiscale = RBF(variance_gamma(y)), multiscale_rbf(y)
    t = StudentT(3.0 * ones, center, ones)
    ensemble = Samples(center[:, None] + rng.normal(size=(n, 20)))
    for name, law, kernel in (
        ("normal, RBF", Normal(center, ones), rbf),
        ("normal, multiscale", Normal(center, ones), multiscale),
        ("t of 3 df, RBF", t, rbf),
        ("t of 3 df, multiscale", t, multiscale),
        ("t of 3 df, Laplacian", t, Laplacian(0.7)),
        ("t of 3 df, Matern 3/2", t, Matern(1.5, 1.0)),
        ("normal, one scale of 150, RBF", Normal(center, wide), rbf),
        ("logistic, one scale of 150, RBF", Logistic(center, wide), rbf),
        ("normal, Laplacian", Normal(center, ones), Laplacian(0.7)),
        ("ensemble of 20, RBF", ensemble, rbf),
        ("ensemble of 20, Laplacian", ensemble, Laplacian(0.7)),
    ):
        measure(name, y, law, kernel)
    for q in (2, 10):
        vectors = center[:, None] + rng.normal(size=(n, q))
        law = MultivariateNormal(np.repeat(center[:, None], q, axis=1), np.ones((n, q)))
        measure(f"{q} targets, normal, RBF", vectors, law, RBF(variance_gamma(vectors)))
        measure(f"{q} targets, normal, multiscale", vectors, law, multiscale_rbf(vectors))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
