"""Tiles of every kernel on a card against the definition in float64, in both precisions."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from congruence.kernels.device_solves import cholesky_factor
from congruence.kernels.gram.operator import RegularizedGram
from congruence.kernels.gram.tiles import TileMaker, TilePoints
from congruence.kernels.kernel_functions import RBF, Laplacian, Linear, Matern, Polynomial, Product, Sum
from congruence.kernels.memory import VECTORS_PART
from congruence.kernels.solvers import Cholesky, ConjugateGradient
from congruence.tasks.solving.tiled_cholesky import _factor

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

KERNELS = [
    Polynomial(),
    Polynomial(degree=2, gamma=0.3, coef0=0.0),
    Polynomial(degree=5, gamma=0.1, coef0=0.5),
    Linear(),
    RBF(0.7),
    Matern(0.5, 1.3),
    Matern(1.5, 0.8),
    Matern(2.5, 2.0),
    Laplacian(0.2),
    Sum((RBF(0.5), Laplacian(0.1))),
    Product((Matern(1.5, 2.0), Polynomial())),
]


def definition(kernel, x, z):
    """k in float64 by its formula, from differences."""
    if isinstance(kernel, Sum):
        return sum(definition(part, x, z) for part in kernel.parts)
    if isinstance(kernel, Product):
        return np.prod([definition(part, x, z) for part in kernel.parts], axis=0)
    if isinstance(kernel, Polynomial):
        gamma = 1.0 / x.shape[1] if kernel.gamma is None else kernel.gamma
        return (gamma * x @ z.T + kernel.coef0) ** kernel.degree
    if isinstance(kernel, Laplacian):
        return np.exp(-kernel.gamma * cdist(x, z, "cityblock"))
    if isinstance(kernel, RBF):
        return np.exp(-kernel.gamma * cdist(x, z, "sqeuclidean"))
    t = np.sqrt(2 * kernel.nu) * cdist(x, z) / kernel.length_scale
    return {0.5: 1, 1.5: 1 + t, 2.5: 1 + t + t * t / 3}[kernel.nu] * np.exp(-t)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_tile_is_the_definition(kernel, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((131, 19)).astype(dtype)
    z = rng.standard_normal((67, 19)).astype(dtype)
    z[:5] = x[:5]  # copies: distances that cancel
    z[5:9] = x[5:9] * dtype(1 + 1e-3)
    points, others = TilePoints(cupy.asarray(x)), TilePoints(cupy.asarray(z))
    maker = TileMaker(kernel, 19)
    tile = maker.tile(points, slice(3, 130), others, slice(0, 67)).get()
    exact = definition(kernel, x[3:130].astype(float), z.astype(float))
    assert tile.dtype == dtype
    scale = np.sqrt(np.outer(definition_diagonal(kernel, x[3:130]), definition_diagonal(kernel, z)))
    unit = np.finfo(dtype).eps / 2
    # Inner products err by d u |x||z|, and a distance by that over its own kernel's slope, which is at most 1 here.
    bound = 16.0 * (19 + 8.0) * float(np.max(np.sum(x.astype(float) ** 2, axis=1))) * unit
    assert np.all(np.abs(tile - exact) <= bound * scale)
    diagonal = maker.tile(points, slice(0, 40), points, slice(0, 40)).get()
    np.testing.assert_allclose(np.diagonal(diagonal), definition_diagonal(kernel, x[:40]), rtol=100 * unit)


def definition_diagonal(kernel, x):
    return np.diagonal(definition(kernel, x.astype(float), x.astype(float)))


@pytest.mark.parametrize("kernel", [Polynomial(), RBF(0.7), Matern(0.5), Matern(2.5), Laplacian(0.2)], ids=str)
def test_a_value_that_is_not_a_number_stays_one(kernel):
    x = np.ones((3, 4), dtype=np.float32)
    x[1, 2] = np.nan
    points = TilePoints(cupy.asarray(x))
    tile = TileMaker(kernel, 4).tile(points, slice(0, 3), points, slice(0, 2)).get()
    assert np.isnan(tile[1]).all()
    assert np.isnan(tile[:, 1]).all()
    assert np.isfinite(tile[[0, 2], 0]).all()


def test_a_pass_and_a_solve_ask_the_card_for_nothing_block_by_block():
    transfers = getattr(cupy, "transfers", None)
    if transfers is None:
        pytest.skip("only the stand-in counts transfers")
    rng = np.random.default_rng(0)
    x, v = cupy.asarray(rng.standard_normal((1200, 8)).astype(np.float32)), rng.standard_normal((1200, 3))
    counts = {}
    for block_rows in (1200, 100):
        operator = RegularizedGram(x, Matern(0.5, 2.0), 0.1, block_rows=block_rows)
        transfers["get"] = 0
        placed = operator.vectors(v)
        assert isinstance(placed, cupy.ndarray)
        assert isinstance(operator.matmul(placed), cupy.ndarray)
        columns = operator.columns(np.arange(50))
        columns.transposed_matmul(placed)
        columns.matmul(cupy.asarray(v[:50]))
        solver = ConjugateGradient(1e-6, landmarks=100)
        solver.solve(solver.prepare(operator), v)
        counts[block_rows] = transfers["get"]
    assert counts[100] == counts[1200]


def test_vectors_that_do_not_fit_a_card_stay_on_the_host(monkeypatch):
    x, v = np.random.default_rng(0).standard_normal((300, 4)), np.ones((300, 2))
    operator = RegularizedGram(cupy.asarray(x), RBF(0.5), 0.1)
    on_card = operator.matmul(operator.vectors(v)).get()
    monkeypatch.setenv("CONGRUENCE_CARD_SHARE", f"{10 * v.nbytes / (VECTORS_PART * 2**50):.20f}")
    assert operator.vectors(v) is v
    np.testing.assert_allclose(operator.matmul(v), on_card, rtol=1e-12)


def test_the_dense_factor_is_made_on_the_card_and_refused_there_too():
    rng = np.random.default_rng(0)
    x, rhs = rng.standard_normal((400, 5)), rng.standard_normal((400, 3))
    operator = RegularizedGram(cupy.asarray(x), RBF(0.5), 1e-3)
    state = Cholesky().prepare(operator)
    assert isinstance(state.factor, cupy.ndarray)
    solution = Cholesky().solve(state, rhs)
    exact = np.linalg.solve(RBF(0.5)(x) + 0.4 * np.eye(400), rhs)
    np.testing.assert_allclose(solution.value, exact, rtol=1e-9, atol=1e-12)
    assert isinstance(solution.residual, np.ndarray)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [-1.0, np.nan])
def test_a_matrix_without_a_factor_is_refused_on_the_card(dtype, bad):
    matrix = 3.0 * np.eye(50, dtype=dtype)
    matrix[20, 20] = bad
    for factor in (cholesky_factor, lambda tile: _factor(tile, 0)):
        with pytest.raises(np.linalg.LinAlgError):
            factor(cupy.asarray(matrix))


def test_a_checkpoint_is_given_host_arrays_and_resumed_on_the_card():
    class Kept:
        saved = None

        def load(self, rhs):
            return self.saved

        def save(self, iterate):
            assert isinstance(iterate.value, np.ndarray)
            if self.saved is None:
                self.saved = replace(iterate.moved(np.copy), energy=iterate.energy.copy())

        def clear(self):
            self.saved = None

    rng = np.random.default_rng(0)
    x, rhs = rng.standard_normal((900, 6)).astype(np.float32), rng.standard_normal((900, 3))
    kept = Kept()
    solver = ConjugateGradient(1e-6, landmarks=20, checkpoint=kept)
    operator = RegularizedGram(cupy.asarray(x), RBF(0.5), 1e-2)
    state = solver.prepare(operator)
    first = solver.solve(state, rhs)
    assert kept.saved.passes == 1
    again = solver.solve(state, rhs)
    np.testing.assert_allclose(again.value, first.value, rtol=1e-4, atol=1e-6)
    host = ConjugateGradient(1e-6, landmarks=20)
    expected = host.solve(host.prepare(RegularizedGram(x, RBF(0.5), 1e-2)), rhs)
    assert np.linalg.norm(first.value - expected.value) <= 1e-4 * np.linalg.norm(expected.value)
