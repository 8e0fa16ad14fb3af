"""One-thread BLAS around calls that may overlap."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from congruence.kernels import threads as cores
from congruence.kernels.engine.system import padded_columns, projected
from congruence.kernels.threads import available_threads, map_on_threads, on_one_core, single_threaded_blas


def blas_threads():
    return sorted({library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"})


def test_users_inside_each_other_leave_blas_as_the_first_one_found_it():
    before = blas_threads()
    with single_threaded_blas():
        assert map_on_threads(lambda _: blas_threads(), range(4), 2) == [[1]] * 4
        with single_threaded_blas():
            assert blas_threads() == [1]
        assert blas_threads() == [1]
    assert blas_threads() == before


@pytest.mark.parametrize("first_leaves_first", [True, False])
def test_users_in_two_threads_leave_blas_as_the_first_one_found_it(first_leaves_first):
    before = blas_threads()
    first_is_in, first_may_go = threading.Event(), threading.Event()
    seen_by_the_first = []

    def first():
        with single_threaded_blas():
            first_is_in.set()
            first_may_go.wait(10)
            seen_by_the_first.extend(blas_threads())

    other = threading.Thread(target=first)
    other.start()
    first_is_in.wait(10)
    with single_threaded_blas():
        assert blas_threads() == [1]
        if first_leaves_first:
            first_may_go.set()
            other.join()
            assert blas_threads() == [1]
    first_may_go.set()
    other.join()
    assert seen_by_the_first == [1]
    assert blas_threads() == before


def test_both_hold_where_blas_has_two_threads_to_begin_with():
    """As it has not in tests, where test processes share the cores."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "leave_blas_as", __file__]
    done = subprocess.run(command, env=os.environ | {"OPENBLAS_NUM_THREADS": "2"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


FORK = """
import multiprocessing, numpy
from threadpoolctl import threadpool_info
from congruence.kernels.threads import single_threaded_blas

def limit():
    with single_threaded_blas():
        assert {library["num_threads"] for library in threadpool_info()} == {1}

def fork():
    child = multiprocessing.get_context("fork").Process(target=limit)
    child.start()
    child.join(20)
    assert child.exitcode == 0, child.exitcode

with single_threaded_blas():
    fork()
fork()  # the parent's thread is there, and idle
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are spawned here")
def test_a_forked_child_limits_blas_by_a_thread_of_its_own():
    # In a process of its own: other libraries' hooks in this one have their own ideas of a fork.
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=60)


def test_work_on_threads_is_in_order_and_lifts_the_limit_after_an_error():
    before = blas_threads()
    assert map_on_threads(lambda i: i * i, range(7), 3) == [i * i for i in range(7)]

    def broken(i):
        raise ValueError(str(i))

    for threads in (1, 2):
        with pytest.raises(ValueError, match="0"):
            map_on_threads(broken, range(3), threads)
    assert blas_threads() == before


def test_products_of_any_width_are_those_of_numpy():
    rng = np.random.default_rng(0)
    tile = rng.standard_normal((30, 20))
    for r in (1, 3, 8, 13):
        v, w = rng.standard_normal((30, r)), rng.standard_normal((20, r))
        np.testing.assert_allclose(projected(tile, v), tile.T @ v, atol=1e-13)
        np.testing.assert_allclose((tile @ padded_columns(w, tile))[:, :r], tile @ w, atol=1e-13)


def test_a_thread_has_all_cores_but_for_what_the_environment_or_its_caller_leaves(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(cores, "usable_cores", lambda: 8)
    assert available_threads() == 8
    with on_one_core():
        assert available_threads() == 1
    assert available_threads() == 8
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert available_threads() == 3
