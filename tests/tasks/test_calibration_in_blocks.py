"""Calibration given the input by row blocks: the numbers of the definition, whatever the cuts; faults are found."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest
from cut_rows import CutRows

from congruence.kernels import EXACT, Distribution, MultivariateNormal, Normal, Poisson, Samples
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, calibrate, prepare_calibration
from congruence.kernels.conditional_calibration.score_test import VersionCalibration
from congruence.kernels.conditional_calibration.vector_targets import VECTOR_DRAWS, VECTOR_ROWS, vector_rows
from congruence.kernels.engine.blocks import Columns, LocalPasses
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.plan import Ask
from congruence.kernels.pit import pit_values
from congruence.kernels.protocol import EvaluationProtocol
from congruence.tasks.dask.clusters import ClusterSettings, dask_client
from congruence.tasks.scores.faults import with_faults
from congruence.tasks.scores.reading import RowsRead, read_what_is_wrong
from congruence.tasks.scores.summary import calibration_metrics
from congruence.tasks.solving.pass_runner import VersionMeasurement, measure_blocks
from congruence.tasks.solving.solve import MeasurementAddress, from_bytes, to_bytes
from congruence.tasks.store.objects import ObjectStore

N = 3000
SETTINGS = CalibrationSettings(directions=30, own_directions=10, draws=299)


def split(n: int = N, d: int = 4) -> CutRows:
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
    return CutRows(x, y, models, cuts=(0, 700, 2100, n))


def calibrated(
    blocks: CutRows, dtype: type = np.float64, protocol: EvaluationProtocol = EXACT, **options: Any
) -> tuple[dict[str, VersionCalibration], dict[str, dict[str, np.ndarray]]]:
    asked, columns = {"is_scalar": True, "seed": 3, "dtype": dtype, **options}, Columns()
    found = calibrate(LocalPasses(blocks), len(blocks.x), protocol, list(blocks.models), columns, **asked)
    return found, {name: columns.of(name) for name in columns.written}


def held(x: np.ndarray, settings: CalibrationSettings = SETTINGS) -> PreparedCalibration:
    """The same rows in memory."""
    system = {"input_kernel": EXACT.input_kernel, "regularization": EXACT.regularization}
    return prepare_calibration(EXACT.apply(x), **system, settings=settings, seed=3)


@pytest.fixture(scope="module")
def blocks() -> CutRows:
    return split()


@pytest.fixture(scope="module")
def made(blocks: CutRows) -> tuple[dict[str, VersionCalibration], dict[str, dict[str, np.ndarray]]]:
    return calibrated(blocks, settings=SETTINGS)


@pytest.mark.parametrize("cuts", [(0, 700, 2100, N), tuple(range(0, N + 1, 250))])
def test_memory_and_blocks_of_any_size_give_the_same_numbers(blocks: CutRows, cuts: Any) -> None:
    models = {name: blocks.models[name] for name in ("even", "members")}
    found, columns = calibrated(CutRows(blocks.x, blocks.y, models, cuts=cuts), settings=SETTINGS)
    in_memory = held(blocks.x)
    for name, law in models.items():
        here, there = in_memory.version(blocks.y, law, keys=np.arange(N), seed=3), found[name]
        assert there.test.null == here.test.null == "exact"
        # Evidence of about 4 in single precision, less a prior of as much: near 0 the digits are those of the evidence.
        assert there.test.statistic == pytest.approx(here.test.statistic, rel=1e-5, abs=4e-6)
        np.testing.assert_allclose(there.test.null_statistics, here.test.null_statistics, rtol=1e-3, atol=1e-3)
        for of in ("by_order", "by_basis"):
            assert getattr(there.test, of) == pytest.approx(getattr(here.test, of), abs=0.0034), of  # a draw at a tie
        assert there.test.p_value == pytest.approx(here.test.p_value, abs=0.0034)
        for order, effect in here.test.effects.items():
            assert vars(there.test.effects[order]) == pytest.approx(vars(effect), rel=1e-4, abs=1e-6)
        whole = there.whole(columns[name])
        for column, values in here.reading.columns().items():
            if column == "calibration_fault":
                assert np.mean(values == whole.reading.columns()[column]) > 0.999
            else:
                np.testing.assert_allclose(whole.reading.columns()[column], values, rtol=1e-3, atol=1e-4)
        for influence in (f"calibration_influence_{order}" for order in here.test.effects):
            np.testing.assert_allclose(whole.by_row[influence], here.by_row[influence], rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(there.medoids, here.medoids)
        np.testing.assert_allclose(there.curves.shares, here.curves.shares, atol=1e-5)
        np.testing.assert_allclose(there.curves.upper, here.curves.upper, atol=1e-5)


def test_a_version_beside_one_of_counts_has_the_numbers_that_it_has_alone(blocks: CutRows) -> None:
    """Counts have a null of their own, the others share one with their own directions in it."""
    n, settings = 900, replace(SETTINGS, draws=99)
    x, rate = blocks.x[:n], np.exp(0.4 * blocks.x[:n, 0]) / 3.0
    y = np.random.default_rng(1).poisson(rate).astype(float)
    models: dict[str, Distribution] = {"counts": Poisson(rate), "near": Normal(rate, np.sqrt(rate))}
    together, _ = calibrated(CutRows(x, y, models, cuts=(0, 301, n)), settings=settings)
    in_memory = held(x, settings)
    for name, law in models.items():
        alone = in_memory.version(y, law, keys=np.arange(n), seed=3).test
        assert together[name].test.statistic == pytest.approx(alone.statistic, rel=1e-4)
        np.testing.assert_allclose(together[name].test.null_statistics, alone.null_statistics, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["right", "members"])
def test_rounded_targets_have_the_same_cells_in_memory_and_in_blocks(blocks: CutRows, name: str) -> None:
    n, settings = 900, replace(SETTINGS, draws=99)
    x, y, law = blocks.x[:n], np.round(blocks.y[:n]), blocks.models[name][:n]
    found, columns = calibrated(CutRows(x, y, {"": law}, cuts=(0, 301, n)), settings=settings)
    there, here = found[""], held(x, settings).version(y, law, keys=np.arange(n), seed=3)
    assert there.test.statistic == pytest.approx(here.test.statistic, rel=1e-4)
    np.testing.assert_allclose(there.test.null_statistics, here.test.null_statistics, rtol=1e-3, atol=1e-3)
    ratios = there.whole(columns[""]).reading.ratios
    np.testing.assert_allclose(ratios, here.reading.ratios, rtol=1e-3, atol=1e-4)


def test_keys_are_read_only_where_a_law_jumps(blocks: CutRows) -> None:
    some = CutRows(blocks.x[:400], blocks.y[:400], cuts=(0, 400))
    with patch.object(CutRows, "keys", side_effect=OSError("keys were read")):
        calibrated(replace(some, models={"even": blocks.models["even"][:400]}), settings=SETTINGS)
        with pytest.raises(OSError, match="keys were read"):
            calibrated(replace(some, models={"members": blocks.models["members"][:400]}), settings=SETTINGS)


def test_counts_too_wide_for_a_table_in_one_block_are_scored_alike_in_all(blocks: CutRows) -> None:
    n, settings = 900, replace(SETTINGS, draws=99)
    x, rate = blocks.x[:n], np.where(np.arange(n) < 40, 1e7, 3.0)
    y, law = np.random.default_rng(1).poisson(rate).astype(float), Poisson(rate)
    found, _ = calibrated(CutRows(x, y, {"": law}, cuts=(0, 301, n)), settings=settings)
    there, here = found[""].test, held(x, settings).version(y, law, keys=np.arange(n), seed=3).test
    assert there.statistic == pytest.approx(here.statistic, rel=1e-4)
    np.testing.assert_allclose(there.null_statistics, here.null_statistics, rtol=1e-3, atol=1e-3)


def test_faults_are_found_and_a_true_version_is_left_alone(blocks: CutRows, made: Any) -> None:
    found, columns = made
    assert found["right"].test.p_value > 0.05
    assert found["members"].test.p_value > 0.05
    assert found["narrow"].test.p_value == found["even"].test.p_value == 1 / 300
    assert "own quantiles" in found["even"].test.by_basis
    calibration = found["narrow"].whole(columns["narrow"])
    metrics = calibration_metrics(calibration.test)
    assert metrics["calibration_effect_spread"].low > 0.1
    pit = pit_values(blocks.y, blocks.models["narrow"])
    rows = RowsRead(pit)
    wrong = read_what_is_wrong(
        calibration, calibration.regions, rows, metrics, np.arange(N), pd.DataFrame(), with_faults
    )
    assert "predicted spread is too small by a factor of 1.5" in wrong.sentences[0]
    assert "exact at any number of independent rows" in wrong.method
    faults = calibration.reading.columns()["calibration_fault"]
    assert np.mean(faults == "spread") > 0.9
    few = calibration.reading[np.array([3, 700])]
    assert np.array_equal(few.scores, calibration.reading.scores[[3, 700]])
    assert not (found["right"].whole(columns["right"]).reading.columns()["calibration_fault"] != "").any()


def test_single_precision_counts_and_laws_without_ends(blocks: CutRows) -> None:
    class Endless(Normal):
        def predictive_quantile(self, levels: np.ndarray) -> np.ndarray:
            return np.full((len(self), np.shape(levels)[-1]), np.inf)

    rate = np.exp(0.4 * blocks.x[:, 0])
    y = np.random.default_rng(1).poisson(rate).astype(float)
    models: dict[str, Distribution] = {"counts": Poisson(rate), "endless": Endless(rate, np.sqrt(rate))}
    few = CutRows(blocks.x.astype(np.float32), y, models, cuts=blocks.cuts)
    found, _ = calibrated(few, np.float32, settings=SETTINGS)
    double, _ = calibrated(few, np.float64, settings=SETTINGS)
    assert found["counts"].test.p_value > 0.05
    assert found["counts"].test.by_basis == pytest.approx(double["counts"].test.by_basis, abs=0.1)
    assert "own quantiles" not in found["endless"].test.by_basis
    same = replace(few, x=np.ones_like(few.x))
    assert set(calibrated(same, np.float32, settings=SETTINGS)[0]["counts"].test.by_basis) <= {
        "constant", "protocol's kernel", "own quantiles",
    }  # fmt: skip


def test_it_is_kept_with_the_measurement_and_its_columns(made: Any, tmp_path: Path) -> None:
    kept: Any = VersionMeasurement(None, calibration=made[0]["even"], rows=N)
    found = from_bytes(to_bytes(kept))
    assert found.rows == N
    assert found.calibration.test.effects == made[0]["even"].test.effects
    address = MeasurementAddress(ObjectStore(str(tmp_path), {}), "measurements/split/version.npz")
    address.write_columns(3, made[1]["even"])  # under a name that a file can have
    (file,) = tmp_path.rglob("000003-*.npz")
    with np.load(file) as columns:
        assert set(columns.files) == set(made[1]["even"])


def test_on_a_cluster_beside_the_cce_and_for_vector_targets(blocks: CutRows, tmp_path: Path) -> None:
    rng, n = np.random.default_rng(2), 240
    x, mean = blocks.x[:n], blocks.x[:n, 1:3]
    scalar = CutRows(x, blocks.y[:n], {"even": blocks.models["even"][slice(0, n)]}, cuts=(0, 100, n))
    laws: dict[str, Distribution] = {
        "right": MultivariateNormal(mean, np.ones((n, 2))),
        "narrow": MultivariateNormal(mean, np.full((n, 2), 0.5)),
    }
    vector = CutRows(x, mean + rng.standard_normal((n, 2)), laws, cuts=(0, 100, n))
    accuracy = Accuracy.of(40)

    def write(block: int, version: str, columns: dict[str, np.ndarray]) -> None:
        for name, values in columns.items():  # files: what runs on a worker has no list of ours
            np.save(tmp_path / f"{version}-{name}-{block}.npy", values)

    with dask_client(ClusterSettings(kind="threads", workers=1)) as client:
        one, two = (
            measure_blocks(
                client, some, EXACT, Ask(list(some.models), tested=False), write, accuracy=accuracy, calibrated=True
            )
            for some in (scalar, vector)
        )
        without = measure_blocks(client, scalar, EXACT, Ask(["even"], tested=False), write, accuracy=accuracy)
    assert one["even"].calibration.test.null == "exact"
    assert [len(np.load(tmp_path / f"even-calibration_shift-{block}.npy")) for block in (0, 1)] == [100, 140]
    assert without["even"].calibration is None
    settings = CalibrationSettings(draws=VECTOR_DRAWS)
    split = prepare_calibration(EXACT.apply(x), input_kernel=EXACT.input_kernel, settings=settings)
    direct = {name: split.test_version(vector.y, law) for name, law in laws.items()}
    for name, p_value in (("right", 0.05), ("narrow", 0.005)):
        found = two[name].calibration
        assert isinstance(found, VersionCalibration)
        assert found.rows is None
        assert found.test.by_order == direct[name].by_order
        assert (found.test.p_value > p_value) == (name == "right")
    assert len(vector_rows(10_000, 0)) == VECTOR_ROWS
