"""The measurement of versions in memory, under protocols with repeats, and what a further version does not do again."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from congruence.kernels import EXACT, Downsampling, Normal, prepare
from congruence.kernels.conditional_calibration import score_test
from congruence.kernels.conditional_calibration.local_reading import local_reading
from congruence.kernels.conditional_calibration.passes import null_pass
from congruence.kernels.engine.plan import model_output_kernel
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.protocol import ECAI, EvaluationProtocol
from congruence.kernels.recalibration import fit as recalibration
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.scores import correction
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.parts import ClusterSettings
from congruence.tasks.solving import solve
from congruence.tasks.solving.pass_runner import VersionMeasurement
from congruence.tasks.solving.solve import MeasurementAddress, from_bytes, measure, to_bytes
from congruence.tasks.store.embeddings import StoreError
from congruence.tasks.store.objects import ObjectStore

ROWS = 240
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 5))
Y = X[:, 0] + RNG.normal(size=ROWS)
VERSIONS = {"right": Normal(X[:, 0], np.ones(ROWS)), "wrong": Normal(np.zeros(ROWS), np.full(ROWS, 1.4))}
HALF = Downsampling(rows=ROWS // 2, repeats=3)


def measured(protocol: EvaluationProtocol, **options) -> dict[str, VersionMeasurement]:
    return measure(protocol, X, Y, VERSIONS, **options)


def results(found: dict[str, VersionMeasurement]) -> dict[str, CongruenceResult]:
    return {name: version.result for name, version in found.items()}


def with_calibration(found: dict[str, VersionMeasurement]) -> set[str]:
    return {name for name, version in found.items() if version.calibration is not None}


def beyond_noise(result) -> float:
    """The root mean square of CCE less that of the noise, whose expectation does not depend on the size of a split."""
    return float(np.sqrt(max(0.0, np.mean(result.squared_values) - np.mean(result.noise_floor_values**2))))


def test_other_targets_on_the_same_inputs_share_the_null_that_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def counted(rows: Any, bases: Any, versions: Any, draws: int, with_shared: bool) -> Any:
        asked.append(with_shared)
        return null_pass(rows, bases, versions, draws, with_shared)

    monkeypatch.setattr(score_test, "null_pass", counted)

    def tests(y: np.ndarray, x: np.ndarray = X) -> list[tuple[float, bytes]]:
        found = measure(EXACT, x, y, VERSIONS).values()
        tested = [version.calibration.test for version in found if version.calibration is not None]
        return [(each.p_value, each.null_statistics.tobytes()) for each in tested]

    solve._known_null.cache_clear()
    alone = tests(Y + 1.0)
    solve._known_null.cache_clear()
    tests(Y)
    assert tests(Y + 1.0) == alone
    tests(Y, X + 1.0)
    assert asked == [True, True, False, True]


def test_a_downsampled_reference_still_scores_and_tests_every_point() -> None:
    found = measured(replace(EXACT, downsampling=replace(HALF, repeats=10)))
    whole = measured(EXACT)
    for name, result in results(found).items():
        assert result.values.shape == result.noise_floor_values.shape == (ROWS,)
        assert 0.0 <= result.mean_error_bound <= result.error_bound < 1e-6
        assert result.std > 0.0
        # Half of the points double the floor's square; the error that is the model's stays.
        assert result.noise_floor > whole[name].result.noise_floor
        assert result.test.point_p_values.shape == (ROWS,)
    # Over seeds, ten choices of half the points give 0.17 to 0.24 for the 0.24 of all of them.
    assert beyond_noise(found["wrong"].result) == pytest.approx(beyond_noise(whole["wrong"].result), rel=0.3)
    assert found["wrong"].result.test.p_value < 0.05
    assert found["right"].result.test.p_value > 0.01


def test_the_test_is_by_the_kernel_that_the_version_states() -> None:
    # A bandwidth that is read off the targets would make its level approximate.
    scale = "residual"
    protocol = replace(EXACT, output_scale=scale)
    found, model = results(measured(protocol)), VERSIONS["right"]
    prepared = prepare(protocol.apply(X), input_kernel=protocol.input_kernel)
    own = prepared.congruence_test(Y, model, output_kernel=model_output_kernel(Y, model, scale))
    assert found["right"].test.p_value == own.p_value
    expected, wrong = found["right"].band, found["wrong"].band
    assert expected.low < found["right"].mean < expected.high
    assert found["wrong"].mean > wrong.high


def faulty(rows: int) -> tuple[np.ndarray, np.ndarray, dict[str, Normal]]:
    """A spread that grows along the input, and a version that says one spread everywhere."""
    rng = np.random.default_rng(11)
    x = rng.normal(size=(rows, 3))
    spread = np.exp(0.5 * x[:, 0])
    y = x[:, 1] + spread * rng.normal(size=rows)
    even = np.full(rows, np.sqrt(np.mean(spread**2)))
    versions = {"right": spread, "overconfident": spread / 2.0, "homoscedastic": even}
    return x, y, {name: Normal(x[:, 1], scale) for name, scale in versions.items()}


def test_a_homoscedastic_version_is_found_and_an_overconfident_one_is_named() -> None:
    x, y, versions = faulty(1000)
    found = measure(EXACT, x, y, versions, metrics=["calibration"])
    assert not any(version.result.test for version in found.values())
    right, narrow, even = (found[name].calibration for name in versions)
    assert right.test.p_value > 0.05
    assert not right.reading.significant().any()
    assert narrow.test.p_value < 0.01
    assert even.test.p_value < 0.01
    assert narrow.test.effects["spread"].low > right.test.effects["spread"].high
    named = narrow.reading.columns()["calibration_fault"][narrow.reading.significant()]
    assert np.mean(named == "spread") > 0.95
    assert np.median(narrow.reading.factor) == pytest.approx(2.0, rel=0.15)
    # Too wide where the targets' spread is small, too narrow where it is large.
    factor = even.reading.factor
    assert np.mean(factor[x[:, 0] < -1.0]) < 0.8 < 1.2 < np.mean(factor[x[:, 0] > 1.0])
    assert len(even.curves.shares) == len(even.regions) == 10


def test_calibration_is_measured_where_targets_are_numbers_at_their_own_rows_and_it_is_asked_for() -> None:
    assert with_calibration(measured(EXACT)) == set(VERSIONS)
    assert not with_calibration(measured(EXACT, query=X[:50]))
    assert not with_calibration(measured(replace(EXACT, downsampling=HALF)))
    assert not with_calibration(measure(EXACT, X, Y, VERSIONS, metrics=["cce"]))


def of_protocol(protocol: EvaluationProtocol) -> VersionMeasurement:
    rng = np.random.default_rng(5)
    x = rng.standard_normal((60, 3))
    y = x[:, 0] + rng.standard_normal(60)
    law = Normal(x[:, 0], np.ones(60))
    query = x[:20] if protocol.reference == "validation" else None
    return measure(protocol, x, y, {"angle/1": law}, seed=3, query=query)["angle/1"]


@pytest.mark.parametrize("protocol", [EXACT, ECAI], ids=["exact", "repeats"])
def test_a_measurement_comes_back_as_it_was(protocol: EvaluationProtocol, tmp_path: Path) -> None:
    made = of_protocol(protocol)
    address = MeasurementAddress(ObjectStore(str(tmp_path), {}), "measurements/split/version.npz")
    assert address.read() is None
    address.write(made)
    found = address.require()
    assert type(found.result) is type(made.result)
    for name in ("values", "noise_floor_values", "squared_values"):
        np.testing.assert_array_equal(getattr(found.result, name), getattr(made.result, name))
    assert found.result.interval() == made.result.interval()
    assert found.result.excess_interval() == made.result.excess_interval()
    test, known = found.result.test, made.result.test
    np.testing.assert_array_equal(test.point_p_values, known.point_p_values)
    assert (test.p_value, test.band) == (known.p_value, known.band)
    assert (found.seconds, found.rows) == (made.seconds, None)
    for name in ("band", "std", "solver", "inference", "reason", "output_kernel"):
        assert getattr(found.result, name) == getattr(made.result, name)
    assert (found.calibration is None) == (made.calibration is None) == (protocol is ECAI)
    if found.calibration is not None and made.calibration is not None:
        assert found.calibration.test.effects == made.calibration.test.effects
        assert found.calibration.test.by_basis == made.calibration.test.by_basis
        assert found.calibration.regions.names == made.calibration.regions.names
        for name, column in made.calibration.reading.columns().items():
            np.testing.assert_array_equal(found.calibration.reading.columns()[name], column)
        np.testing.assert_array_equal(found.calibration.curves.shares, made.calibration.curves.shares)
    address.remove()
    address.remove()
    assert address.read() is None


def test_columns_of_an_interrupted_solve_by_other_blocks_are_not_mixed_with_a_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after two blocks were written, then a run with other blocks: the version is solved, once."""
    address = MeasurementAddress(ObjectStore(str(tmp_path), {}), "measurements/split/version.npz")
    for block in range(2):
        address.write_columns(block, {"cce": np.zeros(30)})
    left = []

    def by_one_block(*_: Any, **__: Any) -> None:
        left.extend(ObjectStore(str(tmp_path), {}).objects("measurements"))
        address.write(of_protocol(EXACT))

    monkeypatch.setattr(solve, "_solve_by_blocks", by_one_block)
    monkeypatch.setattr(solve, "is_held", lambda *_, **__: False)
    rows: Any = SimpleNamespace(sizes=[60], store=SimpleNamespace(dimension=3), of_versions=lambda _labels: rows)
    settings = EvaluationSettings.model_validate(
        {"splits": [{"name": "s", "uri": "s.parquet", "input": "x", "target": "y"}], "encoder": {"kind": "identity"}}
    )
    work = solve.SolveWork(EXACT, rows, None, {"version": address})
    with dask_client(ClusterSettings(kind="threads", workers=1)) as client:
        solve.solve_versions(client, settings, work, print)
    assert left == []
    assert address.read() is not None


