"""The measurement of all versions on one split: one preparation of the Gram system, one solve for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from distributed import Client

from congruence.kernels.arrays import Array, require_targets
from congruence.kernels.conditional_calibration.version_calibration import calibration_of_split, can_be_tested
from congruence.kernels.congruence.preparation import Prepare, prepare
from congruence.kernels.congruence.prepared import PreparedCongruence, SolvedErrors
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_functions import Kernel
from congruence.kernels.protocol.evaluation import evaluate_references, protocol_references, resolved_output_kernel
from congruence.kernels.protocol.protocol import EvaluationProtocol
from congruence.kernels.protocol.repeats import RepeatedResult
from congruence.kernels.protocol.weighting import Reference
from congruence.kernels.solvers import Checkpoint, ConjugateGradient
from congruence.kernels.solvers.planning import DENSE_LIMIT
from congruence.kernels.weights import mean_one
from congruence.tasks.scores.metrics.asked import MetricName
from congruence.tasks.scores.metrics.registry import requested_metrics
from congruence.tasks.settings.solver import SolverSettings
from congruence.tasks.solving.capacity import cluster_capacity
from congruence.tasks.solving.executor import HERE, Executor
from congruence.tasks.solving.measurement_store import VersionMeasurement
from congruence.tasks.solving.plan import plan_solver
from congruence.tasks.solving.prepare import prepare_on_dask
from congruence.tasks.solving.version_evaluation import (
    HeldVersion,
    JudgedSplit,
    Kept,
    VersionRows,
    calibrated_version,
    judged_version,
    keep_version,
    version_errors,
)


class MeasurementSettings(Protocol):
    """What a measurement reads of an evaluation's settings."""

    @property
    def seed(self) -> int:
        """Of draws and of the noise floor's probes."""

    @property
    def metrics(self) -> list[MetricName] | None:
        """Which metrics; None for all."""


def measure(
    settings: MeasurementSettings,
    protocol: EvaluationProtocol,
    embeddings: Array,
    targets: Array,
    versions: dict[str, Distribution],
    *,
    query: Array | None = None,
    keys: Array | None = None,
    weights: Array | None = None,
    prepare_inputs: Prepare = prepare,
    dependence: RowDependence | None = None,
) -> dict[str, VersionMeasurement]:
    """CCE of every version, estimated on ``embeddings`` (n, d) with ``targets`` (n,) or (n, q), in this process.

    It is measured at the same points, or at the embeddings ``query`` (m, d).
    ``prepare_inputs`` says where Gram systems are prepared: in this process by default, or on a Dask cluster
    (``OnCluster``). ``keys`` name the rows for the randomised PIT of counts, as in the scores;
    ``weights`` are what each point counts in means over them. Calibration given the
    input is measured at the targets' own rows under protocols without repeats (``can_be_tested``). ``dependence`` says
    which rows may depend on each other.
    """
    held = {name: HeldVersion(targets, predictive, keys, name, dependence) for name, predictive in versions.items()}
    return measure_versions(
        settings, protocol, embeddings, targets, held, query=query, weights=weights, prepare_inputs=prepare_inputs
    )


