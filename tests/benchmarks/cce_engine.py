"""How fast and how exact the engine is, beside the direct definition: `python tests/benchmarks/cce_engine.py SUITE`.

Every case is a process of its own, so that its peak memory is its own. Suites: ``direct`` (against the definition as
public code does it), ``scaling`` (exact and on landmarks, in n), ``large`` (n = 100,000), ``cluster`` (tiled
Cholesky on Dask workers against LAPACK). The kept record is cce_engine.md.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import numpy as np
from simulations import embeddings

REGULARIZATION = 0.1


def problem(n):
    """Inputs, targets and two model versions, both a little wrong."""
    from congruence.kernels.distributions import Normal

    x = embeddings(n)
    rng = np.random.default_rng(1)
    score = x @ rng.standard_normal(x.shape[1]).astype(np.float32)  # no second copy of x: peaks are the engine's
    signal = 3.0 * np.tanh((score - score.mean()) / 20.0).astype(np.float64)
    y = signal + 0.5 * rng.standard_normal(n)
    return x, y, Normal(signal + 0.2, np.full(n, 0.6)), Normal(0.9 * signal, np.full(n, 0.5))


def direct(n):
    """Equation 3 term by term in float32: two systems, two explicit inverses, one sample per point."""
    import torch

    x, y, model, _ = problem(n)
    before = peak()
    started = time.perf_counter()
    x, y = torch.from_numpy(x), torch.from_numpy(y).float()[:, None]
    y_model = torch.from_numpy(model.sample(1, seed=0)).float().reshape(-1, 1)
    gamma = 1.0 / (2.0 * y.var())

    def input_kernel(a, b):
        return (a @ b.T / a.shape[1] + 1.0) ** 3

    def output_kernel(a, b):
        return torch.exp(-gamma * torch.cdist(a, b) ** 2)

    identity = torch.eye(n)
    inverse = torch.inverse(input_kernel(x, x) + n * REGULARIZATION * identity)
    inverse_model = torch.inverse(input_kernel(x, x) + n * REGULARIZATION * identity)
    k, k_model = input_kernel(x, x), input_kernel(x, x)
    first = torch.diag(k.T @ inverse @ output_kernel(y, y) @ inverse.T @ k)
    second = 2 * torch.diag(k.T @ inverse @ output_kernel(y, y_model) @ inverse_model.T @ k_model)
    third = torch.diag(k_model.T @ inverse_model @ output_kernel(y_model, y_model) @ inverse_model.T @ k_model)
    values = torch.sqrt(first - second + third)
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_gib": peak(), "before_gib": before, "nan": int(torch.isnan(values).sum())}


def engine(n, exact=False, dtype="float32"):
    """prepare and two model versions through the public interface, on landmarks beyond 5,000 rows or exactly."""
    from congruence.kernels.engine.driver import HeldSplit
    from congruence.kernels.engine.landmarks import Accuracy
    from congruence.kernels.engine.measure import measure_held
    from congruence.kernels.engine.plan import Ask
    from congruence.kernels.kernel_functions import Polynomial
    from congruence.kernels.protocol import EvaluationProtocol

    x, y, model, second_model = problem(n)
    before = peak()
    protocol = EvaluationProtocol("python", False, Polynomial(), regularization=REGULARIZATION)
    split, accuracy = HeldSplit(x.astype(dtype, copy=False), y), Accuracy.exact() if exact else Accuracy()
    times, results = [time.perf_counter()], []
    for version in (model, second_model):
        found = measure_held(split, protocol, {"": version}, Ask([""], tested=False), accuracy)[""]
        results.append(found)
        times.append(time.perf_counter())
    result = results[0]
    return {
        "seconds": times[1] - times[0],
        "second_version_seconds": times[2] - times[1],
        "peak_gib": peak(),
        "before_gib": before,
        "solver": found.solver,
        "mean": result.mean,
        "floor": result.noise_floor,
        "certificate": result.error_bound,
        "mean_certificate": result.mean_error_bound,
    }


def cholesky64(n):
    """The oracle: all rows as landmarks, in float64; up to 10,000 rows."""
    return engine(n, exact=True, dtype="float64")


def tiled(n):
    """Tiled Cholesky on two workers beside LAPACK's potrf on the same two cores, in float64."""
    import scipy.linalg

    from congruence.kernels.engine.blocks import HeldRows, LocalPasses
    from congruence.kernels.engine.driver import Driver
    from congruence.kernels.kernel_functions import Polynomial
    from congruence.kernels.protocol import EvaluationProtocol
    from congruence.tasks.dask.clusters import dask_client
    from congruence.tasks.settings.parts import ClusterSettings
    from congruence.tasks.solving.tiled_cholesky import TiledCholesky

    x = embeddings(n)
    work = n**3 / 3 / 1e9
    gram = Polynomial()(x.astype(np.float64))
    gram[np.diag_indices(n)] += n * REGULARIZATION
    started = time.perf_counter()
    scipy.linalg.cholesky(gram.T, lower=True, overwrite_a=True, check_finite=False)
    report = {"lapack_gflops": work / (time.perf_counter() - started)}
    del gram
    protocol = EvaluationProtocol("python", False, Polynomial(), regularization=REGULARIZATION)
    with dask_client(ClusterSettings(kind="local", workers=2)) as client:
        run = LocalPasses(HeldRows(x))
        started = time.perf_counter()
        system = Driver(run, protocol, factorize=TiledCholesky(client)).system(n)
        report["tiled_seconds_with_gram"] = time.perf_counter() - started
        rhs = np.random.default_rng(0).standard_normal((n, 30))
        started = time.perf_counter()
        system.factor.solve(rhs)
        report["solve_seconds"] = time.perf_counter() - started
    return report


def peak():
    """Peak resident memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


CASES = {case.__name__: case for case in (direct, engine, cholesky64, tiled)}
SUITES = {
    "direct": [("direct", n) for n in (2000, 6000, 12_000)]
    + [("engine", n) for n in (2000, 6000, 12_000)]
    + [("cholesky64", 8000)],
    "scaling": [("cholesky64", n) for n in (2000, 4000, 8000)] + [("engine", n) for n in (4000, 8000, 16_000, 32_000)],
    "large": [("engine", 100_000)],
    "cluster": [("tiled", 8000)],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=[*SUITES, *CASES])
    parser.add_argument("--n", type=int, help="size, for a single case in this process")
    arguments = parser.parse_args()
    if arguments.n is not None:
        print(json.dumps(CASES[arguments.suite](arguments.n)))
        return
    for case, n in SUITES[arguments.suite]:
        finished = subprocess.run(
            [sys.executable, __file__, case, "--n", str(n)], capture_output=True, text=True, check=False
        )
        last = finished.stdout.strip().splitlines()[-1:] or [finished.stderr[-600:]]
        print(f"{case} n={n}: {last[0]}", flush=True)


if __name__ == "__main__":
    main()
