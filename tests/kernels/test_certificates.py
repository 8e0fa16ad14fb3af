"""What is stated about the error of a CCE holds against the definition in extended precision, rounding included."""

from dataclasses import replace

import numpy as np
import pytest
from certified import SMALL, evaluated, exact_values, large_problem, random_problem

from congruence.kernels import RBF, Laplacian, Matern, Normal, Polynomial, maximum_conditional_mean_discrepancy, prepare
from congruence.kernels.engine import landmarks as engine_landmarks
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.measure import measure_held
from congruence.kernels.engine.plan import Ask
from congruence.kernels.protocol import EXACT


def assert_within_its_bounds(result, exact):
    rounding = 1e-9 * np.max(np.abs(exact))  # in double precision
    assert np.max(np.abs(result.values - exact)) <= result.error_bound + rounding
    assert abs(result.mean - np.mean(exact)) <= result.mean_error_bound + rounding
    assert result.mean_error_bound <= result.error_bound


@pytest.mark.filterwarnings("ignore::congruence.kernels.engine.landmarks.NearlyConstantKernelWarning")
@pytest.mark.parametrize("seed", range(1000, 1035))
def test_no_random_problem_violates_its_certificate(seed):
    problem = random_problem(seed, SMALL[seed % len(SMALL)], most_rows=150)
    assert_within_its_bounds(evaluated(problem), exact_values(problem))


@pytest.mark.parametrize("kind", ["unit norm", "matern 1/2", "clusters", "offset", "one long row"])
@pytest.mark.parametrize("at_query", [False, True], ids=["reference", "query"])
def test_single_precision_keeps_its_certificate(kind, at_query):
    problem = large_problem(kind, 600, "many landmarks", at_query=at_query)
    result, exact = evaluated(problem), exact_values(problem, np.float64)
    assert_within_its_bounds(result, exact)


@pytest.mark.parametrize("offset", [100.0, 1000.0])
@pytest.mark.parametrize("kernel", [RBF(0.5), Laplacian(0.5), Matern(1.5), RBF(0.5) + Matern(0.5)], ids=str)
def test_an_offset_of_the_inputs_changes_nothing(kernel, offset):
    rng = np.random.default_rng(0)
    x = np.round(rng.standard_normal((400, 3)) * 2**8) / 2**8  # exact in float32 with the offset, too
    mean = np.sin(x[:, 0])
    y, model = rng.normal(mean, 0.5), Normal(mean + 0.2, np.full(400, 0.5))
    exact = prepare(x, input_kernel=kernel).conditional_congruence_error(y, model)
    assert exact.bound_kind == "computed"
    moved, query = (x + offset).astype(np.float32), (x[:50] + offset).astype(np.float32)
    for points in (None, query):
        found = prepare(moved, query=points, input_kernel=kernel).conditional_congruence_error(y, model)
        np.testing.assert_allclose(found.values, exact.values[: len(found.values)], atol=1e-6)


@pytest.mark.parametrize("kernel", [RBF(0.5), Matern(0.5), Matern(2.5), RBF(0.5) * Polynomial()], ids=str)
def test_kernels_themselves_see_distances_and_not_offsets(kernel):
    x = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32) + np.float32(1000.0)
    exact = kernel(x.astype(np.float64))
    np.testing.assert_allclose(kernel(x), exact, rtol=1e-5)
    np.testing.assert_allclose(kernel(x, x.copy()), exact, rtol=1e-5)


@pytest.mark.parametrize("at_query", [False, True], ids=["reference", "query"])
def test_an_answer_on_landmarks_is_within_its_certificate(at_query):
    rng = np.random.default_rng(3)
    x, query = rng.standard_normal((1500, 3)), rng.standard_normal((200, 3)) if at_query else None
    y, model = np.sin(x[:, 0]) + rng.standard_normal(1500), Normal(np.zeros(1500), np.ones(1500))
    asked = {"query": query, "input_kernel": RBF(0.3)}
    exact = prepare(x, **asked).conditional_congruence_error(y, model)
    for landmarks in (20, 60, 200):
        near = prepare(x, landmarks=landmarks, **asked).conditional_congruence_error(y, model)
        assert near.bound_kind == "sampled"
        assert 0.0 < np.max(np.abs(near.values - exact.values)) <= near.error_bound, landmarks
        assert abs(near.mean - exact.mean) <= near.mean_error_bound, landmarks


def test_the_discrepancy_of_two_samples_is_within_its_certificate():
    rng = np.random.default_rng(4)
    x, x_prime = rng.standard_normal((400, 2)), rng.standard_normal((300, 2))
    y, y_prime = np.sin(x[:, 0]) + 5.0 * rng.standard_normal(400), 0.1 * rng.standard_normal(300)
    settings = {"query": x[:40], "input_kernel": RBF(0.5)}
    exact = maximum_conditional_mean_discrepancy(x, y, x_prime, y_prime, **settings)
    for landmarks in (20, 40):
        found = maximum_conditional_mean_discrepancy(x, y, x_prime, y_prime, **settings, landmarks=landmarks)
        error = np.max(np.abs(found.values - exact.values))
        assert 0.0 < error <= found.error_bound < 1e5 * error


@pytest.mark.parametrize("kernel", [RBF(0.5), Polynomial()])  # which try again with more, and in double precision
def test_tiles_that_are_kept_between_passes_change_nothing(kernel, monkeypatch):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((700, 3))
    y, protocol = x[:, 0] + rng.standard_normal(700), replace(EXACT, input_kernel=kernel, normalize=False)
    versions = {"a": Normal(x[:, 0], np.ones(700)), "b": Normal(x[:, 1], np.ones(700))}
    accuracy = Accuracy(share=1e-6, first=32, largest=256, exact_rows=0)

    def means():
        split = HeldSplit(x.astype(np.float32), y)
        return [measure_held(split, protocol, {n: v}, Ask([n]), accuracy)[n].values for n, v in versions.items()], split

    kept, split = means()
    assert len(split.systems) > 1
    assert all(system.inputs.kept for system in split.systems.values())
    held = split.systems[max(split.systems)].inputs.kept
    monkeypatch.setattr(engine_landmarks, "KEPT_BYTES", sum(tile.nbytes for tile in held.values()))
    _, again = means()
    assert all(system.inputs.kept for system in again.systems.values()), "what is shared is counted once"
    monkeypatch.setattr(engine_landmarks, "KEPT_BYTES", 0)
    made, split = means()
    assert not any(system.inputs.kept for system in split.systems.values())
    np.testing.assert_array_equal(kept, made)
