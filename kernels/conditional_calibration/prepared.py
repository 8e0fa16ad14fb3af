"""Is a version calibrated given the input, and where is it not: one driver over blocks of rows, of which memory is one.

sample     5,000 rows of the inputs            -> landmarks, median distance, regions
bases      products of the kernels' columns    -> bases, once for all versions
then the passes over versions: ``passes``

What depends on the inputs alone is made once, and so is the null that versions of continuous targets share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, mean_one, require_matrix, to_numpy
from congruence.kernels.conditional_calibration.bases import Bases, bases_pass, sample_positions
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.passes import Version, predictions_pass, reading_pass, scores_pass
from congruence.kernels.conditional_calibration.regions import RegionCenters, number_of_regions
from congruence.kernels.conditional_calibration.score_test import (
    ScoredVersion,
    VersionCalibration,
    evidence_by_shared_null,
)
from congruence.kernels.conditional_calibration.vector_targets import (
    VECTOR_DRAWS,
    vector_rows,
    vector_test,
)
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence
from congruence.kernels.dependence.correlation import version_blocks
from congruence.kernels.distributions import Distribution
from congruence.kernels.engine.blocks import Columns, HeldRows, LocalPasses, Pass, Passes, Write, held, whole_rows
from congruence.kernels.engine.landmarks import sample_pass
from congruence.kernels.engine.system import protocol_inputs
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.kernel_functions import RBF, Kernel, require_kernel
from congruence.kernels.protocol import EvaluationProtocol
from congruence.kernels.scores import matched_targets

REGULARIZATION = 0.1
"""lambda of the protocol's kernel, where it is not that of a prepared split: with it rows are read."""

FEWEST_ROWS = 30
"""Of fewer rows nothing can be said of a place."""


