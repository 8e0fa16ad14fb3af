"""The tiled factor on a card, with its tiles there or in host memory, is that of LAPACK."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from congruence.kernels.engine.blocks import HeldRows, LocalPasses
from congruence.kernels.engine.driver import Driver
from congruence.kernels.engine.landmarks import local_factor
from congruence.kernels.errors import BudgetError, ConvergenceError
from congruence.kernels.protocol import EXACT
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.settings.parts import ClusterSettings
from congruence.tasks.solving.tiled_cholesky import TiledCholesky

pytestmark = pytest.mark.gpu
pytest.importorskip("cupy")

N, TILE = 700, 128


@pytest.fixture(scope="module")
def threads():
    with dask_client(ClusterSettings(kind="threads", workers=1)) as client:
        yield client


@pytest.fixture(autouse=True)
def _workers_find_the_tests(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("card_bytes", [2**30, 1])
def test_the_factor_solves_as_that_of_the_processor(threads, card_bytes, weighted):
    rng = np.random.default_rng(0)
    x, protocol = rng.standard_normal((N, 5)), replace(EXACT, regularization=1e-3)
    roots = np.sqrt(rng.exponential(size=N)) if weighted else None
    tiled = TiledCholesky(threads, tile_rows=TILE, card_bytes=card_bytes)
    run, rhs = LocalPasses(HeldRows(x)), rng.standard_normal((N, 9))
    card, host = (
        Driver(run, protocol, roots=roots, factorize=factorize).system(N) for factorize in (tiled, local_factor)
    )
    assert card.factor.place == ("card" if card_bytes > 1 else "visiting")
    expected = host.factor.solve(rhs)
    assert np.abs(card.factor.solve(rhs) - expected).max() <= 1e-9 * np.abs(expected).max()


def test_what_has_no_factor_or_no_room_is_refused(threads):
    x = np.random.default_rng(1).standard_normal((N, 5))
    run, protocol = LocalPasses(HeldRows(x)), replace(EXACT, regularization=-1e-3)
    with pytest.raises(ConvergenceError, match="not positive definite"):
        Driver(run, protocol, factorize=TiledCholesky(threads, TILE, card_bytes=2**30)).system(N)
    tiled = TiledCholesky(threads, TILE, memory_bytes=1000, card_bytes=1)
    with pytest.raises(BudgetError, match="GiB on the workers"):
        Driver(run, replace(protocol, regularization=1e-3), factorize=tiled).system(N)
