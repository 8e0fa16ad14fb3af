"""CCE of n points with 512 features on the card: seconds, certificate, and the answer of the processor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

ROWS = {"exact-12000": 12_000, "exact-100000": 100_000, "exact-million": 1_000_000}
SMALL = {"exact-12000": 1_500, "exact-100000": 2_500, "exact-million": 5_000}
AGAINST_PROCESSOR = 100_000
SECONDS = {1_000_000: 60.0}


def run(record: Any, name: str, device: str, small: bool) -> None:
    """Two versions on prepared inputs, warm: the kernels are compiled by a small problem before."""
    import cupy
    from cce_engine import REGULARIZATION, problem

    n = (SMALL if small else ROWS)[name]
    _answers(record, "warm-up", cupy.asarray, problem(600), REGULARIZATION)
    with record.sampler.stage("making the data"):
        data = problem(n)
    record.note(n=n, features=int(data[0].shape[1]))
    results = _answers(record, "card", cupy.asarray, data, REGULARIZATION, SECONDS.get(n, 60.0))
    if n > AGAINST_PROCESSOR:
        return
    host = _answers(record, "processor", np.asarray, data, REGULARIZATION)
    for number, (ours, theirs) in enumerate(zip(results, host, strict=True)):
        error = float(np.max(np.abs(ours.values - theirs.values)) / theirs.mean)
        allowed = (ours.error_bound + theirs.error_bound) / theirs.mean
        record.goal(f"version {number}: largest difference over the mean", error, allowed, at_least=False)
        if error > allowed:
            raise AssertionError(f"version {number}: card and processor differ by {error:.3g} of the mean")


def _answers(
    record: Any, where: str, move: Any, data: tuple[Any, ...], regularization: float, wanted: float | None = None
) -> list[Any]:
    """The results of both versions; each is noted when it is there, that of a first with the seconds ``wanted``."""
    from congruence.kernels.congruence.preparation import prepare
    from congruence.kernels.kernel_functions import Polynomial
    from congruence.kernels.solvers import ConjugateGradient

    x, y, *models = data

    def timed(what: str, work: Callable[[], Any]) -> tuple[Any, float]:
        started = time.perf_counter()
        with record.sampler.stage(f"{where}: {what}"):
            done = work()
        seconds = time.perf_counter() - started
        record.note(**{f"{where}: {what}, seconds": round(seconds, 3)})
        return done, seconds

    x, _ = timed("moving the inputs", lambda: move(x))
    solver = ConjugateGradient(certificate="sampled")
    prepared, ready = timed(
        "prepare", lambda: prepare(x, input_kernel=Polynomial(), regularization=regularization, solver=solver)
    )
    results = []
    for name, model in zip(("first version", "second version"), models, strict=True):
        result, seconds = timed(name, lambda model=model: prepared.conditional_congruence_error(y, model))  # type: ignore[misc]
        results.append(result)
        if wanted is not None and len(results) == 1:
            _tell(record, result, x.shape, ready + seconds, wanted)
    return results


def _tell(record: Any, result: Any, shape: tuple[int, int], seconds: float, wanted: float) -> None:
    n, features = shape
    record.note(mean=result.mean, floor=result.noise_floor, passes=result.iterations, bound_kind=result.bound_kind)
    record.note(gram_tflops=round(n * float(n) * result.iterations * features / seconds / 1e12, 2))
    share = result.mean_error_bound / result.mean
    record.goal("certificate of the mean over the mean", share, 1e-4, at_least=False)
    record.goal("largest certificate at a point over the mean", result.error_bound / result.mean, 1e-2, at_least=False)
    record.goal("seconds of prepare and first version", seconds, wanted, at_least=False)
