"""The passes that make CCE: right-hand sides, the small solves of their sums, and what every row then scores.

The noise floor E[CCE(x)^2] = sum_i a_i(x)^2 v_i of a true version is read off few random probes z_i = +-sqrt(v_i):
(k(x)' A^-1 z)^2 has that expectation (Hutchinson 1990). The leading spectrum L of the smoother W knows most of both
sums, so only the rest is left to chance: E[CCE(x_j)^2] = sum_i L_ji^2 v_i + E[(W z)_j^2 - (L z)_j^2]. The estimate is
unbiased whatever L is; 16 probes leave 1 to 4 % of the root at a point that L sees. Short exact systems know
it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import BlockRows, BlockSums, Pass, Write, chosen_in
from congruence.kernels.engine.congruence_test import simulated_errors
from congruence.kernels.engine.plan import PlannedVersion
from congruence.kernels.engine.results import BoundKind, CongruenceUncertainty, ErrorBounds
from congruence.kernels.engine.system import (
    System,
    SystemInputs,
    product,
    projected,
    residual_bounds,
    squares_at,
    weighted_squares,
)
from congruence.kernels.engine.targets import TargetErrors, require_share
from congruence.kernels.engine.uncertainty import (
    SUMMED_ROWS,
    InfluenceWeights,
    ResidualFit,
    add_coefficients,
    add_points,
    add_residuals,
)

EXACT_FLOOR_ENTRIES = 2000**2
"""Of rows and points of an exact system, up to which the floor is exact: n more right-hand sides cost six times the
factor."""
_UNIT = float(np.finfo(np.float64).eps) / 2.0


def right_hand_sides_pass(
    block: BlockRows, system: SystemInputs, versions: Sequence[PlannedVersion], residual_positions: Array
) -> Pass:
    """What the reference rows of a block add for every version: C'[Delta, probes] and its draws.

    Args:
        block: its rows.
        system: the inputs' side, with its leading directions.
        versions: those to add up.
        residual_positions: sorted positions at which Delta is kept, to read the residual on.
    """
    reference = _Reference(block, system, versions)
    points, _ = system.points(block)
    for rows, columns, vectors in system.tiles(points, whole=not system.is_exact):
        positions = reference.begin(rows)
        columns, vectors = (system.scaled(each, block.first, rows) for each in (columns, vectors))
        kept = chosen_in(residual_positions, int(positions[0]), len(positions))
        for version in versions:
            added, error = reference.sums[version.label], reference.errors(version, measured=True)
            probes = version.probes(error.variance, positions)
            sides = np.hstack([error.delta, probes])
            if system.is_exact:
                added.keep("right-hand sides", sides)
                added.keep("variance of rows", error.variance)
            else:
                added.add("projections", projected(columns, sides))
            exact = vectors.astype(np.float64)  # where the probes see all of a point's floor, two large sums leave it
            added.add("variance", weighted_squares(exact, error.variance))
            added.add("probes", projected(exact, probes))
            added.keep("residual", error.delta[kept])
            assert error.missed is not None
            scalars = {"squares": error.delta**2, "missed": error.missed.rows, "outside": error.missed.outside}
            for name, values in scalars.items():
                added.add(name, float(np.sum(values)))
            added.raise_to("sampled", float(version.features.is_sampled))
            if version.is_uncertain:
                add_coefficients(added, vectors, error.delta, positions, version.blocks)
                if error.sampling_variance is not None:
                    added.add("sampling variance", weighted_squares(vectors, error.sampling_variance))
            if version.simulated is not None:
                version.simulated.add(added, vectors, *reference.given(version), positions, roots=reference.roots)
    return reference.sums


@dataclass(frozen=True)
class VersionAnswer:
    """What blocks need to score a version: of size m or k, but for exact systems.

    Attributes:
        version: its features.
        weights: by which K[x, landmarks] gives [Delta, probes] smoothed, (m, r + p).
        solution: Z of an exact system whose rows count equally, (n, r + p); None of others.
        floor_squares: F U'diag(v)U F with the filters F, (k, k).
        floor_probes: F U'z, (k, p).
        inverse: S A^-1 of a short exact system, (n, n), and ``variance`` (n,), for its exact noise floor; else None.
        fit: that residuals are taken from; None where no standard errors are asked for.
        simulated: filters times U'Delta* of the observed targets and of every simulated split, (r, k, 1 + draws).
    """

    version: PlannedVersion
    weights: Array = field(repr=False)
    solution: Array | None = field(repr=False)
    floor_squares: Array = field(repr=False)
    floor_probes: Array = field(repr=False)
    inverse: Array | None = field(repr=False)
    variance: Array | None = field(repr=False)
    fit: ResidualFit | None
    simulated: Array | None = field(repr=False)

    @property
    def rank(self) -> int:
        """r."""
        return self.version.features.rank

    @classmethod
    def of(cls, system: System, version: PlannedVersion, sums: BlockSums, inverse: Array | None) -> VersionAnswer:
        """The small solves of a version, from what all blocks added."""
        inputs, filters = system.inputs, system.inputs.filters
        solution, variance = None, None
        if inputs.is_exact:
            weights = system.factor.solve(sums.rows("right-hand sides"))
            solution = weights if inputs.roots is None else None
            weights = weights if inputs.roots is None else inputs.roots[:, None] * weights
            variance = None if inverse is None else sums.rows("variance of rows")
        else:
            weights = system.factor.solve(sums.added["projections"])
        drawn = version.simulated
        return cls(
            version,
            weights,
            solution,
            filters[:, None] * sums.added["variance"] * filters,
            filters[:, None] * sums.added["probes"],
            inverse,
            variance,
            ResidualFit.of(filters, sums, inputs.n, version.blocks) if version.is_uncertain else None,
            None if drawn is None or drawn.tested is None else drawn.null_coefficients(sums, filters),
        )

    def squared_floor(self, columns: Any, vectors: Array, probes: Array) -> tuple[Array, Array]:
        """Returns E[CCE(x_j)^2], (m,), at points U (m, k) with smoothed probes W z (m, p), and (W - L) z, (m, p)."""
        exact = vectors.astype(np.float64)
        known = product(exact, self.floor_probes)
        rest = probes - known
        if self.inverse is not None and self.variance is not None:
            return np.asarray(product(columns, self.inverse) ** 2 @ self.variance), rest
        chance = np.mean(rest * (probes + known), axis=1)
        return np.asarray(np.maximum(squares_at(exact, self.floor_squares) + chance, 0.0)), rest


@dataclass(frozen=True)
class Solved:
    """What the passes of one landmark count found, up to the influences of rows.

    Attributes:
        system: of the reference.
        answers: of the versions.
        right_hand_sides, scores: what all blocks added.
        points: how many there are.
        elsewhere: whether they are other than the reference rows.
    """

    system: System
    answers: list[VersionAnswer]
    right_hand_sides: Pass
    scores: Pass
    points: int
    elsewhere: bool

    @cached_property
    def certificates(self) -> dict[str, ErrorBounds]:
        """Bounds on the error of every answer: its residual on sampled rows, and what the features miss.

        Raises:
            BudgetError: the features miss more than a twentieth of the errors.
        """
        return {answer.version.label: self._certificate(answer) for answer in self.answers}

    @property
    def worst(self) -> float:
        """The largest certificate as a share of its mean CCE, or of its noise floor where that is larger."""
        tiny, shares = float(np.finfo(float).tiny), []
        for name, stated in self.certificates.items():
            added = self.scores[name].added
            least = max(float(max(added["values"], added["floor"])) / self.points, tiny)
            shares.append(float(stated.in_mean) / least)
        return max(shares)

    def influence_weights(self) -> dict[str, tuple[PlannedVersion, InfluenceWeights]]:
        """Returns what makes the influences of rows, by version, of those whose standard errors are asked for."""
        inputs, found = self.system.inputs, {}
        for version, fit in ((answer.version, answer.fit) for answer in self.answers):
            if fit is not None:
                counted = self.scores[version.label], self.points, inputs.n
                found[version.label] = version, InfluenceWeights.of(inputs.filters, fit, *counted)
        return found

    def uncertainty(self, label: str, weights: InfluenceWeights, influence: BlockSums) -> CongruenceUncertainty:
        """Returns the standard errors of a version from the sums of ``influence_pass``, without influences of rows."""
        scores, sides = self.scores[label], self.right_hand_sides[label]
        if "sampling variance" in sides.added:
            influence.add("sampling variance", sides.added["sampling variance"])
        means = scores.added["values"] / self.points, scores.added["squared values"] / self.points
        at_points = scores.rows("vectors at points"), scores.rows("smoothed at points")
        return weights.uncertainty(influence, *at_points, means, weights=self.shown_weights(label))

    def shown_weights(self, label: str) -> Array | None:
        """Returns what the points count over which means under drawn signs run; None where they count equally."""
        found = self.scores[label]
        return np.asarray(found.rows("weights at points")) if "weights at points" in found.kept else None

    def _certificate(self, answer: VersionAnswer) -> ErrorBounds:
        inputs, (at_rows, _) = self.system.inputs, self.system.residual_positions
        sides, scores = self.right_hand_sides[answer.version.label], self.scores[answer.version.label]
        delta, roots = sides.rows("residual"), 1.0 if inputs.roots is None else inputs.roots[at_rows, None]
        if inputs.is_exact:
            weights = answer.weights[:, : answer.rank]
            kz = np.asarray(inputs.kernel(inputs.residual, inputs.landmarks)) @ weights
            residual = delta - roots * kz[: len(at_rows)] - inputs.shift * (weights[at_rows] / roots)
        else:
            kz = scores.added["K Z"]
            residual = scores.rows("read") - roots * kz[: len(at_rows)]
        read = scores.rows("read at points") - kz[len(at_rows) :] if self.elsewhere else None
        rounding = 8.0 * _UNIT * float(np.sqrt(sides.added["squares"]))
        bounds = residual_bounds(self.system, residual, read, self.points, rounding)
        bound, mean = bounds.at_point, bounds.in_mean
        if "squared weights" in scores.added:  # of a mean under weights of mean 1: the root mean square, by Cauchy
            mean = min(bound, mean * float(np.sqrt(scores.added["squared weights"] / self.points)))
        features = self._feature_bound(answer.rank, sides, -scores.largest["-value"] - bound)
        kind: BoundKind = "sampled" if sides.largest["sampled"] else bounds.kind
        return ErrorBounds(bound + features, mean + features, kind)

    def _feature_bound(self, rank: int, sides: BlockSums, smallest: float) -> float:
        """Returns what psi misses of CCE, measured on all targets, where at least ``smallest`` was computed."""
        inputs, missed = self.system.inputs, sides.added["missed"]
        if sides.largest["sampled"]:
            require_share(missed, sides.added["squares"] + missed, inputs.n, rank)
        weight = self.system.kernel_maximum / (4.0 * inputs.shift)  # of |a(x)|^2
        squared = float(weight * (missed + 2.0 * np.sqrt(inputs.n * sides.added["outside"])))
        return min(float(np.sqrt(squared)), squared / max(smallest, float(np.finfo(np.float64).tiny)))


@dataclass(frozen=True)
class Asked:
    """Where errors are asked for.

    Attributes:
        points: how many.
        rows: positions of the reference rows on which the residual is read.
        at: positions of the points at which it is, where they are no reference rows.
        shown: positions of the points over which means under drawn signs run, for bands and standard errors.
    """

    points: int
    rows: Array = field(repr=False)
    at: Array = field(repr=False)
    shown: Array = field(repr=False)


def scores_pass(
    block: BlockRows, system: SystemInputs, answers: Sequence[VersionAnswer], asked: Asked, write: Write
) -> Pass:
    """What the rows of a block add where they are both reference rows and the points at which CCE is wanted.

    The columns of the rows are written: cce, noise_floor, p_value, statistic; of rows that count unequally in means,
    their weight.
    """
    points, double = system.points(block)
    reference = _Reference(block, system, [answer.version for answer in answers], double)
    scores = _Points(block, answers, asked)
    whole = not system.is_exact or any(answer.inverse is not None for answer in answers)
    for rows, columns, vectors in system.tiles(points, whole=whole):
        positions = reference.begin(rows)
        for answer in answers:
            error = reference.errors(answer.version)
            if answer.solution is not None:
                sides = np.hstack([error.delta, answer.version.probes(error.variance, positions)])
                smoothed = sides - system.shift * answer.solution[positions]
            else:
                smoothed = product(columns, answer.weights)
            reference.add(answer, asked, error, smoothed[:, : answer.rank], vectors)
            scores.add(answer, rows, columns, vectors, smoothed)
    scores.write(write)
    return {name: sums.merge(reference.sums[name]) for name, sums in scores.sums.items()}


def reference_pass(block: BlockRows, system: SystemInputs, answers: Sequence[VersionAnswer], asked: Asked) -> Pass:
    """What reference rows add where the points are others: residuals of fits, and K Z where the residual is read."""
    points, double = system.points(block)
    reference = _Reference(block, system, [answer.version for answer in answers], double)
    for rows, columns, vectors in system.tiles(points, whole=not system.is_exact):
        reference.begin(rows)
        vectors, columns = (system.scaled(each, block.first, rows) for each in (vectors, columns))
        for answer in answers:
            smoothed = None if system.is_exact else product(columns, answer.weights[:, : answer.rank])
            reference.add(answer, asked, reference.errors(answer.version), smoothed, vectors)
    return reference.sums


def points_pass(
    block: BlockRows, system: SystemInputs, answers: Sequence[VersionAnswer], asked: Asked, write: Write
) -> Pass:
    """What points add that are no reference rows; see ``scores_pass`` for the columns."""
    scores = _Points(block, answers, asked)
    points, _ = system.points(block)
    for rows, columns, vectors in system.tiles(points):
        for answer in answers:
            smoothed = product(columns, answer.weights)
            scores.add(answer, rows, columns, vectors, smoothed)
            read = chosen_in(asked.at, block.first + rows.start, len(columns))
            scores.sums[answer.version.label].keep("read at points", smoothed[read, : answer.rank])
    scores.write(write)
    return scores.sums


class _Reference:
    """The reference rows of a block, a tile at a time: their errors by every version, and what they add."""

    def __init__(
        self, block: BlockRows, system: SystemInputs, versions: Sequence[PlannedVersion], double: Array | None = None
    ) -> None:
        """``double``: all inputs of the block in double precision, where the residual of landmarks is read."""
        self._system, self._first, self._targets = system, block.first, block.targets()
        self._predictive = {version.name: block.predictive(version.name) for version in versions}
        self._double = None if system.is_exact else double
        self._residual = None if self._double is None else system.placed(system.residual)
        self.sums = {version.label: BlockSums() for version in versions}

    def begin(self, rows: slice) -> Array:
        """Begin a tile, whose positions are returned."""
        system, self._rows = self._system, rows
        self.positions = np.arange(self._first + rows.start, self._first + rows.stop)
        self.roots = None if system.roots is None else system.roots[self.positions]
        if self._double is not None:
            make = partial(system.kernel, system.placed(self._double[rows]), self._residual)
            self._at_residual = system.between_passes(0, self._first, rows, make)
        return self.positions

    def given(self, version: PlannedVersion) -> tuple[Array, Distribution]:
        """Returns targets and predictions of the tile's rows."""
        return self._targets[self._rows], self._predictive[version.name][self._rows]

    def errors(self, version: PlannedVersion, *, measured: bool = False) -> TargetErrors:
        """Returns the errors of the tile's rows; of a tile that is the first block as the first pass made them."""
        if len(version.first) and self._is_first:
            return version.first[0]
        found = version.errors(*self.given(version), self.positions, self.roots, measured=measured)
        if measured and self._is_first:
            version.first.append(found)
        return found

    @property
    def _is_first(self) -> bool:
        return self._first == 0 and len(self.positions) == len(self._targets)

    def add(
        self, answer: VersionAnswer, asked: Asked, error: TargetErrors, smoothed: Array | None, vectors: Array
    ) -> None:
        """Add the tile's rows, from their smoothed errors where these are at hand."""
        sums = self.sums[answer.version.label]
        if answer.fit is not None:
            residuals = answer.fit.residuals(vectors, error.delta, self.positions)
            add_residuals(sums, residuals, error.variance)
        if self._double is None or smoothed is None:
            return
        value = (error.delta - smoothed) / self._system.shift
        sums.add("K Z", projected(self._at_residual, value if self.roots is None else self.roots[:, None] * value))
        sums.keep("read", smoothed[chosen_in(asked.rows, int(self.positions[0]), len(self.positions))])


