"""Pieces of an evaluation carried out here or by workers of Dask: what they give, raise, log and die of."""

from __future__ import annotations

from pathlib import Path

import dask
import pytest
from distributed import Client, LocalCluster

from congruence.kernels.errors import CongruenceError
from congruence.tasks.evaluate.executors import DaskExecutor, Done, LocalExecutor, dask_executor
from congruence.tasks.runtime.errors import SplitChangedError
from congruence.tasks.settings.computing import ClusterSettings


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