@dataclass(frozen=True)
class PreparedCalibration:
    """What depends on the inputs alone: bases, regions and null, made once for all versions of a split.

    Attributes:
        bases: of the inputs.
        sample: inputs of the rows ``sample_positions``, off which the regions are read.
        known: the null that versions share, by the number of draws, once it is drawn.
        x: inputs of all rows (n, d), where they are in memory.
    """

    bases: Bases = field(repr=False)
    sample: Array = field(repr=False)
    known: dict[int, Array] = field(default_factory=dict, repr=False)
    x: Array | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        run: Passes,
        n: int,
        protocol: EvaluationProtocol,
        *,
        settings: CalibrationSettings | None = None,
        seed: int,
        dtype: Any,
        with_protocol: bool = True,
    ) -> PreparedCalibration:
        """Returns it by passes over the rows of a split.

        Args:
            n: valid rows.
            seed: of landmarks, draws, regions and the randomisation of PIT values.
            dtype: of the arithmetic inside a tile.
            with_protocol: whether the protocol's kernel has a basis, in whose directions rows are read.
        """
        settings = CalibrationSettings() if settings is None else settings
        sample = run("calibration sample", sample_pass, protocol, dtype, sample_positions(n, seed))[""].rows("inputs")
        bases = Bases.of(sample, n, settings, protocol, with_protocol=with_protocol, seed=seed)
        return cls(bases.spanned(run("calibration bases", bases_pass, bases)[""]), sample)

    @cached_property
    def places(self) -> RegionCenters:
        """The regions, from the sampled rows."""
        n, seed = self.bases.n, self.bases.seed
        return RegionCenters.of(self.sample, sample_positions(n, seed), number_of_regions(n), seed)

    def calibrate(
        self,
        run: Passes,
        versions: Sequence[str],
        write: Write | None,
        dependent: Mapping[str, DependentBlocks | None] | None = None,
        seed: int | None = None,
    ) -> dict[str, VersionCalibration]:
        """Tests versions of scalar targets, and reads them at every row.

        Args:
            run: passes over the blocks, which have keys, see ``HeldRows``.
            versions: a group whose sums fit a worker together.
            write: called where the rows are, with block, version and columns; None where nothing is read.
            dependent: blocks of rows that depend on each other, by version.
            seed: of the randomisation of PIT values; by default that of the bases.
        """
        bases, blocks = self.bases, dependent or {}
        positions, seed = sample_positions(bases.n, bases.seed), bases.seed if seed is None else seed
        found = run("calibration predictions", predictions_pass, list(versions), positions)
        given = [Version.of(bases, name, found[name], blocks.get(name), seed) for name in versions]
        sums: Pass = {}
        alone = [[version] for version in given if version.dependent is not None]  # sums by block are large
        for some in filter(None, ([version for version in given if version.dependent is None], *alone)):
            sums |= run("calibration scores", scores_pass, bases, some)
        scored = {version.name: ScoredVersion.of(bases, version, sums[version.name]) for version in given}
        evidence = evidence_by_shared_null(run, bases, scored, self.known)
        places = None if write is None or bases.smoothing is None else self.places
        smoothings = {name: None if places is None else each.smoothing for name, each in scored.items()}
        regressions = {name: each.regression for name, each in scored.items()}
        effects = run("calibration reading", reading_pass, bases, given, regressions, smoothings, places, write)
        medoids, tested = None if places is None else bases.vectors(places.points), {}
        for name, each in scored.items():
            known = evidence.get(name) or each.evidence_by_own_null(run)
            tested[name] = each.calibration(known, effects[name], places, medoids)
        return tested

    def test_version(
        self,
        y: Any,
        predictive: Distribution,
        *,
        keys: Any | None = None,
        seed: int = 0,
        dependence: RowDependence | None = None,
        weights: Any | None = None,
    ) -> ConditionalCalibrationTest:
        """Tests one version on rows in memory, without a reading of its rows; see ``version``."""
        found = self.version(y, predictive, keys=keys, seed=seed, dependence=dependence, weights=weights, read=False)
        return found.test

    def version(
        self,
        y: Any,
        predictive: Distribution,
        *,
        keys: Any | None = None,
        seed: int = 0,
        dependence: RowDependence | None = None,
        weights: Any | None = None,
        read: bool = True,
    ) -> VersionCalibration:
        """Tests one version on rows in memory from its predictive distributions, and reads it at every row.

        Args:
            y: targets of the split, (n,); or (n, q), see ``vector_targets``, of which no row is read.
            predictive: n predictive distributions: any family, counts, ``Samples`` as draws of the model's
                distribution.
            keys: one name per row, for the randomisation of PIT values (see ``pit_values``).
            seed: of the randomisation.
            dependence: which rows may depend on each other.
            weights: what each row counts in the effects, which are means over rows. The test takes rows as they are.
            read: whether rows are read.

        Raises:
            InvalidInputError: y, predictive or weights do not fit the split; or fewer than ten groups or runs of time.
        """
        n, x = self.bases.n, self.x
        assert x is not None
        if len(predictive) != n:
            raise InvalidInputError(
                f"predictive: {len(predictive)} rows, but the split has {n}; they must match row by row"
            )
        if predictive.dimension > 1:
            return VersionCalibration(self.test_vectors(y, predictive, version_blocks(dependence, y, predictive)))
        targets = matched_targets(predictive, y)
        if keys is not None and len(keys) != n:
            raise InvalidInputError(f"keys: {len(keys)} keys for {n} rows; give one key per row")
        counted = None if weights is None else mean_one(weights, n)
        rows = HeldRows(x, targets, {"": predictive}, counted, n, None if keys is None else np.asarray(keys))
        dependent, columns = {"": version_blocks(dependence, targets, predictive)}, Columns()
        found = self.calibrate(LocalPasses(rows), [""], columns if read else None, dependent, seed)[""]
        return found.whole(columns.of("")) if columns.written else found

    def test_vectors(
        self, y: Any, predictive: Distribution, blocks: DependentBlocks | None
    ) -> ConditionalCalibrationTest:
        """Tests one version of vector targets (n, q) by known blocks of rows in memory, see ``vector_targets``."""
        assert self.x is not None
        vectors = self.bases.vectors(self.x)
        directions = [(basis, vectors[:, basis.place]) for basis in self.bases.all]
        return vector_test(directions, y, predictive, self.bases.settings, seed=self.bases.seed, blocks=blocks)