def measure_versions(
    settings: MeasurementSettings,
    protocol: EvaluationProtocol,
    embeddings: Array,
    targets: Array,
    versions: Mapping[str, VersionRows[Kept]],
    *,
    query: Array | None = None,
    weights: Array | None = None,
    prepare_inputs: Prepare = prepare,
    reasons: Mapping[str, str] | None = None,
    calls: Executor | None = None,
) -> dict[str, Kept]:
    """What every version's ``keep`` made of its measurement.

    ``reasons``: why a solver was chosen, by its name, filled in by ``prepare_inputs``. The systems are prepared and
    solved for all versions together; what is of one version alone is done where ``calls`` takes it, which is told where
    the version's rows are and what all versions share, and ends with ``keep``.
    """
    calls = HERE if calls is None else calls
    # Small systems in double precision, wherever they are solved: the flow, the plugin and a plain call agree to 1e-9.
    dtype = np.float64 if len(embeddings) <= DENSE_LIMIT else np.float32
    x = protocol.apply(np.asarray(embeddings, dtype=dtype))
    points = None if query is None else protocol.apply(np.asarray(query, dtype=dtype))
    targets = require_targets(targets, "y", len(x))
    started = time.perf_counter()
    judged, references = _references(protocol, x, points, settings.seed, prepare_inputs)
    if weights is not None:
        counted = mean_one(weights, len(x if points is None else points))
        judged, references = judged.counting(counted), (each.counting(counted) for each in references)
    ready = time.perf_counter()
    kernel = resolved_output_kernel(protocol, targets, x, judged.prepared if protocol.downsampling is None else None)
    solved: Mapping[str, SolvedErrors | RepeatedResult]
    if protocol.is_repeated:
        laws = {name: rows.read().predictive for name, rows in versions.items()}
        solved = evaluate_references(protocol, references, targets, laws, kernel, seed=settings.seed, uncertainty=True)
    else:
        begun = {name: calls.begin(version_errors, rows, kernel) for name, rows in versions.items()}
        errors = {name: calls.result(call) for name, call in begun.items()}
        del begun
        solved = judged.prepared.solve_versions(errors, seed=settings.seed)
        del errors
    seconds = {"prepare": ready - started, "solve": time.perf_counter() - ready}
    tested = "congruence_test" in requested_metrics(settings.metrics)
    judging = JudgedSplit.of(settings.seed, protocol, judged, kernel, seconds, reasons or {}, tested=tested)
    split = calls.share(judging)
    del judging
    congruence = {
        name: calls.begin(judged_version, rows, split, calls.share(solved[name])) for name, rows in versions.items()
    }
    del solved
    calibration: dict[str, Any] = {}
    if "calibration" in requested_metrics(settings.metrics) and can_be_tested(protocol, targets, query):
        # Here, while workers judge the versions: the bases are made of the operator.
        shared = calls.share(calibration_of_split(judged.prepared, x, targets, seed=settings.seed))
        calibration = {name: calls.begin(calibrated_version, rows, split, shared) for name, rows in versions.items()}
    del x, judged, references  # and with them what the workers keep of the system
    kept = {
        name: calls.begin(keep_version, rows, congruence[name], calibration.get(name))
        for name, rows in versions.items()
    }
    return calls.results(kept)


def _references(
    protocol: EvaluationProtocol, x: Array, query: Array | None, seed: int, prepare_inputs: Prepare
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


@dataclass
class OnCluster(Prepare):
    """The Gram system on the workers of ``client``: planned, announced, and refused if it does not fit (``Prepare``).

    Args:
        client: of the cluster.
        settings: the evaluation file's.
        columns: right-hand sides of all versions together.
        folder: where the iterate of a long solve is kept.
        announce: is given one line on which solver runs, with what memory and time.
        gpu: make the tiles on the workers' GPUs.
        because: why an exact solver is asked for, where landmarks were tried; else the plan says why.

    Attributes:
        reasons: why each solver that ran was chosen, by its name.
        checkpoints: iterates of long solves, which stay until their answer is kept.
    """

    client: Client
    settings: SolverSettings
    columns: int
    folder: Path
    announce: Callable[[str], None]
    gpu: bool
    because: str = ""
    reasons: dict[str, str] = field(default_factory=dict)
    checkpoints: list[Checkpoint] = field(default_factory=list)

    def __call__(
        self, x: Array, *, query: Array | None, input_kernel: Kernel, regularization: float, scale: Array | None = None
    ) -> PreparedCongruence:
        capacity = cluster_capacity(self.client, gpu=self.gpu)
        plan = plan_solver(
            self.settings, x, self.columns, input_kernel, regularization, self.folder, capacity, scale=scale
        )
        name = type(plan.solver).__name__
        if name not in self.reasons:  # the bootstraps of a protocol differ by a few points only
            self.announce(plan.announcement)
            self.reasons[name] = self.because or plan.reason
        if isinstance(plan.solver, ConjugateGradient) and plan.solver.checkpoint is not None:
            self.checkpoints.append(plan.solver.checkpoint)
        return prepare_on_dask(
            self.client,
            x,
            query=query,
            input_kernel=input_kernel,
            regularization=regularization,
            solver=plan.solver,
            dtype=plan.dtype,
            gpu=self.gpu,
            held_bytes=plan.held_bytes,
            scale=scale,
        )
