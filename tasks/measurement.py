"""The measurement of all versions on one split: one preparation of the Gram system, one solve for all of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any
from typing import Protocol as Interface

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.congruence import CongruenceResult, PreparedCongruence, prepare
from congruence.kernels.distributions import Distribution
from congruence.kernels.functions import Kernel
from congruence.kernels.output_scales import output_kernel
from congruence.kernels.protocols import Protocol
from congruence.kernels.significance import CongruenceTest, congruence_tests
from congruence.kernels.solvers import Cholesky, Solver
from congruence.tasks.metric_names import MetricName, requested_metrics
from congruence.tasks.settings import SolverSettings


@dataclass(frozen=True)
class Measurement:
    """What the Gram system of a split said of each version.

    Attributes:
        results: CCE, noise floor and certificate by version.
        protocol: under which they compare.
        solver: what solved the system, in words.
        output_kernel: k_Y with its resolved bandwidth.
        tests: the Monte-Carlo test of congruence by version, where it was asked for.
        seconds: wall time of the preparation and of the solve.
    """

    results: dict[str, CongruenceResult]
    protocol: Protocol
    solver: str
    output_kernel: dict[str, Any]
    tests: dict[str, CongruenceTest] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


class MeasurementSettings(Interface):
    """What a measurement reads of an evaluation's settings."""

    @property
    def solver(self) -> SolverSettings:
        """How the system is solved."""

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
) -> Measurement:
    """CCE of every version at the rows of ``embeddings`` (n, d) with ``targets`` (n,) or (n, q)."""
    x = protocol.apply(np.asarray(embeddings))
    started = time.perf_counter()
    prepared = prepare(
        x,
        input_kernel=protocol.input_kernel,
        regularization=protocol.regularization,
        solver=solver_from(settings.solver),
    )
    ready = time.perf_counter()
    kernel = output_kernel(protocol, targets, prepared)
    results = prepared.evaluate(targets, versions, output_kernel=kernel, samples=protocol.samples, seed=settings.seed)
    solved = time.perf_counter()
    tests = _tests(settings, prepared, targets, versions, kernel)
    seconds = {"prepare": ready - started, "solve": solved - ready, "test": time.perf_counter() - solved}
    return Measurement(results, protocol, type(prepared.solver).__name__, kernel.describe(), tests, seconds)


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


def solver_from(settings: SolverSettings) -> Solver | None:
    """The solver that the settings name; None lets the size decide."""
    if settings.kind == "cholesky":
        return Cholesky()
    return None


def embedding_map(embeddings: Array, valid: Array) -> Array:
    """The first two principal components of the embeddings (v, d) of the valid rows: (n, 2), NaN where invalid."""
    centered = np.asarray(embeddings, dtype=np.float64) - np.mean(embeddings, axis=0, dtype=np.float64)
    _, axes = np.linalg.eigh(centered.T @ centered)
    picture = np.full((len(valid), 2), np.nan)
    picture[valid] = (centered @ axes[:, -1:-3:-1])[:, :2]
    return picture
