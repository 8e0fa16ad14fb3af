"""How fast and how exact the engine is, beside the direct definition: `python tests/benchmarks/cce_engine.py SUITE`.

Every case is a process of its own, so that its peak memory is its own. Suites: ``direct`` (against the definition as
public code does it), ``scaling`` (each solver in n), ``large`` (n = 100,000), ``million`` (n = 1,000,000), ``cluster``
(Dask workers, tiled Cholesky against LAPACK). The kept record is cce_engine.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

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


def direct(n, folder):
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


def engine(n, folder, solver="ConjugateGradient", dtype="float32"):
    """prepare and two model versions through the public interface."""
    from congruence.kernels import solvers
    from congruence.kernels.congruence.preparation import prepare
    from congruence.kernels.kernel_functions import Polynomial

    x, y, model, second_model = problem(n)
    before = peak()
    choice = getattr(solvers, solver)(**({"certificate": "sampled"} if solver == "ConjugateGradient" else {}))
    started = time.perf_counter()
    prepared = prepare(
        x.astype(dtype, copy=False), input_kernel=Polynomial(), regularization=REGULARIZATION, solver=choice
    )
    ready = time.perf_counter()
    result = prepared.conditional_congruence_error(y, model)
    first = time.perf_counter()
    again = prepared.conditional_congruence_error(y, second_model)
    done = time.perf_counter()
    np.save(Path(folder) / f"{solver}-{dtype}-{n}.npy", np.stack([result.values, again.values]))
    return {
        "prepare_seconds": ready - started,
        "seconds": first - started,
        "second_version_seconds": done - first,
        "peak_gib": peak(),
        "before_gib": before,
        "passes": result.iterations,
        "mean": result.mean,
        "floor": result.noise_floor,
        "certificate": result.error_bound,
        "mean_certificate": result.mean_error_bound,
    }


def cholesky64(n, folder):
    """The oracle: dense Cholesky in float64."""
    return engine(n, folder, "Cholesky", "float64")


def nystrom(n, folder):
    """The declared approximation."""
    return engine(n, folder, "Nystrom")


def solver_only(n, folder):
    """prepare and solve alone, for the errors of one version and then of another, without the noise floor's probes."""
    from congruence.kernels.gram.operator import RegularizedGram
    from congruence.kernels.kernel_functions import Polynomial
    from congruence.kernels.mean_embeddings.residuals import marginal_kernel, target_errors
    from congruence.kernels.solvers import ConjugateGradient

    x, y, model, second_model = problem(n)
    kernel = marginal_kernel(y)
    deltas = [target_errors(y, version, kernel).delta for version in (model, second_model)]
    solver = ConjugateGradient(certificate="sampled")
    times = [time.perf_counter()]
    state = solver.prepare(RegularizedGram(x, Polynomial(), REGULARIZATION))
    times.append(time.perf_counter())
    for delta in deltas:
        solution = solver.solve(state, delta)
        times.append(time.perf_counter())
    steps = np.diff(times)
    return {
        "prepare_seconds": steps[0],
        "first_solve_seconds": steps[1],
        "second_solve_seconds": steps[2],
        "second_to_first": steps[2] / (steps[0] + steps[1]),
        "rank": deltas[0].shape[1],
        "passes": solution.iterations,
    }


def million(n, folder):
    """Nystrom with its certificate, and its error on 2,000 held-out points against twice the landmarks."""
    from congruence.kernels.gram.operator import RegularizedGram
    from congruence.kernels.kernel_functions import Polynomial
    from congruence.kernels.mean_embeddings.residuals import marginal_kernel, target_errors
    from congruence.kernels.solvers import Nystrom, certified_error

    x, y, model, _ = problem(n)
    query = embeddings(2000, seed=5)
    delta = target_errors(y, model, marginal_kernel(y)).delta
    operator = RegularizedGram(x, Polynomial(), REGULARIZATION)
    values, report = [], {"rank": delta.shape[1], "before_gib": peak()}
    for landmarks in (1000, 2000):
        started = time.perf_counter()
        solver = Nystrom(landmarks, rows=512)
        state = solver.prepare(operator)
        solution = solver.solve(state, delta)
        smoothed = delta - operator.shift * solution.value
        seconds = time.perf_counter() - started
        values.append(np.linalg.norm(operator.cross(query, solution.value), axis=1))
        report[f"m={landmarks}"] = {
            "seconds": seconds,
            "mean": float(np.linalg.norm(smoothed, axis=1).mean()),
            "relative_residual": solution.residual_norm() / float(np.linalg.norm(delta)),
            "certificate": certified_error(
                operator.shift, solution.residual_norm(), float(operator.gram_diagonal().max())
            ),
            "peak_gib": peak(),
        }
        del state, solution
    error = np.abs(values[0] - values[1])
    report["held_out"] = {"mean": float(values[1].mean()), "mean_error": float(error.mean()), "max": float(error.max())}
    return report


