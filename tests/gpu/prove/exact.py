"""CCE of n points with 512 features on the card: seconds, certificate, and the answer of the processor."""

from __future__ import annotations

import time
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
    _answer(record, "warm-up", cupy.asarray, problem(600), REGULARIZATION)
    with record.sampler.stage("making the data"):
        data = problem(n)
    record.note(n=n, features=int(data[0].shape[1]))
    found = _answer(record, "card", cupy.asarray, data, REGULARIZATION)
    for what, seconds in found["seconds"].items():
        record.note(**{f"card_{what}_seconds": round(seconds, 3)})
    first = found["results"][0]
    share = first.mean_error_bound / first.mean
    record.note(mean=first.mean, floor=first.noise_floor, passes=first.iterations, bound_kind=first.bound_kind)
    record.goal("certificate of the mean over the mean", share, 1e-4, at_least=False)
    record.goal("largest certificate at a point over the mean", first.error_bound / first.mean, 1e-2, at_least=False)
    total = found["seconds"]["prepare"] + found["seconds"]["first version"]
    record.goal("seconds of prepare and first version", total, SECONDS.get(n, 60.0), at_least=False)
    entries = n * float(n) * first.iterations
    record.note(gram_tflops=round(entries * data[0].shape[1] / total / 1e12, 2))
    if n > AGAINST_PROCESSOR:
        return
    host = _answer(record, "processor", np.asarray, data, REGULARIZATION)
    for what, seconds in host["seconds"].items():
        record.note(**{f"processor_{what}_seconds": round(seconds, 3)})
    for number, (ours, theirs) in enumerate(zip(found["results"], host["results"], strict=True)):
        error = float(np.max(np.abs(ours.values - theirs.values)) / theirs.mean)
        allowed = (ours.error_bound + theirs.error_bound) / theirs.mean
        record.goal(f"version {number}: largest difference over the mean", error, allowed, at_least=False)
        if error > allowed:
            raise AssertionError(f"version {number}: card and processor differ by {error:.3g} of the mean")


def _answer(record: Any, where: str, move: Any, data: tuple[Any, ...], regularization: float) -> dict[str, Any]:
    from congruence.kernels.congruence.preparation import prepare
    from congruence.kernels.kernel_functions import Polynomial
    from congruence.kernels.solvers import ConjugateGradient

    x, y, *models = data
    stage, seconds = record.sampler.stage, {}
    started = time.perf_counter()
    with stage(f"{where}: moving the inputs"):
        x = move(x)
    seconds["move"] = time.perf_counter() - started
    started = time.perf_counter()
    with stage(f"{where}: prepare"):
        solver = ConjugateGradient(certificate="sampled")
        prepared = prepare(x, input_kernel=Polynomial(), regularization=regularization, solver=solver)
    seconds["prepare"] = time.perf_counter() - started
    results = []
    for name, model in zip(("first version", "second version"), models, strict=True):
        started = time.perf_counter()
        with stage(f"{where}: {name}"):
            results.append(prepared.conditional_congruence_error(y, model))
        seconds[name] = time.perf_counter() - started
    return {"seconds": seconds, "results": results}
