"""Every worker has work from the first block or call on, and steps between passes hold up no one."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError
from types import SimpleNamespace

import numpy as np
import pytest
from distributed import Client, LocalCluster, get_worker

from congruence.kernels.engine.blocks import BlockSums
from congruence.tasks.solving.pass_runner import PassesOnCluster, SolveProgress, side_by_side

BLOCKS = 12


@pytest.fixture(scope="module")
def two() -> Iterator[Client]:
    """Two workers of one thread each."""
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None)
    with cluster, Client(cluster) as client:
        yield client


@pytest.fixture
def heard() -> list[int]:
    """Percent of a solve that were said to be done."""
    return []


@pytest.fixture
def passes(two: Client, heard: list[int]) -> PassesOnCluster:
    return PassesOnCluster(two, SimpleNamespace(sizes=[1] * BLOCKS), SolveProgress(heard.append, 1, 1))


def _done(rows, seconds, told):
    time.sleep(seconds)
    sums = BlockSums()
    sums.keep("by", [(rows.block, get_worker().address)])
    sums.add("one", 1.0)
    return {"": sums}


def _kept(found) -> list[tuple[int, str]]:
    return [each for part in found[""].kept["by"] for each in part]


def test_workers_share_a_pass_from_its_first_block_on(passes):
    passes("quick", _done, 0.0, None)  # by which a scheduler would expect the next ones to be as quick
    told = np.zeros(2**22)  # which one worker holds at the beginning
    found = passes("slow", _done, 0.05, told)
    assert [block for block, _ in _kept(found)] == list(range(BLOCKS))
    assert found[""].added["one"] == BLOCKS
    by_worker = Counter(worker for _, worker in _kept(found))
    assert max(by_worker.values()) <= BLOCKS // 2 + 1
    assert len({worker for _, worker in _kept(found)[:2]}) == 2


def _fails(rows):
    if rows.block == 3:
        raise ValueError("block 3")
    return {"": BlockSums()}


def test_what_goes_wrong_in_a_block_is_raised(passes):
    with pytest.raises(ValueError, match="block 3"):
        passes("failing", _fails)


def test_passes_side_by_side_fill_each_others_pauses(passes):
    begun, ended = threading.Event(), threading.Event()

    def beside(run):
        begun.set()
        found = run("beside", _done, 0.01, None)
        ended.set()
        return len(_kept(found))

    with side_by_side(passes, beside) as made:
        assert begun.wait(5.0)
        assert len(_kept(passes("inside", _done, 0.01, None))) == BLOCKS
        assert ended.wait(5.0)  # while this thread still has something to do
    assert made.result() == BLOCKS
    for name in ("inside", "beside"):  # its own alone, though they took turns
        assert 0.01 * BLOCKS / 2 <= passes.seconds[name] <= 0.08 * BLOCKS
    assert set(passes("again", _done, 0.0, None)) == {""}


def test_what_goes_wrong_inside_ends_the_passes_beside(passes):
    done = []

    def beside(run):
        for number in range(1000):
            run("beside", _done, 0.0, None)
            done.append(number)

    with pytest.raises(ValueError, match="inside"), side_by_side(passes, beside) as made:
        raise ValueError("inside")
    with pytest.raises(CancelledError):
        made.result()
    assert len(done) < 1000
    passes("the others", _done, 0.0, None)  # go on