def test_what_is_damaged_counts_as_missing(tmp_path: Path) -> None:
    address = MeasurementAddress(ObjectStore(str(tmp_path), {}), "version.npz")
    content = to_bytes(of_protocol(EXACT))
    other_zip = content.replace(b"PK\x01\x02\x2d\x03\x2d", b"PK\x01\x02\x2d\x03\xff")
    assert other_zip != content
    for damaged in (b"", b"no archive", content[: len(content) // 2], content[:-40] + bytes(40), other_zip):
        (tmp_path / "version.npz").write_bytes(damaged)
        assert address.read() is None
        with pytest.raises(StoreError, match="run again"):
            address.require()
        with pytest.raises(ValueError, match="NPZ"):
            from_bytes(damaged)


DRAW = np.random.default_rng(11)
AT = DRAW.standard_normal((240, 2))
SEEN = AT[:, 0] + DRAW.standard_normal(240)
RIGHT, NARROW = Normal(AT[:, 0], np.ones(240)), Normal(AT[:, 0], np.full(240, 0.4))
KEYS = np.array([f"row {number}" for number in range(240)], dtype=object)


def counted(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, calls: Counter[str]) -> None:
    original = getattr(place, name)

    def count(*arguments: Any, **options: Any) -> Any:
        calls[name] += 1
        return original(*arguments, **options)

    monkeypatch.setattr(place, name, count)


def test_a_preview_makes_the_inputs_systems_once_and_fits_each_shift_and_spread_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()
    counted(monkeypatch, correction, "rehearsal_split", calls)
    counted(monkeypatch, recalibration, "fit_moves", calls)
    counted(monkeypatch, recalibration, "fit_shape", calls)
    half = np.arange(240) % 2 == 0
    rows = Rows({}, SEEN, NARROW, seed=5, keys=KEYS)
    first = correction.preview(EXACT, rows, AT, half)
    again = correction.preview(EXACT, rows, AT, half)
    assert first == again
    assert calls["rehearsal_split"] == 1
    # 5 folds of 6 shifts, 6 spreads and 6 shapes: shapes, and one of the spreads, move as has been fitted already.
    assert calls["fit_shape"] == 2 * 90
    assert calls["fit_moves"] <= 2 * 60
    correction.preview(EXACT, rows, AT[::-1], half)
    assert calls["rehearsal_split"] == 2


def test_a_second_reading_sums_no_squared_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    smoother = prepare(AT, input_kernel=RBF(0.5)).smoother
    direct = np.sum((smoother.synthesis * smoother.filters @ smoother.analysis.T).astype(float) ** 2, axis=1)
    read = local_reading(smoother, DRAW.random(240))
    np.testing.assert_allclose(read.null_std[:, 0], np.sqrt(direct), rtol=1e-4)
    monkeypatch.delattr(SpectralSmoother, "squared_weights")
    np.testing.assert_array_equal(local_reading(smoother, DRAW.random(240)).null_std, read.null_std)
