"""Work on a cluster: pieces that end together, every worker with work from the first block on, failures named."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster, get_worker

from congruence.kernels.engine.blocks import BlockSums
from congruence.kernels.errors import CongruenceError
from congruence.tasks.data.settings import Shard
from congruence.tasks.evaluate.executors import DaskExecutor, Done, LocalExecutor, dask_executor, groups_of_shards
from congruence.tasks.runtime.errors import SplitChangedError
from congruence.tasks.settings.parts import ClusterSettings
from congruence.tasks.solving.pass_runner import PassesOnCluster, SolveProgress, side_by_side


class PeculiarError(Exception):
    """Cannot be sent between processes: its constructor wants more than its text."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def work(item: str) -> str:
    if item == "wrong":
        raise CongruenceError("this piece is wrong")
    if item == "unforeseen":
        raise ZeroDivisionError("nobody foresaw it")
    if item == "peculiar":
        raise PeculiarError("pecu", "liar")
    return item.upper()


def ended(executor: LocalExecutor) -> dict[str, Done[str, str]]:
    items = ["one", "two", "wrong", "unforeseen", "peculiar"]
    return {done.item: done for done in executor.map(work, items, name="work", fields=lambda item: {"version": item})}


@pytest.mark.timeout(100)
def test_both_executors_give_what_is_made_and_what_is_raised() -> None:
    here = ended(LocalExecutor())
    with dask_executor(ClusterSettings(kind="threads", workers=2), print) as executor:
        there = ended(executor)
    for found in (here, there):
        assert (found["one"].result(), found["two"].result()) == ("ONE", "TWO")
        assert found["wrong"].failure("m/1", "count") == "this piece is wrong"
        assert found["unforeseen"].failure("m/1", "count") == "ZeroDivisionError: nobody foresaw it"
        assert found["peculiar"].failure("m/1", "count") == "PeculiarError: peculiar"
        with pytest.raises(ZeroDivisionError):
            found["unforeseen"].result()
    assert "in work\n" in there["unforeseen"].error.__notes__[0]  # type: ignore[union-attr]


def test_a_piece_is_tried_again_unless_its_file_was_replaced(tmp_path: Path) -> None:
    def count(error: type[Exception]) -> int:
        seen = tmp_path / error.__name__
        seen.touch()

        def fail(_: str) -> None:
            seen.write_text(f"{seen.read_text()}x")
            raise error("it fails")

        (done,) = LocalExecutor().map(fail, ["one"], name="fail", retries=2)
        assert isinstance(done.error, error)
        return len(seen.read_text())

    assert (count(ValueError), count(SplitChangedError)) == (3, 1)
    (done,) = LocalExecutor().map(work, ["wrong"], name="work")
    assert done.failure("m/1", "count") == "this piece is wrong"
    with pytest.raises(OSError, match="the disk is full"):  # of no version
        Done("one", error=OSError("the disk is full")).failure("m/1", "count")


@pytest.mark.timeout(120)
def test_a_piece_that_kills_its_workers_is_named_and_the_others_are_done() -> None:
    def die(item: str) -> str:  # sent by value: workers do not know this file
        import os

        return item if item == "well" else os._exit(1)  # type: ignore[func-returns-value]

    dead: dict[str, str | None] = {}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        for done in DaskExecutor(client, print).map(die, ["deadly", "well"], name="check"):
            dead[done.item] = done.failure("m/1", "check it on a few rows")
    assert dead["well"] is None
    assert str(dead["deadly"]).startswith(
        "m/1: killed 2 workers, all that were to check it on a few rows; it needs more"
    )


def shards(rows: int, size: int = 2048) -> list[Shard]:
    return [Shard(i, start, min(size, rows - start), "") for i, start in enumerate(range(0, rows, size))]


@pytest.mark.parametrize(
    ("rows", "versions", "threads", "least", "most"),
    [
        (300_000, 2, 2, 16, 20),
        (300_000, 2, 1, 16, 20),
        (300_000, 2, 16, 90, 128),
        (20_000, 200, 2, 200, 200),
        (20_000, 4, 2, 12, 16),
        (20_000, 1, 2, 10, 10),
        (10**7, 2, 2, 560, 640),
        (10**7, 1, 64, 460, 512),
        (10**6, 8, 2, 200, 250),
        (1, 1, 2, 1, 1),
        (20_000, 1000, 2, 1000, 1000),
    ],
)
def test_tasks_of_a_stage(rows, versions, threads, least, most):
    given = shards(rows)
    groups = groups_of_shards(given, threads, versions)
    assert list(chain(*groups)) == given
    assert least <= len(groups) * versions <= most


def test_no_shards_are_no_task():
    assert groups_of_shards([], 2) == []


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