def workers(n, folder):
    """One pass over K on 1 and 2 Dask workers and in this process, as a fraction of the matrix-product peak."""
    from congruence.kernels.gram.operator import RegularizedGram
    from congruence.kernels.kernel_functions import Polynomial
    from congruence.tasks.dask.clusters import dask_client
    from congruence.tasks.settings.cluster import ClusterSettings
    from congruence.tasks.solving.points_on_cluster import PointsOnCluster

    x = embeddings(n)
    v = np.random.default_rng(0).standard_normal((n, 30))
    report = {"sgemm_gflops": sgemm_rate()}
    work = n * n * (x.shape[1] + 4 * v.shape[1]) / 1e9
    local = RegularizedGram(x, Polynomial(), REGULARIZATION, held_bytes=0)
    report["in_process"] = best_of(lambda: local.matmul(v), work)
    for count in (1, 2):
        with dask_client(ClusterSettings(kind="local", workers=count)) as client:
            for kept, held_bytes in (("made", 0), ("kept", None)):
                points = PointsOnCluster(client, x, Polynomial(), held_bytes=held_bytes)
                operator = RegularizedGram(points, Polynomial(), REGULARIZATION)
                operator.matmul(v)
                name = f"workers={count}, tiles {kept}"
                report[name] = best_of(lambda operator=operator: operator.matmul(v), work)
    report["sgemm_gflops_after"] = sgemm_rate()
    return report


def tiled(n, folder):
    """Tiled Cholesky on two workers beside LAPACK's spotrf on the same two cores."""
    import scipy.linalg

    from congruence.kernels.gram.operator import RegularizedGram
    from congruence.kernels.kernel_functions import Polynomial
    from congruence.tasks.dask.clusters import dask_client
    from congruence.tasks.settings.cluster import ClusterSettings
    from congruence.tasks.solving.points_on_cluster import PointsOnCluster
    from congruence.tasks.solving.tiled_cholesky import TiledCholesky

    x = embeddings(n)
    work = n**3 / 3 / 1e9
    gram = Polynomial()(x)
    gram[np.diag_indices(n)] += n * REGULARIZATION
    gram = np.asfortranarray(gram)
    started = time.perf_counter()
    scipy.linalg.cholesky(gram, lower=True, overwrite_a=True, check_finite=False)
    report = {"sgemm_gflops": sgemm_rate(), "lapack_gflops": work / (time.perf_counter() - started)}
    del gram
    with dask_client(ClusterSettings(kind="local", workers=2)) as client:
        operator = RegularizedGram(PointsOnCluster(client, x, Polynomial()), Polynomial(), REGULARIZATION)
        operator.gram_diagonal()
        for _ in range(2):
            started = time.perf_counter()
            state = TiledCholesky().prepare(operator)
            seconds = time.perf_counter() - started
            report["tiled_gflops"] = max(report.get("tiled_gflops", 0.0), work / seconds)
            report["tiled_seconds_with_gram"] = seconds
        rhs = np.random.default_rng(0).standard_normal((n, 30))
        started = time.perf_counter()
        solution = TiledCholesky().solve(state, rhs)
        report["solve_seconds"] = time.perf_counter() - started
        report["passes"] = solution.iterations
        report["relative_residual"] = solution.residual_norm() / float(np.linalg.norm(rhs))
    started = time.perf_counter()
    gram = np.asfortranarray(Polynomial()(x))
    gram[np.diag_indices(n)] += n * REGULARIZATION
    built = time.perf_counter()
    scipy.linalg.cholesky(gram, lower=True, overwrite_a=True, check_finite=False)
    report["lapack_gflops_after"] = work / (time.perf_counter() - built)
    report["lapack_seconds_with_gram"] = time.perf_counter() - started
    return report


def sgemm_rate(n=4096):
    """Gflop/s of a large float32 matrix product on every core, best of three."""
    a = np.ones((n, n), dtype=np.float32)
    times = []
    for _ in range(3):
        started = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - started)
    return 2 * n**3 / min(times) / 1e9


def best_of(work, gflop, repeats=3):
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return {"seconds": min(times), "gflops": gflop / min(times)}


def peak():
    """Peak resident memory of this process in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


CASES = {case.__name__: case for case in (direct, engine, cholesky64, nystrom, solver_only, million, workers, tiled)}
SUITES = {
    "direct": [("direct", n) for n in (2000, 6000, 12_000)]
    + [("engine", n) for n in (2000, 6000, 12_000)]
    + [("cholesky64", 12_000), ("solver_only", 12_000)],
    "scaling": [("cholesky64", n) for n in (2000, 4000, 8000)]
    + [("engine", n) for n in (4000, 8000, 16_000, 32_000)]
    + [("nystrom", n) for n in (8000, 32_000, 128_000)],
    "large": [("engine", 100_000)],
    "million": [("million", 1_000_000)],
    "cluster": [("workers", 24_000), ("tiled", 16_000)],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", choices=[*SUITES, *CASES])
    parser.add_argument("--n", type=int, help="size, for a single case in this process")
    parser.add_argument("--folder", help="where per-point values are kept for comparison")
    arguments = parser.parse_args()
    if arguments.n is not None:
        print(json.dumps(CASES[arguments.suite](arguments.n, arguments.folder or tempfile.gettempdir())))
        return
    with tempfile.TemporaryDirectory() as folder:
        for case, n in SUITES[arguments.suite]:
            command = [sys.executable, __file__, case, "--n", str(n), "--folder", folder]
            finished = subprocess.run(command, capture_output=True, text=True, check=False)
            last = finished.stdout.strip().splitlines()[-1:] or [finished.stderr[-600:]]
            print(f"{case} n={n}: {last[0]}", flush=True)
        oracle = Path(folder) / "Cholesky-float64-12000.npy"
        if oracle.exists():
            exact, single = np.load(oracle), np.load(Path(folder) / "ConjugateGradient-float32-12000.npy")
            print("largest relative error of a point:", float(np.max(np.abs(single - exact) / exact)))


if __name__ == "__main__":
    main()
