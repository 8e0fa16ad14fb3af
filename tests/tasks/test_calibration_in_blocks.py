"""Calibration given the input by row blocks: the numbers of the definition, whatever the cuts; faults are found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from congruence.kernels import EXACT, Distribution, MultivariateNormal, Normal, Poisson, Samples
from congruence.kernels.calibration.pit import pit_values
from congruence.kernels.conditional_calibration.bases import InputBasis
from congruence.kernels.conditional_calibration.block_bases import BlockBases, basis_sums, prepared_blocks
from congruence.kernels.conditional_calibration.effects import explained_shares
from congruence.kernels.conditional_calibration.hypotheses import basis_hypotheses
from congruence.kernels.conditional_calibration.local_distribution import local_distribution
from congruence.kernels.conditional_calibration.local_reading import local_reading
from congruence.kernels.conditional_calibration.null import projected_scores
from congruence.kernels.conditional_calibration.pit_scores import pit_scores
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.gram.spectrum import SpectralSmoother
from congruence.kernels.row_blocks.sums import BlockSums
from congruence.tasks.dask.clusters import ClusterSettings, dask_client
from congruence.tasks.scores.reading import read_what_is_wrong
from congruence.tasks.scores.summary import calibration_metrics
from congruence.tasks.solving.block_passes import Pass
from congruence.tasks.solving.calibration import (
    VECTOR_ROWS,
    VectorCalibration,
    VersionCalibration,
    prepared_vectors,
    vector_rows,
)
from congruence.tasks.solving.calibration_in_blocks import CalibrationInBlocks, calibrate_blocks
from congruence.tasks.solving.measured import MeasurementAddress, MeasurementInBlocks, from_bytes, to_bytes
from congruence.tasks.solving.plan import BlockAccuracy
from congruence.tasks.solving.row_blocks import measure_blocks

N = 3000
SETTINGS = CalibrationSettings(directions=30, own_directions=10, draws=299)


@dataclass(frozen=True)
class KeptBlocks:
    """Blocks of arrays in memory, whose passes run here one after the other."""

    x: np.ndarray
    y: np.ndarray
    models: dict[str, Distribution]
    cuts: Sequence[int]

    @property
    def sizes(self) -> Sequence[int]:
        return [int(size) for size in np.diff(self.cuts)]

    def inputs(self, block: int) -> np.ndarray:
        return self.x[self.cuts[block] : self.cuts[block + 1]]

    def targets(self, block: int) -> np.ndarray:
        return self.y[self.cuts[block] : self.cuts[block + 1]]

    def keys(self, block: int) -> np.ndarray:
        return np.arange(self.cuts[block], self.cuts[block + 1])

    def predictive(self, block: int, version: str) -> Distribution:
        return self.models[version][slice(self.cuts[block], self.cuts[block + 1])]

    def run(self, name: str, function: Callable[..., Pass], *context: Any) -> Pass:
        total: Pass = {}
        for block, first in zip(range(len(self.sizes)), accumulate(self.sizes, initial=0), strict=False):
            for key, sums in function(self, block, first, *context).items():
                total.setdefault(key, BlockSums()).merge(sums)
        return total


def split(n: int = N, d: int = 4) -> KeptBlocks:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((n, d))
    spread = np.exp(0.5 * x[:, 0])
    y = x[:, 1] + spread * rng.standard_normal(n)
    models = {
        "right": Normal(x[:, 1], spread),
        "narrow": Normal(x[:, 1], spread / 1.6),
        "even": Normal(x[:, 1], np.full(n, np.sqrt(np.mean(spread**2)))),
        "members": Samples(x[:, 1:2] + spread[:, None] * rng.standard_normal((n, 9))),
    }
    return KeptBlocks(x, y, models, (0, 700, 2100, n))


def calibrated(
    blocks: KeptBlocks, dtype: type = np.float64, **options: Any
) -> tuple[dict[str, CalibrationInBlocks], dict[str, dict[str, np.ndarray]]]:
    parts: dict[str, list[dict[str, np.ndarray]]] = {}

    def write(block: int, version: str, columns: dict[str, np.ndarray]) -> None:
        parts.setdefault(version, []).append(columns)

    found = calibrate_blocks(
        blocks.run, len(blocks.x), EXACT, list(blocks.models), write, seed=3, dtype=dtype, **options
    )
    columns = {name: {key: np.concatenate([p[key] for p in some]) for key in some[0]} for name, some in parts.items()}
    return found, columns


@pytest.fixture(scope="module")
def blocks() -> KeptBlocks:
    return split()


@pytest.fixture(scope="module")
def made(blocks: KeptBlocks) -> tuple[dict[str, CalibrationInBlocks], dict[str, dict[str, np.ndarray]]]:
    return calibrated(blocks, settings=SETTINGS)


def test_they_are_the_numbers_of_the_definition(blocks: KeptBlocks, made: Any) -> None:
    """U of every basis made whole; test, effects, local reading and P-P curves as in memory."""
    found, columns = made
    x = EXACT.apply(blocks.x)
    told = BlockBases.of(EXACT, SETTINGS, x, np.arange(N), N, 3)
    prepared = prepared_blocks(told, basis_sums(told, blocks.x, 0))
    kernels = [np.full((N, 1), N**-0.5)]
    for of, coordinates in zip(told.kernels.values(), prepared.coordinates[1:], strict=True):
        kernels.append(of.kernel(x if of.center is None else x - of.center, of.landmarks) @ coordinates)
    bases = [
        InputBasis(b.name, b.eigenvalues, u.astype(np.float32)) for b, u in zip(prepared.bases, kernels, strict=True)
    ]
    filters, _ = prepared.smoother
    kept = bases[1].vectors[:, : len(filters)]
    pit = pit_values(blocks.y, blocks.models["even"], seed=3)
    scores = pit_scores(pit)
    evidence = [
        basis_hypotheses(b.eigenvalues, SETTINGS).evidence(projected_scores(b.vectors, scores)[:, :, None])
        for b in bases
    ]
    test = found["even"].test
    assert test.null == "gaussian"
    assert max(float(np.max(one)) for one in evidence) <= test.statistic * (1.0 + 1e-4)
    reference = next(b for b in bases if b.name == prepared.reference)
    for name, effect in explained_shares(reference, 1e-3, scores).items():
        assert test.effects[name].estimate == pytest.approx(effect.estimate, rel=1e-3, abs=1e-5)
        assert test.effects[name].low == pytest.approx(effect.low, rel=1e-2, abs=1e-4)
        assert test.effects[name].high == pytest.approx(effect.high, rel=1e-2, abs=1e-4)
    smoother = SpectralSmoother(kept, filters, kept)
    reading = local_reading(smoother, pit)
    read = found["even"].whole(columns["even"]).reading
    assert read.mixing == pytest.approx(reading.mixing, rel=1e-3)
    for name, values in reading.columns().items():
        if name == "calibration_fault":
            assert np.mean(values == read.columns()[name]) > 0.995
        else:
            np.testing.assert_allclose(read.columns()[name], values, rtol=2e-3, atol=2e-3)
    medoids = SpectralSmoother(kept, filters, kept[found["even"].medoids])
    curves = local_distribution(medoids, pit)
    np.testing.assert_allclose(found["even"].curves.shares, curves.shares, atol=1e-4)
    np.testing.assert_allclose(found["even"].curves.upper, curves.upper, atol=1e-4)


def test_cuts_change_nothing_but_rounding(blocks: KeptBlocks, made: Any) -> None:
    whole, columns = calibrated(KeptBlocks(blocks.x, blocks.y, blocks.models, (0, N)), settings=SETTINGS)
    for name, one in made[0].items():
        assert whole[name].test.statistic == pytest.approx(one.test.statistic, rel=1e-6)
        assert whole[name].test.by_order == pytest.approx(one.test.by_order, abs=0.01)
        for column, values in made[1][name].items():
            assert np.mean(np.abs(columns[name][column] - values) < 1e-5) > 0.999, column


def test_faults_are_found_and_a_true_version_is_left_alone(blocks: KeptBlocks, made: Any) -> None:
    found, columns = made
    assert found["right"].test.p_value > 0.05
    assert found["members"].test.p_value > 0.05
    assert found["narrow"].test.p_value == found["even"].test.p_value == 1 / 300
    assert "own quantiles" in found["even"].test.by_basis
    calibration = found["narrow"].whole(columns["narrow"])
    metrics = calibration_metrics(calibration.test)
    assert metrics["calibration_effect_spread"].low > 0.1
    pit = pit_values(blocks.y, blocks.models["narrow"])
    wrong = read_what_is_wrong(calibration, calibration.regions, pit, metrics, np.arange(N), pd.DataFrame())
    assert "the predicted spread is too small by a factor of 1.5" in wrong.sentences[0]
    assert "limit of many rows" in wrong.method
    faults = calibration.reading.columns()["calibration_fault"]
    assert np.mean(faults == "spread") > 0.9
    assert not (found["right"].whole(columns["right"]).reading.columns()["calibration_fault"] != "").any()


def test_single_precision_counts_and_laws_without_ends(blocks: KeptBlocks) -> None:
    class Endless(Normal):
        def predictive_quantile(self, levels: np.ndarray) -> np.ndarray:
            return np.full((len(self), np.shape(levels)[-1]), np.inf)

    rate = np.exp(0.4 * blocks.x[:, 0])
    y = np.random.default_rng(1).poisson(rate).astype(float)
    models: dict[str, Distribution] = {"counts": Poisson(rate), "endless": Endless(rate, np.sqrt(rate))}
    few = KeptBlocks(blocks.x.astype(np.float32), y, models, blocks.cuts)
    found, _ = calibrated(few, np.float32, settings=SETTINGS)
    double, _ = calibrated(few, np.float64, settings=SETTINGS)
    assert found["counts"].test.p_value > 0.05
    assert found["counts"].test.by_basis == pytest.approx(double["counts"].test.by_basis, abs=0.1)
    assert "own quantiles" not in found["endless"].test.by_basis
    same = KeptBlocks(np.ones_like(few.x), y, models, blocks.cuts)
    assert set(calibrated(same, np.float32, settings=SETTINGS)[0]["counts"].test.by_basis) <= {
        "constant", "protocol's kernel", "own quantiles",
    }  # fmt: skip


def test_it_is_kept_with_the_measurement_and_its_columns(made: Any, tmp_path: Path) -> None:
    kept = MeasurementInBlocks.__new__(MeasurementInBlocks)
    for name, value in (("measurement", None), ("seconds", {}), ("calibration", made[0]["even"])):
        object.__setattr__(kept, name, value)
    found = from_bytes(to_bytes(kept))
    assert isinstance(found, MeasurementInBlocks)
    assert found.calibration is not None
    assert found.calibration.test.effects == made[0]["even"].test.effects
    address = MeasurementAddress(str(tmp_path), "measurements/split/version.npz")
    address.write_columns(3, made[1]["even"])  # under a name that a file can have
    (file,) = tmp_path.rglob("000003-*.npz")
    with np.load(file) as columns:
        assert set(columns.files) == set(made[1]["even"])


def test_on_a_cluster_beside_the_cce_and_for_vector_targets(blocks: KeptBlocks, tmp_path: Path) -> None:
    rng, n = np.random.default_rng(2), 240
    x, mean = blocks.x[:n], blocks.x[:n, 1:3]
    scalar = KeptBlocks(x, blocks.y[:n], {"even": blocks.models["even"][slice(0, n)]}, (0, 100, n))
    laws: dict[str, Distribution] = {
        "right": MultivariateNormal(mean, np.ones((n, 2))),
        "narrow": MultivariateNormal(mean, np.full((n, 2), 0.5)),
    }
    vector = KeptBlocks(x, mean + rng.standard_normal((n, 2)), laws, (0, 100, n))
    asked, accuracy = SimpleNamespace(seed=0, metrics=["cce"]), BlockAccuracy(first=40, largest=40)

    def write(block: int, version: str, columns: dict[str, np.ndarray]) -> None:
        for name, values in columns.items():  # files: what runs on a worker has no list of ours
            np.save(tmp_path / f"{version}-{name}-{block}.npy", values)

    with dask_client(ClusterSettings(kind="threads", workers=1)) as client:
        one, two = (
            measure_blocks(client, some, asked, EXACT, list(some.models), write, accuracy=accuracy, calibrated=True)
            for some in (scalar, vector)
        )
        without = measure_blocks(client, scalar, asked, EXACT, ["even"], write, accuracy=accuracy)
    assert one.calibration["even"].test.null == "gaussian"
    assert [len(np.load(tmp_path / f"even-calibration_shift-{block}.npy")) for block in (0, 1)] == [100, 140]
    assert without.calibration == {}
    split = VectorCalibration(prepared_vectors(EXACT.input_kernel, EXACT.apply(x), 0), vector_rows(n, 0), n)
    direct = {name: split.of_rows(vector.y, law, 0) for name, law in laws.items()}
    for name, p_value in (("right", 0.05), ("narrow", 0.005)):
        found = two.calibration[name]
        assert isinstance(found, VersionCalibration)
        assert found.rows is None
        assert found.test.by_order == direct[name].test.by_order
        assert (found.test.p_value > p_value) == (name == "right")
    assert len(vector_rows(10_000, 0)) == VECTOR_ROWS
