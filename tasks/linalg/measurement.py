"""The measurement of all versions on one split: one preparation of the Gram system, one solve for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from typing import Protocol as Interface

import numpy as np
from distributed import Client

from congruence.kernels.arrays import Array
from congruence.kernels.congruence.expected import ExpectedCongruence, expected_congruence
from congruence.kernels.congruence.prepared import Prepare, PreparedCongruence, prepare
from congruence.kernels.congruence.result import CongruenceResult
from congruence.kernels.congruence.test import CongruenceTest, congruence_tests
from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.protocol.evaluation import evaluate_references, protocol_references, resolved_output_kernel
from congruence.kernels.protocol.protocol import Protocol
from congruence.kernels.protocol.weighting import Reference
from congruence.kernels.solvers import Checkpoint, ConjugateGradient
from congruence.kernels.solvers.planning import DENSE_LIMIT
from congruence.tasks.linalg import cluster_capacity, prepare_on_dask
from congruence.tasks.linalg.calibration import VersionCalibration, can_be_tested, measure_calibration
from congruence.tasks.linalg.measured import VersionMeasurement
from congruence.tasks.linalg.plan import plan_solver
from congruence.tasks.scores.names import MetricName, requested_metrics
from congruence.tasks.settings.solver import SolverSettings


@dataclass(frozen=True)
class Measurement:
    """What the Gram system of a split said of each version.

    Attributes:
        results: CCE with its uncertainty, noise floor and certificate by version.
        protocol: under which they compare.
        solver: what solved the system, in words.
        output_kernel: k_Y with its resolved bandwidth.
        tests: the Monte-Carlo test of congruence by version, where it was asked for.
        expected: what the mean CCE of each version would be if it were the truth.
        repeat_std: standard deviation of the mean CCE over the repeats of a protocol that has them, by version.
        seconds: wall time of the preparation and of the solve.
        checkpoints: iterates of long solves, kept until their answer is logged.
        calibration: test of calibration given the input and local reading by version, where asked for and possible.
    """

    results: dict[str, CongruenceResult]
    protocol: Protocol
    solver: str
    output_kernel: dict[str, Any]
    tests: dict[str, CongruenceTest] = field(default_factory=dict)
    expected: dict[str, ExpectedCongruence] = field(default_factory=dict)
    repeat_std: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    calibration: dict[str, VersionCalibration] = field(default_factory=dict)

    def of(self, version: str) -> VersionMeasurement:
        """What was said of one version."""
        return VersionMeasurement(
            self.results[version],
            self.solver,
            self.output_kernel,
            self.tests.get(version),
            self.expected.get(version),
            self.repeat_std.get(version),
            self.seconds,
            self.calibration.get(version),
        )

    def clear_checkpoints(self) -> None:
        """Remove the iterates: the answer is where it was wanted."""
        for checkpoint in self.checkpoints:
            checkpoint.clear()


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
    keys: Array | None = None,
    prepare_inputs: Prepare = prepare,
) -> Measurement:
    """CCE of every version, estimated on ``embeddings`` (n, d) with ``targets`` (n,) or (n, q).

    It is measured at the same points, or at the embeddings ``query`` (m, d).
    ``prepare_inputs`` says where Gram systems are prepared: in this process by default, or on a Dask cluster
    (``on_cluster``). ``keys`` name the rows for the randomised PIT of counts, as in the scores. Calibration given the
    input is measured at the targets' own rows under protocols without repeats (``can_be_tested``).
    """
    # Small systems in double precision, wherever they are solved: the flow, the plugin and a plain call agree to 1e-9.
    dtype = np.float64 if len(embeddings) <= DENSE_LIMIT else np.float32
    x = protocol.apply(np.asarray(embeddings, dtype=dtype))
    points = None if query is None else protocol.apply(np.asarray(query, dtype=dtype))
    checkpoints: list[Checkpoint] = []
    remembering = _remembering(prepare_inputs, checkpoints)
    started = time.perf_counter()
    judged, references = _references(protocol, x, points, settings.seed, remembering)
    ready = time.perf_counter()
    kernel = resolved_output_kernel(protocol, targets, x, judged.prepared if protocol.downsampling is None else None)
    results: dict[str, CongruenceResult] = {}
    spread: dict[str, float] = {}
    if protocol.samples is not None or protocol.bootstraps or protocol.downsampling is not None:
        repeated = evaluate_references(
            protocol, references, targets, versions, kernel, seed=settings.seed, uncertainty=True
        )
        results.update(repeated)
        spread = {name: result.std for name, result in repeated.items()}
    else:
        results = judged.prepared.evaluate(
            targets, versions, output_kernel=kernel, seed=settings.seed, uncertainty=True
        )
    solved = time.perf_counter()
    chosen = {name: _rows_of(predictive, judged.rows, len(targets)) for name, predictive in versions.items()}
    expected = _expected(settings, judged, targets, chosen, kernel, results)
    tested = "congruence_test" in requested_metrics(settings.metrics)
    tests = _tests(settings, protocol, judged, targets, chosen) if tested else {}
    tested_at = time.perf_counter()
    seconds = {"prepare": ready - started, "solve": solved - ready, "test": tested_at - solved}
    calibration: dict[str, VersionCalibration] = {}
    if "calibration" in requested_metrics(settings.metrics) and can_be_tested(protocol, targets, query):
        calibration = measure_calibration(judged.prepared, x, targets, versions, keys=keys, seed=settings.seed)
        seconds["calibration"] = time.perf_counter() - tested_at
    solver = type(judged.prepared.solver).__name__
    described = kernel.describe()
    return Measurement(results, protocol, solver, described, tests, expected, spread, seconds, checkpoints, calibration)


def _remembering(prepare_inputs: Prepare, checkpoints: list[Checkpoint]) -> Prepare:
    """``prepare_inputs`` that notes where the solvers it chose keep their iterates."""

    def prepare_and_note(
        x: Any, *, query: Any | None, input_kernel: Kernel, regularization: float
    ) -> PreparedCongruence:
        prepared = prepare_inputs(x, query=query, input_kernel=input_kernel, regularization=regularization)
        if isinstance(prepared.solver, ConjugateGradient) and prepared.solver.checkpoint is not None:
            checkpoints.append(prepared.solver.checkpoint)
        return prepared

    return prepare_and_note


def _references(
    protocol: Protocol, x: Array, query: Array | None, seed: int, prepare_inputs: Prepare
) -> tuple[Reference, Iterator[Reference]]:
    """The reference that the test judges by, and those that the protocol's repeats average over."""
    if protocol.downsampling is None:
        prepared = prepare_inputs(
            x, query=query, input_kernel=protocol.input_kernel, regularization=protocol.regularization
        )
        references = protocol_references(
            protocol, x, query, prepared=prepared, seed=seed, prepare_inputs=prepare_inputs
        )
        return Reference.whole(prepared), references
    references = protocol_references(protocol, x, query, seed=seed, prepare_inputs=prepare_inputs)
    first = next(references)
    return first, chain([first], references)