class _Points:
    """The points of a block: their values, noise floor and p-values, and their part in means."""

    def __init__(self, block: BlockRows, answers: Sequence[VersionAnswer], asked: Asked) -> None:
        self._block, self._weights, self._shown = block, block.weights(), asked.shown
        self.sums = {answer.version.label: BlockSums() for answer in answers}
        self._columns: dict[str, list[dict[str, Array]]] = {answer.version.label: [] for answer in answers}

    def add(self, answer: VersionAnswer, rows: slice, columns: Any, vectors: Array, smoothed: Array) -> None:
        """Add a tile of points with U ``vectors`` and smoothed [Delta, probes]."""
        sums, e = self.sums[answer.version.label], smoothed[:, : answer.rank]
        values = np.sqrt(np.einsum("ij,ij->i", e, e))
        squared, rest = answer.squared_floor(columns, vectors, smoothed[:, answer.rank :])
        scored = {"cce": values, "noise_floor": np.sqrt(squared)}
        counts = None if self._weights is None else self._weights[rows]
        means = {
            "values": values,
            "squared values": values**2,
            "floor": scored["noise_floor"],
            "squared floor": squared,
        }
        for name, column in means.items():
            sums.add(name, float(np.sum(column if counts is None else counts * column)))
        sums.raise_to("-value", -float(np.min(values)))
        if answer.fit is not None:
            add_points(sums, vectors, e, values, counts)
            sums.add("spread", weighted_squares(vectors, counts))
            sums.add("rest of probes", rest.T @ (rest if counts is None else counts[:, None] * rest))
        shown = chosen_in(self._shown, self._block.first + rows.start, len(values))
        sums.keep("smoothed at points", e[shown])
        sums.keep("vectors at points", vectors[shown])
        if counts is not None:
            sums.keep("weights at points", counts[shown])
            sums.add("squared weights", float(counts @ counts))
            scored["weight"] = counts
        if answer.simulated is not None:
            found = simulated_errors(vectors[:, : answer.simulated.shape[1]], answer.simulated)
            sums.add("statistics", found.totals)
            scored |= {"p_value": (1 + found.reached) / len(found.totals), "statistic": found.observed}
        self._columns[answer.version.label].append(scored)

    def write(self, write: Write) -> None:
        """Write the columns of the block, by version."""
        for label, parts in self._columns.items():
            if parts:
                joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
                write(self._block.block, label, joined)


def influence_pass(
    block: BlockRows, system: SystemInputs, known: Mapping[str, tuple[PlannedVersion, InfluenceWeights]], write: Write
) -> Pass:
    """What a block adds for the standard errors of every version; the columns of its rows' influences are written."""
    reference = _Reference(block, system, [version for version, _ in known.values()])
    points, _ = system.points(block)
    columns: dict[str, dict[str, Array]] = {
        label: {column: np.empty(len(points.x)) for column in ("influence", "influence_squared")} for label in known
    }
    for rows, _, vectors in system.tiles(points, SUMMED_ROWS, whole=False):
        positions, analysis = reference.begin(rows), system.scaled(vectors, block.first, rows)
        for label, (version, weights) in known.items():
            sums, delta = reference.sums[label], reference.errors(version).delta
            for column, values in weights.add_rows(sums, analysis, delta, positions).items():
                columns[label][column][rows] = values
    for label, written in columns.items():
        write(block.block, label, written)
    return reference.sums
