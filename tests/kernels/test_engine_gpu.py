"""Tiles, thin products, whole answers and the calibration test on a card are those of the processor."""

from dataclasses import replace

import numpy as np
import pytest

from congruence.kernels import RBF, Laplacian, Matern, NegativeBinomial, Normal, Polynomial, Samples
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.engine.blocks import Columns, HeldRows, LocalPasses
from congruence.kernels.engine.driver import Driver, with_columns
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.plan import Ask
from congruence.kernels.engine.system import TileMaker, TilePoints, product, projected
from congruence.kernels.protocol import EXACT

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")

KERNELS = [
    Polynomial(degree=1),
    Polynomial(degree=2, gamma=0.1, coef0=0.5),
    Polynomial(degree=3, coef0=1.0),
    RBF(gamma=0.05),
    Laplacian(gamma=0.05),
    *(Matern(length_scale=3.0, nu=nu) for nu in (0.5, 1.5, 2.5)),
    RBF(gamma=0.1) + Polynomial(degree=2),
    RBF(gamma=0.1) * Matern(length_scale=3.0, nu=1.5),
]
TOLERANCES = {np.float32: 1e-5, np.float64: 1e-10}
ROWS = 900 if "stand-in" in cupy.__version__ else 3000  # the arrays' kinds are the matter there, and the numbers here


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_a_tile_is_that_of_the_processor_in_double_precision(kernel, dtype):
    x = np.random.default_rng(0).standard_normal((700, 24))
    expected = kernel(x, x[:300])
    points, others = TilePoints(cupy.asarray(x.astype(dtype))), TilePoints(cupy.asarray(x[:300].astype(dtype)))
    tile = TileMaker(kernel, 24).tile(points, slice(0, 700), others, others.all).get()
    rounded = kernel(x.astype(dtype).astype(float), x[:300].astype(dtype).astype(float))
    assert np.abs(tile - rounded).max() <= TOLERANCES[dtype] * np.abs(rounded).max()
    np.testing.assert_allclose(rounded, expected, rtol=1e-3, atol=1e-4)
    own = TileMaker(kernel, 24).tile(others, slice(0, 300), others, others.all).get()
    assert np.abs(own - rounded[:300]).max() <= TOLERANCES[dtype] * np.abs(rounded).max()


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_thin_products_come_back_in_double_precision(dtype):
    rng = np.random.default_rng(1)
    block, right, left = rng.standard_normal((500, 90)), rng.standard_normal((90, 13)), rng.standard_normal((500, 1))
    on_card = cupy.asarray(block.astype(dtype))
    for found, expected in ((product(on_card, right), block @ right), (projected(on_card, left), block.T @ left)):
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float64
        assert np.abs(found - expected).max() <= TOLERANCES[dtype] * np.abs(expected).max()


@pytest.mark.parametrize(
    ("what", "dtype"),
    [("rows", np.float64), ("rows", np.float32), ("weights", np.float64), ("query", np.float64), ("unit", np.float32)],
)
def test_an_answer_is_that_of_the_processor(what, dtype):
    n, rng = ROWS, np.random.default_rng(2)
    x = rng.standard_normal((n, 6))
    mean = 5.0 + 2.0 * x[:, 0]
    y = np.round(rng.normal(mean, 1.0).clip(0.0))
    versions = {
        "normal": Normal(mean + 0.3, np.full(n, 1.2)),
        "counts": NegativeBinomial(np.maximum(mean, 0.5), np.full(n, 0.1)),
        "ensemble": Samples(rng.normal(mean[:, None], 1.0, size=(n, 7))),
    }
    protocol = replace(EXACT, input_kernel=Polynomial(degree=3, gamma=1 / 6), regularization=1e-3)
    if what == "unit":
        protocol = replace(EXACT, input_kernel=RBF(gamma=0.5), regularization=1e-3)
    roots = np.sqrt(rng.exponential(size=n)) if what == "weights" else None
    run, found = LocalPasses(HeldRows(x, y, versions, block_rows=n // 4 + 50)), {}
    points = LocalPasses(HeldRows(rng.standard_normal((400, 6)))) if what == "query" else None
    for gpu in (False, True):
        driver, columns = Driver(run, protocol, points=points, roots=roots, dtype=dtype, gpu=gpu), Columns()
        ask = Ask(list(versions), tested=what == "rows", draws=19)
        solved, reason = driver.best(ask, columns, Accuracy.of(400))
        finished = driver.finish(solved, columns, reason)
        found[gpu] = {name: with_columns(one, columns.of(name)) for name, one in finished.items()}
    for name in versions:
        host, card = found[False][name], found[True][name]
        assert np.abs(host.values - card.values).max() <= host.error_bound + card.error_bound
        near = 1e-8 if dtype is np.float64 else 2e-4
        assert card.mean == pytest.approx(host.mean, rel=near)
        assert card.noise_floor == pytest.approx(host.noise_floor, rel=near)
        assert card.uncertainty.standard_error == pytest.approx(host.uncertainty.standard_error, rel=10 * near)
        if host.test is not None:
            assert card.test.p_value == host.test.p_value


CUBIC = Polynomial(degree=3, gamma=1.0, coef0=1.0)


@pytest.mark.parametrize("prepared", [False, True])
def test_the_test_is_the_same(prepared: bool) -> None:
    rng = np.random.default_rng(0)
    x = 10.0 + rng.standard_normal((150, 4))
    mean = 3.0 * x[:, 0]
    y, model = rng.normal(mean, np.exp(0.5 * x[:, 1] - 5.0)), Normal(mean, np.ones(150))
    settings = CalibrationSettings(draws=99, directions=30)
    host, device = (
        prepare_calibration(inputs, input_kernel=CUBIC if prepared else None, settings=settings).test_version(y, model)
        for inputs in (x, cupy.asarray(x))
    )
    assert device.statistic == pytest.approx(host.statistic, rel=1e-3)
    np.testing.assert_allclose(device.null_statistics, host.null_statistics, rtol=1e-2, atol=1e-2)
    assert device.p_value == pytest.approx(host.p_value, abs=0.02)
