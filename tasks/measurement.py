"""The measurement of all versions on one split: one preparation of the Gram system, one solve for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

import numpy as np
from distributed import Client

from congruence.kernels.arrays import Array
from congruence.kernels.congruence import CongruenceResult, PreparedCongruence, prepare
from congruence.kernels.distributions import Distribution
from congruence.kernels.functions import Kernel
from congruence.kernels.output_scales import output_kernel
from congruence.kernels.protocols import Protocol
from congruence.kernels.repeats import RepeatedResult, evaluate_protocol
from congruence.kernels.significance import CongruenceTest, congruence_tests
from congruence.kernels.solvers.auto import DENSE_LIMIT
from congruence.tasks.linalg import prepare_on_dask
from congruence.tasks.metric_names import MetricName, requested_metrics
from congruence.tasks.solver_plan import SolverSettings, plan_solver

PrepareInputs = Callable[[Array, Array | None, Protocol], PreparedCongruence]


@dataclass(frozen=True)
class Measurement:
    """What the Gram system of a split said of each version.

    Attributes:
        results: CCE, noise floor and certificate by version.
        protocol: under which they compare.
        solver: what solved the system, in words.
        output_kernel: k_Y with its resolved bandwidth.
        tests: the Monte-Carlo test of congruence by version, where it was asked for.
        repeat_std: standard deviation of the mean CCE over the repeats of a protocol that has them, by version.
        seconds: wall time of the preparation and of the solve.
    """

    results: dict[str, CongruenceResult]
    protocol: Protocol
    solver: str
    output_kernel: dict[str, Any]
    tests: dict[str, CongruenceTest] = field(default_factory=dict)
    repeat_std: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class MeasurementSettings(Interface):
    """What a measurement reads of an evaluation's settings."""

    @property
    def seed(self) -> int:
        """Of draws and of the noise floor's probes."""

    @property
    def metrics(self) -> list[MetricName] | None:
        """Which metrics; None for all."""


def measure(
    settings: MeasurementSettings,
    protocol: Protocol,
    embeddings: Array,
    targets: Array,
    versions: dict[str, Distribution],
    *,
    query: Array | None = None,
    prepare_inputs: PrepareInputs | None = None,
) -> Measurement:
    """CCE of every version, estimated on ``embeddings`` (n, d) with ``targets`` (n,) or (n, q).

    It is measured at the same points, or at the embeddings ``query`` (m, d).
    ``prepare_inputs`` says where the Gram system is prepared: in this process by default, or on a Dask cluster
    (``on_cluster``).
    """
    # Small systems in double precision, wherever they are solved: the flow, the plugin and a plain call agree to 1e-9.
    dtype = np.float64 if len(embeddings) <= DENSE_LIMIT else np.float32
    x = protocol.apply(np.asarray(embeddings, dtype=dtype))
    started = time.perf_counter()
    points = None if query is None else protocol.apply(np.asarray(query, dtype=dtype))
    prepared = (prepare_inputs or in_memory)(x, points, protocol)
    ready = time.perf_counter()
    kernel = output_kernel(protocol, targets, prepared)
    spread: dict[str, float] = {}
    if protocol.samples is not None or protocol.bootstraps:
        repeated = evaluate_protocol(protocol, embeddings, targets, versions, query=query, seed=settings.seed)
        results = {name: _averaged(result) for name, result in repeated.items()}
        spread = {name: result.std for name, result in repeated.items()}
    else:
        results = prepared.evaluate(targets, versions, output_kernel=kernel, seed=settings.seed)
    solved = time.perf_counter()
    tests = _tests(settings, prepared, targets, versions, kernel)
    seconds = {"prepare": ready - started, "solve": solved - ready, "test": time.perf_counter() - solved}
    return Measurement(results, protocol, type(prepared.solver).__name__, kernel.describe(), tests, spread, seconds)


def _averaged(result: RepeatedResult) -> CongruenceResult:
    """The mean over a protocol's repeats: its floor is known for the whole split, its solver's error is not tracked."""
    floor = np.full(len(result.values), result.noise_floor)
    return CongruenceResult(result.values, floor, float("nan"), float("nan"), 0.0, 0)


def in_memory(x: Array, query: Array | None, protocol: Protocol) -> PreparedCongruence:
    """The Gram system in this process, by the solver that fits its size."""
    return prepare(x, query=query, input_kernel=protocol.input_kernel, regularization=protocol.regularization)


def on_cluster(
    client: Client, settings: SolverSettings, columns: int, folder: Path, announce: Callable[[str], None], *, gpu: bool
) -> PrepareInputs:
    """The Gram system on the workers of ``client``: planned, announced, and refused if it does not fit.

    Args:
        client: of the cluster.
        settings: the evaluation file's.
        columns: right-hand sides of all versions together.
        folder: where the iterate of a long solve is kept.
        announce: told in one line which solver runs, with what memory and time.
        gpu: make the tiles on the workers' GPUs.
    """

    def prepare_inputs(x: Array, query: Array | None, protocol: Protocol) -> PreparedCongruence:
        plan = plan_solver(settings, x, columns, protocol.input_kernel, protocol.regularization, folder)
        announce(plan.announcement)
        return prepare_on_dask(
            client,
            x,
            query=query,
            input_kernel=protocol.input_kernel,
            regularization=protocol.regularization,
            solver=plan.solver,
            dtype=plan.dtype,
            gpu=gpu,
        )

    return prepare_inputs


def _tests(
    settings: MeasurementSettings,
    prepared: PreparedCongruence,
    targets: Array,
    versions: dict[str, Distribution],
    kernel: Kernel,
) -> dict[str, CongruenceTest]:
    if "congruence_test" not in requested_metrics(settings.metrics):
        return {}
    return congruence_tests(prepared, targets, versions, output_kernel=kernel, seed=settings.seed)


def embedding_map(embeddings: Array, valid: Array) -> Array:
    """The first two principal components of the embeddings (v, d) of the valid rows: (n, 2), NaN where invalid."""
    centered = np.asarray(embeddings, dtype=np.float64) - np.mean(embeddings, axis=0, dtype=np.float64)
    _, axes = np.linalg.eigh(centered.T @ centered)
    picture = np.full((len(valid), 2), np.nan)
    picture[valid] = (centered @ axes[:, -1:-3:-1])[:, :2]
    return picture
