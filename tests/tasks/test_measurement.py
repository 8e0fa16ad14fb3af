"""The measurement of versions in memory, under protocols with repeats, too."""

from dataclasses import replace

import numpy as np
import pytest

from congruence.kernels import (
    EXACT,
    Downsampling,
    EvaluationProtocol,
    Normal,
    prepare,
)
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.engine.targets import model_output_kernel
from congruence.tasks.solving.measurement import VersionMeasurement, measure

ROWS = 240
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 5))
Y = X[:, 0] + RNG.normal(size=ROWS)
VERSIONS = {"right": Normal(X[:, 0], np.ones(ROWS)), "wrong": Normal(np.zeros(ROWS), np.full(ROWS, 1.4))}
HALF = Downsampling(rows=ROWS // 2, repeats=3)


class OnlyCongruence:
    seed = 0
    metrics = None


def measured(protocol: EvaluationProtocol, **options) -> dict[str, VersionMeasurement]:
    return measure(OnlyCongruence(), protocol, X, Y, VERSIONS, **options)


def results(found: dict[str, VersionMeasurement]) -> dict[str, CongruenceResult]:
    return {name: version.result for name, version in found.items()}


def with_calibration(found: dict[str, VersionMeasurement]) -> set[str]:
    return {name for name, version in found.items() if version.calibration is not None}


def beyond_noise(result) -> float:
    """The root mean square of CCE less that of the noise, whose expectation does not depend on the size of a split."""
    return float(np.sqrt(max(0.0, np.mean(result.squared_values) - np.mean(result.noise_floor_values**2))))


def test_a_downsampled_reference_still_scores_and_tests_every_point() -> None:
    found = measured(replace(EXACT, downsampling=replace(HALF, repeats=10)))
    whole = measured(EXACT)
    for name, result in results(found).items():
        assert result.values.shape == result.noise_floor_values.shape == (ROWS,)
        assert 0.0 <= result.mean_error_bound <= result.error_bound < 1e-6
        assert found[name].repeat_std > 0.0
        # Half of the points double the floor's square; the error that is the model's stays.
        assert result.noise_floor > whole[name].result.noise_floor
        assert found[name].test.point_p_values.shape == (ROWS,)
    # Over seeds, ten choices of half the points give 0.17 to 0.24 for the 0.24 of all of them.
    assert beyond_noise(found["wrong"].result) == pytest.approx(beyond_noise(whole["wrong"].result), rel=0.3)
    assert found["wrong"].test.p_value < 0.05
    assert found["right"].test.p_value > 0.01


def test_all_points_downsampled_are_the_exact_protocol() -> None:
    found = measured(replace(EXACT, downsampling=Downsampling(rows=ROWS, repeats=1)))
    for name, result in results(measured(EXACT)).items():
        np.testing.assert_allclose(found[name].result.values, result.values, rtol=1e-9)
        np.testing.assert_allclose(found[name].result.noise_floor_values, result.noise_floor_values, rtol=1e-3)
        assert found[name].test.p_value == pytest.approx(measured(EXACT)[name].test.p_value, abs=0.01)


@pytest.mark.parametrize("scale", ["marginal", "residual", "multiscale"])
def test_the_test_is_by_the_kernel_that_the_version_states(scale: str) -> None:
    # A bandwidth that is read off the targets would make its level approximate.
    protocol = replace(EXACT, output_scale=scale)
    found, model = measured(protocol), VERSIONS["right"]
    prepared = prepare(protocol.apply(X), input_kernel=protocol.input_kernel)
    own = prepared.congruence_test(Y, model, output_kernel=model_output_kernel(Y, model, scale))
    assert found["right"].test.p_value == own.p_value
    expected, wrong = found["right"].expected, found["wrong"].expected
    assert expected.low < found["right"].result.mean < expected.high
    assert found["wrong"].result.mean > wrong.high


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

    class Asked:
        seed = 0
        metrics = ["calibration"]

    found = measure(Asked(), EXACT, x, y, versions)
    assert not any(version.test for version in found.values())
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

    class Asked:
        seed = 0
        metrics = ["cce"]

    assert not with_calibration(measure(Asked(), EXACT, X, Y, VERSIONS))
