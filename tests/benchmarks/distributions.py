"""How long the families of predictive distributions take for 100,000 rows; prints a Markdown table of CPU seconds.

Run as ``python tests/benchmarks/distributions.py``; the record is beside it in ``distributions.md``.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import numpy as np
import scipy

from congruence.kernels import distributions as families
from congruence.kernels.distributions import Distribution

ROWS = 100_000
FREQUENCIES = 40


def laws(n: int) -> dict[str, Distribution]:
    """One instance of every scalar family with n different rows, and counts at large rates."""
    rng = np.random.default_rng(0)
    loc, scale, share = rng.normal(size=n), rng.uniform(0.5, 2, n), rng.uniform(0.05, 0.6, n)
    rate, phi = rng.uniform(0.5, 60, n), rng.uniform(0.3, 3, n)
    high = rng.uniform(40_000, 60_000, n)
    return {
        "Normal": families.Normal(loc, scale),
        "Laplace": families.Laplace(loc, scale),
        "StudentT": families.StudentT(rng.uniform(2, 90, n), loc, scale),
        "Logistic": families.Logistic(loc, scale),
        "LogNormal": families.LogNormal(rng.uniform(0.1, 0.8, n), scale),
        "Gamma": families.Gamma(rng.uniform(0.5, 9, n), scale),
        "Beta": families.Beta(rng.uniform(0.5, 9, n), rng.uniform(0.5, 9, n)),
        "Uniform": families.Uniform(loc, scale),
        "TruncatedNormal": families.TruncatedNormal(loc, scale, 0.0, np.inf),
        "CensoredNormal": families.CensoredNormal(loc, scale, 0.0, np.inf),
        "Poisson": families.Poisson(rate),
        "Poisson, rate 50,000": families.Poisson(high),
        "NegativeBinomial": families.NegativeBinomial(rate, share),
        "NegativeBinomial, mean 50,000": families.NegativeBinomial(high, share),
        "NegativeBinomial, dispersion 1e-6": families.NegativeBinomial(rate, 1e-6),
        "Binomial": families.Binomial(rng.integers(1, 200, n), share),
        "DoublePoisson": families.DoublePoisson(rate, phi),
        "DoublePoisson, mean 50,000": families.DoublePoisson(high, phi),
        "ZeroInflatedPoisson": families.ZeroInflatedPoisson(rate, share),
        "HurdlePoisson, rate below 1e-3": families.HurdlePoisson(1e-5 * rate, share),
        "HurdleNegativeBinomial": families.HurdleNegativeBinomial(rate, share, share),
        "Mixture of 5 normals": families.Mixture(
            rng.dirichlet(np.ones(5), n), [families.Normal(loc + k, scale) for k in range(5)]
        ),
        "Samples, 50 per row": families.Samples(rng.normal(size=(n, 50))),
        "Quantiles, 19 levels": families.Quantiles(np.arange(1, 20) / 20, np.sort(rng.normal(size=(n, 19)), axis=1)),
    }


def seconds(work: Callable[[], object]) -> float:
    """CPU time of one call: wall time depends on what else the machine does."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    """Print the table."""
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, ", end="")
    print(f"NumPy {np.__version__}, SciPy {scipy.__version__}; n = {ROWS:,}, {FREQUENCIES} frequencies, CPU seconds\n")
    print("| family | characteristic function | crps | log_prob | cdf | quantile | sample(1) |")
    print("|---|---|---|---|---|---|---|")
    for name, law in laws(ROWS).items():
        t = np.linspace(0.0, 8.0, FREQUENCIES) / np.median(law.std())
        y = law.sample(1, seed=1)[:, 0]
        work: list[Callable[[], object]] = [
            lambda law=law, t=t: law.characteristic_function(t),
            lambda law=law, y=y: law.crps(y),
            lambda law=law, y=y: law.log_prob(y),
            lambda law=law, y=y: law.cdf(y),
            lambda law=law: law.quantile(0.9),
            lambda law=law: law.sample(1),
        ]
        print(f"| {name} | " + " | ".join(f"{seconds(call):.2f}" for call in work) + " |", flush=True)


if __name__ == "__main__":
    main()
