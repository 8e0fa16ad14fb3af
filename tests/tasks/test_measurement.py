"""The measurement of versions under protocols with repeats: the same in this process and on a cluster."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from congruence.kernels import ECAI, EXACT, PREPRINT, Downsampling, Normal, Protocol, congruence_tests, prepare
from congruence.kernels.mean_embeddings.model_scales import model_output_kernel
from congruence.tasks.clusters import dask_client
from congruence.tasks.linalg import sweep_iterates
from congruence.tasks.linalg.measurement import Measurement, measure, on_cluster
from congruence.tasks.settings.cluster import ClusterSettings
from congruence.tasks.settings.solver import SolverSettings

ROWS = 240
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 5))
Y = X[:, 0] + RNG.normal(size=ROWS)
VERSIONS = {"right": Normal(X[:, 0], np.ones(ROWS)), "wrong": Normal(np.zeros(ROWS), np.full(ROWS, 1.4))}
HALF = Downsampling(rows=ROWS // 2, repeats=3)


class OnlyCongruence:
    seed = 0
    metrics = None


def measured(protocol: Protocol, **options) -> Measurement:
    return measure(OnlyCongruence(), protocol, X, Y, VERSIONS, **options)


@pytest.mark.parametrize("choice", ["uniform", "leverage", "rpcholesky"])
def test_a_downsampled_reference_still_scores_and_tests_every_point(choice: str) -> None:
    found = measured(replace(EXACT, downsampling=replace(HALF, choice=choice, repeats=10)))
    whole = measured(EXACT)
    for name, result in found.results.items():
        assert result.values.shape == result.noise_floor_values.shape == (ROWS,)
        assert 0.0 <= result.mean_error_bound <= result.error_bound < 1e-6
        assert found.repeat_std[name] > 0.0
        # Half of the points double the floor's square; the error that is the model's stays.
        assert result.noise_floor > whole.results[name].noise_floor
        assert found.tests[name].point_p_values.shape == (ROWS,)
    # Over seeds, ten choices of half the points give 0.17 to 0.24 for the 0.24 of all of them.
    assert found.results["wrong"].excess == pytest.approx(whole.results["wrong"].excess, rel=0.3)
    assert found.tests["wrong"].p_value < 0.05
    assert found.tests["right"].p_value > 0.01


def test_all_points_downsampled_are_the_exact_protocol() -> None:
    found = measured(replace(EXACT, downsampling=Downsampling(rows=ROWS, repeats=1)))
    for name, result in measured(EXACT).results.items():
        np.testing.assert_allclose(found.results[name].values, result.values, rtol=1e-9)
        np.testing.assert_allclose(found.results[name].noise_floor_values, result.noise_floor_values, rtol=1e-3)
        assert found.tests[name].p_value == pytest.approx(measured(EXACT).tests[name].p_value, abs=0.01)


def test_protocols_with_repeats_give_the_same_numbers_on_a_cluster(tmp_path: Path) -> None:
    said: list[str] = []
    query = X[:50] + 0.1
    small = (
        (PREPRINT, None),
        (replace(ECAI, bootstraps=2, draws=2), query),
        (replace(EXACT, downsampling=replace(HALF, choice="leverage")), None),
    )
    with dask_client(ClusterSettings(kind="threads", workers=2)) as client:
        place = on_cluster(client, SolverSettings(), 100, tmp_path, said.append, gpu=False)
        for protocol, points in small:
            here, there = measured(protocol, query=points), measured(protocol, query=points, prepare_inputs=place)
            for name, result in here.results.items():
                np.testing.assert_allclose(there.results[name].values, result.values, rtol=1e-7)
                np.testing.assert_allclose(there.results[name].noise_floor_values, result.noise_floor_values, rtol=1e-5)
                assert there.tests[name].p_value == pytest.approx(here.tests[name].p_value, abs=0.01)
    assert len(said) == 1, "bootstraps of one protocol are announced once"


def test_an_iterate_is_kept_until_its_answer_is_logged_and_an_abandoned_one_for_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("congruence.tasks.linalg.plan.CHECKPOINT_ROWS", 10)
    settings = SolverSettings(kind="conjugate_gradient", landmarks=10)
    with dask_client(ClusterSettings(kind="threads", workers=2)) as client:
        place = on_cluster(client, settings, 100, tmp_path, lambda _: None, gpu=False)
        measurement = measured(EXACT, prepare_inputs=place)
    (kept,) = tmp_path.glob("iterate-*.npz")
    abandoned = tmp_path / "iterate-abandoned.npz"
    abandoned.touch()
    os.utime(abandoned, (0, 0))
    sweep_iterates(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]
    measurement.clear_checkpoints()
    assert not kept.exists()


@pytest.mark.parametrize("scale", ["marginal", "residual", "multiscale"])
def test_the_test_is_by_the_kernel_that_the_version_states(scale: str) -> None:
    # A bandwidth that is read off the targets would make its level approximate.
    protocol = replace(EXACT, output_scale=scale)
    found, model = measured(protocol), VERSIONS["right"]
    prepared = prepare(protocol.apply(X), input_kernel=protocol.input_kernel)
    own = congruence_tests(prepared, Y, {"": model}, output_kernel=model_output_kernel(Y, model, scale))[""]
    assert found.tests["right"].p_value == own.p_value
    expected, wrong = found.expected["right"], found.expected["wrong"]
    assert expected.low < found.results["right"].mean < expected.high
    assert found.results["wrong"].mean > wrong.high
