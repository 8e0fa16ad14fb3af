"""The null of projected scores, the same whatever the cuts; effects as they are defined, and their intervals."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats

from congruence.kernels import Poisson
from congruence.kernels.conditional_calibration import null as null_module
from congruence.kernels.conditional_calibration.counts import JumpScores
from congruence.kernels.conditional_calibration.effects import Effect, LeaveOneOut, _interval
from congruence.kernels.conditional_calibration.null import draw_blocks, null_pit_values, projected_draws
from congruence.kernels.engine.blocks import BlockSums
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.pit import ORDERS, mean_scores, pit_scores


@pytest.fixture(scope="module")
def directions() -> tuple[np.ndarray, np.ndarray]:
    """Shared directions that partly repeat each other, and own ones that partly lie in their span."""
    rng = np.random.default_rng(0)
    shared = np.linalg.qr(rng.standard_normal((3000, 6)))[0]
    shared = np.column_stack([shared, shared[:, 0] * 0.6 + shared[:, 1] * 0.8]).astype(np.float32)
    own = np.column_stack([shared[:, 2], np.linalg.qr(rng.standard_normal((3000, 2)))[0]]).astype(np.float32)
    return shared, own


def drawn(vectors: np.ndarray, draws: int, seed: int) -> Callable[[int], np.ndarray]:
    return lambda block: projected_draws(vectors, 0, block, draws, seed)


def test_coefficients_have_the_covariance_of_the_directions(directions) -> None:
    everything = np.column_stack(directions)
    values = np.concatenate([drawn(everything, 2000, 1)(block) for block in draw_blocks(2000)], axis=2)
    assert values.shape[2] == 2000
    covariance = np.einsum("kjd,ljd->jkl", values, values) / 2000
    exact = everything.astype(np.float64)
    np.testing.assert_allclose(covariance, np.tile(exact.T @ exact, (4, 1, 1)), atol=0.13)
    np.testing.assert_allclose(values.mean(axis=2), 0.0, atol=0.1)


def test_few_draws_are_the_first_of_many(directions) -> None:
    few, many = (drawn(directions[0], draws, 1) for draws in (199, 999))
    np.testing.assert_allclose(few(0), many(0)[:, :, :199], atol=1e-4)


def test_draws_of_jumps_are_the_means_of_the_scores_over_them(directions) -> None:
    """Of one split of PIT values, those of a version with jumps are the others' means given the jump."""
    shared, law = directions[0][:400], Poisson(np.full(400, 0.7))
    scores = JumpScores.of(np.zeros(400), law)
    u = null_pit_values(0, 400, 0, 3)[:, :20]
    counts = law.quantile(u.astype(np.float64))
    expected = mean_scores(law.cdf(counts - 1.0), law.cdf(counts)).transpose(0, 2, 1)
    np.testing.assert_allclose(scores.drawn(u), expected, atol=1e-5)
    found = projected_draws(shared, 0, 0, 20, 3, scores)
    np.testing.assert_allclose(found, np.einsum("nk,njd->kjd", shared, expected), atol=1e-3)
    split = projected_draws(shared[:150], 0, 0, 20, 3, scores[:150])
    split = split + projected_draws(shared[150:], 150, 0, 20, 3, scores[150:])
    np.testing.assert_allclose(split, found, atol=1e-3)


def test_a_row_has_the_draws_of_its_position(directions, monkeypatch) -> None:
    shared, _ = directions
    np.testing.assert_array_equal(null_pit_values(0, 40, 256, 5)[33:], null_pit_values(33, 7, 256, 5))
    whole = drawn(shared, 20, 5)(0)
    parts = [projected_draws(shared[start : start + 700], start, 0, 20, 5) for start in range(0, 3000, 700)]
    np.testing.assert_allclose(np.sum(parts, axis=0), whole, atol=1e-4)
    monkeypatch.setattr(null_module, "ROWS_AT_ONCE", 700)
    np.testing.assert_allclose(drawn(shared, 20, 5)(0), whole, atol=1e-4)


@dataclass(frozen=True)
class Basis:
    eigenvalues: np.ndarray
    vectors: np.ndarray


def explained_shares(basis: Basis, ridge: float, scores: np.ndarray) -> Mapping[str, Effect]:
    regression, known, sums = LeaveOneOut.of(basis.eigenvalues, ridge), BlockSums(), BlockSums()
    regression.add_scores(known, basis.vectors, scores)
    regression.add_effects(sums, known, basis.vectors, scores)
    return regression.effects(sums)