def on_cluster(
    client: Client, settings: SolverSettings, columns: int, folder: Path, announce: Callable[[str], None], *, gpu: bool
) -> Prepare:
    """The Gram system on the workers of ``client``: planned, announced, and refused if it does not fit.

    Args:
        client: of the cluster.
        settings: the evaluation file's.
        columns: right-hand sides of all versions together.
        folder: where the iterate of a long solve is kept.
        announce: told in one line which solver runs, with what memory and time.
        gpu: make the tiles on the workers' GPUs.
    """

    announced: set[str] = set()

    def prepare_inputs(
        x: Array, *, query: Array | None, input_kernel: Kernel, regularization: float
    ) -> PreparedCongruence:
        capacity = cluster_capacity(client, gpu=gpu)
        plan = plan_solver(settings, x, columns, input_kernel, regularization, folder, capacity)
        if type(plan.solver).__name__ not in announced:  # the bootstraps of a protocol differ by a few points only
            announce(plan.announcement)
            announced.add(type(plan.solver).__name__)
        return prepare_on_dask(
            client,
            x,
            query=query,
            input_kernel=input_kernel,
            regularization=regularization,
            solver=plan.solver,
            dtype=plan.dtype,
            gpu=gpu,
            held_bytes=plan.held_bytes,
        )

    return prepare_inputs


def _tests(
    settings: MeasurementSettings,
    protocol: Protocol,
    judged: Reference,
    targets: Array,
    versions: dict[str, Distribution],
) -> dict[str, CongruenceTest]:
    """By each version's own kernel at the protocol's scale: one that is read off the targets is not exact."""
    return congruence_tests(
        judged.prepared,
        targets[judged.rows],
        versions,
        output_kernel=protocol.output_kernel,
        output_scale=protocol.output_scale,
        seed=settings.seed,
        roots=_unequal(judged.roots),
    )


def _expected(
    settings: MeasurementSettings,
    judged: Reference,
    targets: Array,
    versions: dict[str, Distribution],
    kernel: Kernel,
    results: dict[str, CongruenceResult],
) -> dict[str, ExpectedCongruence]:
    """By the kernel of the mean CCE itself, beside which it stands."""
    return {
        name: expected_congruence(
            judged.prepared.smoother,
            targets[judged.rows],
            predictive,
            kernel,
            mean_squared_floor=float(np.mean(results[name].noise_floor_values ** 2)),
            roots=_unequal(judged.roots),
            seed=settings.seed,
        )
        for name, predictive in versions.items()
    }


def _unequal(roots: Array) -> Array | None:
    return None if np.all(roots == 1.0) else roots


def _rows_of(predictive: Distribution, rows: Array, total: int) -> Distribution:
    return predictive if len(rows) == total else predictive[rows]
