"""One place says what each logged number means: its name, unit, direction and what its interval speaks of."""

import numpy as np
import pytest

from congruence.kernels import EXACT, CongruenceTest, Normal, Poisson
from congruence.tasks.scores.metrics.definitions import NEW_TARGETS, ROWS
from congruence.tasks.scores.metrics.registry import METRICS, metric_names, metric_of, shown
from congruence.tasks.scores.points import score_points, version_metrics
from congruence.tasks.scores.verdict import probability
from congruence.tasks.solving.measurement import measure


class Everything:
    seed = 0
    metrics = None


def summary(model, y, x):
    found = measure(Everything(), EXACT, x, y, {"": model})[""]
    points = score_points(found.result, model, y, seed=0, keys=None, test=found.test)
    return version_metrics(metric_names(), points, model, y, found, seed=0)[0]


@pytest.fixture(scope="module")
def metrics():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((150, 3))
    rate = np.exp(0.5 * x[:, 0])
    return {
        "normal": summary(Normal(x[:, 0], np.ones(150)), x[:, 0] + rng.standard_normal(150), x),
        "biased": summary(Normal(x[:, 0] + 2.0, np.ones(150)), x[:, 0] + rng.standard_normal(150), x),
        "counts": summary(Poisson(rate), rng.poisson(rate).astype(float), x),
    }


def test_every_logged_number_has_a_meaning(metrics):
    for found in metrics.values():
        for name, metric in found.items():
            means = metric_of(name)
            assert means.reading, name
            assert means.label, name
            if metric.low is not None:
                assert means.interval, name
    assert set(shown("headlines")) <= set(METRICS)


def test_intervals_of_cce_are_of_new_targets_and_those_of_scores_of_rows(metrics):
    for name in ("cce_mean", "cce_excess", "cce_squared_mean"):
        assert metric_of(name).interval == NEW_TARGETS
    for name in ("nll_mean", "crps_mean", "mae", "rmse", "ece", "coverage_90", "width_90"):
        assert metric_of(name).interval == ROWS
    found = metrics["normal"]
    # What other targets would give is wider than what other points would, given these targets.
    assert found["cce_mean"].low < found["cce_mean"].value < found["cce_mean"].high
    assert found["cce_noise_floor"].low is None


def test_the_band_of_a_true_version_holds_its_cce(metrics):
    true, biased = metrics["normal"], metrics["biased"]
    assert true["cce_expected"].low < true["cce_mean"].value < true["cce_expected"].high
    assert biased["cce_mean"].value > biased["cce_expected"].high


def test_what_is_found_at_a_point_is_said_of_its_neighbourhood():
    # A point is smoothed from its neighbours' targets: beside a wrong region it is found, though the model is right.
    assert "Neighbours share their targets" in METRICS["cce_significant_share"].reading
    assert CongruenceTest.significant_points.__doc__ is not None
    assert "*everywhere*" in CongruenceTest.significant_points.__doc__


def test_digits_of_a_p_value_that_say_nothing_are_not_said():
    assert [probability(value) for value in (None, 0.0, 1e-9, 0.0321)] == ["–", "< 0.001", "< 0.001", "0.032"]


def test_what_is_expected_if_true_stands_beside_every_mean():
    class OnlyCongruence:
        seed = 0
        metrics = ["cce"]

    rng = np.random.default_rng(2)
    x = rng.standard_normal((100, 3))
    found = measure(OnlyCongruence(), EXACT, x, x[:, 0] + rng.standard_normal(100), {"": Normal(x[:, 0], np.ones(100))})
    assert found[""].test is None
    assert found[""].expected.low < found[""].expected.mean < found[""].expected.high