@pytest.fixture(scope="module")
def basis() -> Basis:
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (120, 2))
    values, axes = np.linalg.eigh(RBF(0.5)(x) / 120)
    return Basis(values[:-31:-1].copy(), axes[:, :-31:-1].astype(np.float32))


def smoothing(basis: Basis, ridge: float) -> np.ndarray:
    U, e = basis.vectors.astype(np.float64), basis.eigenvalues
    w = e / (e + ridge)
    return (U[:, w >= 1e-2] * w[w >= 1e-2]) @ U[:, w >= 1e-2].T


def form(H: np.ndarray) -> np.ndarray:
    """A with phi' A phi = sum_i phi_i m_{-i}(x_i), symmetric."""
    lift = 1.0 / (1.0 - np.diag(H))
    A = (H - np.diag(np.diag(H))) * (lift[:, None] + lift[None, :]) / 2.0
    return np.asarray(A)


def test_the_estimate_is_the_sum_over_pairs_of_rows(basis: Basis) -> None:
    scores = pit_scores(np.random.default_rng(1).beta(0.7, 1.2, 120))
    A = form(smoothing(basis, 1e-2))
    for j, effect in enumerate(explained_shares(basis, 1e-2, scores).values()):
        assert effect.estimate == pytest.approx(scores[:, j] @ A @ scores[:, j] / 120, rel=1e-4)


def test_the_quadratic_part_of_its_variance_is_the_sum_over_pairs(basis: Basis) -> None:
    H = smoothing(basis, 1e-2)
    A, variance = form(H), np.random.default_rng(2).uniform(0.5, 2.0, 120)
    sums, regression = BlockSums(), LeaveOneOut.of(basis.eigenvalues, 1e-2)
    regression.add_variances(sums, basis.vectors, variance[:, None])
    sums.added |= {"signal": np.zeros(1), "products": np.zeros(1)}
    computed = regression.quadratic(0, sums)
    assert computed == pytest.approx(2.0 * variance @ A**2 @ variance, rel=1e-4)


def test_it_has_no_bias_and_its_interval_holds(basis: Basis) -> None:
    """A score of variance 2.25 at an amplitude that the inputs explain: sum w (c^2 - 1) would claim more."""
    rng = np.random.default_rng(3)
    m = 0.4 * np.sin(3.0 * basis.vectors[:, 1] / np.abs(basis.vectors[:, 1]).max())
    theta = m @ form(smoothing(basis, 1e-1)) @ m / 120
    results = [
        next(iter(explained_shares(basis, 1e-1, np.tile((m + 1.5 * rng.standard_normal(120))[:, None], 4)).values()))
        for _ in range(150)
    ]
    estimates = np.array([effect.estimate for effect in results])
    assert np.mean(estimates) == pytest.approx(theta, abs=3.0 * np.std(estimates) / np.sqrt(150))
    assert np.mean([effect.low <= theta <= effect.high for effect in results]) >= 0.9


def test_a_uniform_model_is_not_called_faulty_and_a_narrow_one_by_its_spread(basis: Basis) -> None:
    rng = np.random.default_rng(4)
    true = explained_shares(basis, 1e-1, pit_scores(rng.uniform(size=120)))
    assert list(true) == list(ORDERS)
    assert all(effect.low < 0.05 for effect in true.values())
    narrow = explained_shares(basis, 1e-1, pit_scores(scipy.stats.norm.cdf(2.0 * rng.standard_normal(120))))
    assert narrow["spread"].low > 0.1
    assert narrow["bias"].low == narrow["skew"].low == 0.0


def test_the_interval_is_that_of_a_chi_square() -> None:
    """One direction: the signal is c^2 - 1 with c ~ N(mu, 1); at c^2 = 20 the interval of mu^2 by its definition."""
    low, high = _interval(19.0, 1.0, 2.0, 1.0, 0.95)
    exact = [
        next(v for v in np.linspace(0, 80, 8001) if scipy.stats.ncx2.cdf(20.0, 1, max(v, 1e-9)) <= share)
        for share in (0.975, 0.025)
    ]
    assert (low, high) == pytest.approx(exact, rel=0.12)