def calibrate(
    run: Passes,
    n: int,
    protocol: EvaluationProtocol,
    versions: Sequence[str],
    write: Write,
    *,
    is_scalar: bool,
    seed: int,
    dtype: Any,
    settings: CalibrationSettings | None = None,
    dependent: Mapping[str, DependentBlocks | None] | None = None,
    known: dict[int, Array] | None = None,
) -> dict[str, VersionCalibration]:
    """Tests and reads every version of a split; none of fewer than ``FEWEST_ROWS`` rows.

    Of vector targets ``VECTOR_ROWS`` rows are fetched from the blocks and tested: exact on these, and blind to what the
    others show.

    Args:
        run: passes over the blocks, which have keys, see ``HeldRows``.
        n: valid rows.
        protocol: its kernel and lambda.
        versions: a group whose sums fit a worker together.
        write: called where the rows are, with block, version and columns.
        is_scalar: whether a row has one target.
        seed: of landmarks, draws, regions and the randomisation of PIT values.
        dtype: of the arithmetic inside a tile.
        settings: of the test.
        dependent: blocks of rows that depend on each other, by version.
        known: the null by the number of draws, where it was drawn before for the same inputs, protocol, settings and
            seed, whatever the targets; it is kept there.
    """
    if n < FEWEST_ROWS or not versions:
        return {}
    if is_scalar:
        prepared = PreparedCalibration.of(run, n, protocol, settings=settings, seed=seed, dtype=dtype)
        return replace(prepared, known={} if known is None else known).calibrate(run, versions, write, dependent)
    rows = vector_rows(n, seed)
    kept, blocks = held(run("calibration sample", whole_rows, list(versions), rows), versions), dependent or {}
    settings = settings or CalibrationSettings(draws=VECTOR_DRAWS)
    x = protocol_inputs(protocol, kept.x, 0, dtype)
    prepared = prepare_calibration(x, input_kernel=protocol.input_kernel, settings=settings, seed=seed)
    found = {}
    for name, predictive in kept.models.items():
        own = blocks.get(name)
        test = prepared.test_vectors(kept.y, predictive, None if own is None else own.of_rows(rows))
        found[name] = VersionCalibration(test, rows=len(rows) if len(rows) < n else None)
    return found


def prepare_calibration(
    inputs: Any,
    *,
    input_kernel: Kernel | None = None,
    regularization: float = REGULARIZATION,
    settings: CalibrationSettings | None = None,
    seed: int = 0,
) -> PreparedCalibration:
    """Does once what depends on the inputs alone: the bases of the test.

    Args:
        inputs: reference inputs x (n, d).
        input_kernel: the protocol's; without one its basis is left out.
        regularization: lambda of the protocol's kernel.
        settings: hypotheses and draws.
        seed: of the landmarks and draws.

    Raises:
        InvalidInputError: inputs that cannot be evaluated.
    """
    x = to_numpy(require_matrix(inputs, "x"))
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float64)
    if input_kernel is not None:
        require_kernel(input_kernel, "input_kernel")
    protocol = EvaluationProtocol("python", False, input_kernel or RBF(1.0), regularization=regularization)
    run, asks = LocalPasses(HeldRows(x)), input_kernel is not None
    prepared = PreparedCalibration.of(
        run, len(x), protocol, settings=settings, seed=seed, dtype=x.dtype, with_protocol=asks
    )
    return replace(prepared, x=x)


def conditional_calibration_test(
    x: Any,
    y: Any,
    predictive: Distribution,
    *,
    input_kernel: Kernel | None = None,
    settings: CalibrationSettings | None = None,
    seed: int = 0,
    keys: Any | None = None,
    groups: Any | None = None,
    time: Any | None = None,
    weights: Any | None = None,
) -> ConditionalCalibrationTest:
    """Test of "given its input, every target follows its predictive distribution"; exact at every n for every family.

    Args:
        x: inputs, usually embeddings, (n, d).
        y: targets (n,) or (n, q).
        predictive: n predictive distributions; ``Samples`` count as draws from the model's distribution.
        input_kernel: the protocol's, for a basis of its own.
        settings: hypotheses and draws.
        seed: of landmarks, draws and randomised PIT values.
        keys: one name per row, for the randomisation of PIT values (see ``pit_values``).
        groups: one value per row: rows of one group may depend on each other (see ``dependence.blocks``).
        time: one sortable value per row: rows near each other in time may. Groups go before time.
        weights: what each row counts in the effects.

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value.
    """
    prepared = prepare_calibration(x, input_kernel=input_kernel, settings=settings, seed=seed)
    dependence = RowDependence.of(prepared.bases.n, groups=groups, time=time)
    return prepared.test_version(y, predictive, keys=keys, seed=seed, dependence=dependence, weights=weights)
