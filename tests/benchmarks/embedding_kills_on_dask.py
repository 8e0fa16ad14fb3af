"""A Dask worker, the flow process or the scheduler is killed while the flow embeds: real Prefect server, real Dask."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from prefect import flow
from prefect_dask.task_runners import DaskTaskRunner

sys.path.insert(0, str(Path(__file__).parents[1]))
from loopback import PrefectServer, Process, free_port

from congruence.flows.cli.environment import embed_servers
from congruence.flows.evaluation.splits import open_planned
from congruence.flows.evaluation.stages import embed as stages
from congruence.flows.evaluation.stages.addresses import rows_of
from congruence.kernels.errors import CongruenceError
from congruence.tasks.dask.clusters import dask_client, scheduler_address
from congruence.tasks.data.opening import open_split
from congruence.tasks.embeddings.store import EmbeddingStore
from congruence.tasks.embeddings.worker import open_store
from congruence.tasks.encoders.loading import warm_encoder
from congruence.tasks.models.evaluated_rows import EvaluatedRows
from congruence.tasks.settings.evaluation import EvaluationSettings

ENCODER_FOLDER = Path(__file__).parents[1] / "tasks" / "embedding"
WORKERS = 2
SHARD_ROWS = 40
LIMIT_SECONDS = 180
STOPPED = 2
Moments = random.Random


class DaskCluster:
    """``dask scheduler`` and ``dask worker`` as processes, each worker below a nanny that starts it again."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.address = f"tcp://127.0.0.1:{port}"
        dask = [sys.executable, "-m", "dask"]
        quiet = ["--host", "127.0.0.1", "--no-dashboard"]
        self.scheduler = Process([*dask, "scheduler", "--port", str(port), *quiet], folder / "scheduler.log")
        one = [*dask, "worker", self.address, *quiet, "--nthreads", "1", "--memory-limit", "0"]
        one += ["--local-directory", str(folder)]
        self.nannies = [Process(one, folder / f"worker-{number}.log") for number in range(WORKERS)]

    def start(self) -> None:
        for process in (self.scheduler, *self.nannies):
            if not process.alive:
                process.start()

    def stop(self) -> None:
        for process in (*self.nannies, self.scheduler):
            if process.running is not None:
                process.stop(9)

    def workers(self) -> list[psutil.Process]:
        return [worker for nanny in self.nannies if nanny.running for worker in started_workers(nanny.running.pid)]


def started_workers(parent: int) -> list[psutil.Process]:
    """Worker processes below ``parent``; distributed starts them with multiprocessing's spawn."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        children = psutil.Process(parent).children()
        found.extend(child for child in children if any("spawn_main" in word for word in child.cmdline()))
    return found


def embed_in_flow(content: dict[str, Any], outcome: Path) -> None:
    """What ``congruence evaluate`` does with a split before it measures; in a process of its own."""
    settings = EvaluationSettings.model_validate(content)

    def embed() -> None:
        rows = rows_of(settings, open_planned(settings.splits[0], settings))
        with dask_client(settings.cluster) as client:
            runner: Any = DaskTaskRunner(address=scheduler_address(client))
            only_embed.with_options(task_runner=runner)(settings, rows)

    try:
        embed()
    except CongruenceError as error:
        outcome.write_text(f"{type(error).__name__}: {error}")
        sys.stdout.flush()
        os._exit(STOPPED)


@flow(name="embed", validate_parameters=False)
def only_embed(settings: EvaluationSettings, rows: EvaluatedRows) -> None:
    """The part of an evaluation that embeds."""
    stages.embed(settings, rows)


@dataclass
class Tally:
    kills: int = 0
    during_work: int = 0
    leftovers: int = 0
    seconds_to_end: list[float] = field(default_factory=list)
    seconds_to_finish: list[float] = field(default_factory=list)
    messages: set[str] = field(default_factory=set)

    def show(self) -> None:
        print(f"  {self}", flush=True)

    def __str__(self) -> str:
        ended = f"; the flow ended by itself within {max(self.seconds_to_end):.1f} s" if self.seconds_to_end else ""
        return (
            f"{self.kills} kills, {self.during_work} of them with the store partly done, {self.leftovers} left a "
            f"half-written file{ended}; longest run that finished {max(self.seconds_to_finish, default=0):.1f} s"
        )


class Exercise:
    """One split, its undisturbed store, and the servers that outlive the kills."""

    def __init__(self, folder: Path, split: Path, seed: int) -> None:
        self.folder, self.moments = folder, Moments(seed)
        # For the workers, and for the process that forks the flows: it imports once what all of them need.
        here = [str(Path(__file__).parent), str(ENCODER_FOLDER), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(here)
        sys.path.insert(0, str(ENCODER_FOLDER))
        embed_servers(folder)
        self.prefect, self.cluster = PrefectServer(folder), DaskCluster(folder)
        os.environ["PREFECT_API_URL"] = self.prefect.api
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["embedding_kills_on_dask", "zarr", "PIL.Image"])
        self.split_content = {"name": "images", "uri": str(split), "input": "image", "target": "target"}
        self.stores = 0

    def __enter__(self) -> Exercise:
        self.prefect.start()
        self.cluster.start()
        undisturbed, _ = self.new_store()
        self.finish(undisturbed)  # and warms the workers up
        self.expected = files(undisturbed)
        self.rows = self.reader(undisturbed).read()
        again, _ = self.new_store()
        self.seconds = self.finish(again)
        self.require_equal(again)
        print(f"an undisturbed run takes {self.seconds:.1f} s", flush=True)
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.stop()
        if self.prefect.running is not None:
            self.prefect.stop(9)

    def content(self, store: Path, cluster: dict[str, Any] | None = None) -> dict[str, Any]:
        return {
            "splits": [self.split_content | {"shard_rows": SHARD_ROWS}],
            "encoder": {"kind": "custom", "path": "embed_process:PixelEncoder", "options": {"pause": 0.1}},
            "cluster": cluster or {"kind": "address", "address": self.cluster.address},
            "store": {"uri": str(store)},
            "home": str(self.folder),
        }

    def reader(self, store: Path) -> EmbeddingStore:
        settings = EvaluationSettings.model_validate(self.content(store))
        split = open_split(settings.splits[0])
        encoder = warm_encoder(settings.encoder)
        return open_store(str(store), settings.store, split, encoder)

    def new_store(self) -> tuple[Path, EmbeddingStore]:
        """A store and a reader of it, opened first: opening sweeps, which is the flow's own business."""
        self.stores += 1
        path = self.folder / f"store-{self.stores}"
        return path, self.reader(path)

    def start(self, store: Path, cluster: dict[str, Any] | None = None) -> multiprocessing.process.BaseProcess:
        process = self.context.Process(
            target=embed_in_flow, args=(self.content(store, cluster), self.outcome(store)), name=store.name
        )
        process.start()
        return process

    def outcome(self, store: Path) -> Path:
        return store.with_suffix(".outcome")

    def finish(self, store: Path, cluster: dict[str, Any] | None = None) -> float:
        """Run the flow on ``store`` to its end: finished shards stay as they are, the store equals the undisturbed."""
        before, started = markers(store), time.perf_counter()
        self.wait(self.start(store, cluster), store, 0)
        self.require_untouched(store, before)
        return time.perf_counter() - started

    def wait(self, process: multiprocessing.process.BaseProcess, store: Path, status: int) -> None:
        process.join(LIMIT_SECONDS)
        if process.is_alive():
            process.kill()
            raise AssertionError(f"the flow on {store.name} hangs")
        said = self.outcome(store).read_text() if self.outcome(store).exists() else "(nothing)"
        assert process.exitcode == status, f"exit status {process.exitcode} instead of {status}; it said: {said}"

    def require_untouched(self, store: Path, before: dict[str, int]) -> None:
        after = markers(store)
        assert {name: after.get(name) for name in before} == before, "a finished shard was embedded again"

    def require_equal(self, store: Path) -> None:
        found = files(store)
        assert found.keys() == self.expected.keys(), sorted(found.keys() ^ self.expected.keys())
        assert found == self.expected, "the store differs from the undisturbed one"
        shutil.rmtree(store)

    def look(self, store: Path, reader: EmbeddingStore, tally: Tally) -> dict[str, int]:
        """After a kill: what counts as done is whole and right, and nothing else can be read."""
        before = markers(store)
        pending = {shard.index for shard in reader.pending()}
        for shard in reader._shards:
            if shard.index not in pending:
                rows = slice(shard.start, shard.stop)
                np.testing.assert_array_equal(reader.read(rows), self.rows[rows])
        tally.kills += 1
        tally.during_work += 0 < len(pending) < len(reader._shards)
        tally.leftovers += any((store / ".incoming").glob("*"))
        return before

    def moment(self) -> float:
        return self.moments.uniform(0, self.seconds)

    def kill_flows(self, kills: int, tally: Tally) -> None:
        while tally.kills < kills:
            store, reader = self.new_store()
            process = self.start(store)
            process.join(self.moment())
            if not process.is_alive():
                continue
            process.kill()
            process.join()
            before = self.look(store, reader, tally)
            tally.seconds_to_finish.append(self.finish(store))
            self.require_untouched(store, before)
            self.require_equal(store)
            tally.show()

    def kill_schedulers(self, kills: int, tally: Tally) -> None:
        while tally.kills < kills:
            store, reader = self.new_store()
            process = self.start(store)
            process.join(self.moment())
            if not process.is_alive():
                continue
            self.cluster.scheduler.stop(9)
            killed = time.perf_counter()
            process.join(LIMIT_SECONDS)
            if process.exitcode == 0:  # everything was embedded before the scheduler was missed
                assert not reader.pending()
            else:
                self.wait(process, store, STOPPED)
                tally.messages.add(self.outcome(store).read_text())
            tally.seconds_to_end.append(time.perf_counter() - killed)
            before = self.look(store, reader, tally)
            self.cluster.stop()  # a worker gives its scheduler a minute to come back before it ends
            self.cluster.start()
            tally.seconds_to_finish.append(self.finish(store))
            self.require_untouched(store, before)
            self.require_equal(store)
            tally.show()

    def kill_workers(self, kills: int, tally: Tally) -> None:
        """Every third run has a cluster of its own, in the flow's process; the others share the outside one."""
        run = 0
        while tally.kills < kills:
            run += 1
            own = {"kind": "local", "workers": WORKERS} if run % 3 == 0 else None
            store, reader = self.new_store()
            started = time.perf_counter()
            process = self.start(store, own)
            seen: dict[str, int] = {}
            for _ in range(self.moments.randint(2, 5)):
                process.join(self.moment() / 2 + 8 * (own is not None))  # a cluster of its own starts first
                workers = started_workers(process.pid or 0) if own else self.cluster.workers()
                if not process.is_alive():
                    break
                if workers:
                    victim = self.moments.choice(workers)
                    with contextlib.suppress(psutil.NoSuchProcess):
                        victim.kill()
                    seen |= self.look(store, reader, tally)
            process.join(LIMIT_SECONDS)
            if process.exitcode == STOPPED:  # the cluster lost a worker while it started, and the flow says so
                tally.messages.add(self.outcome(store).read_text())
                self.finish(store)
            else:
                self.wait(process, store, 0)
            tally.seconds_to_finish.append(time.perf_counter() - started)
            self.cluster.start()  # a nanny whose worker dies before it is ready ends
            self.require_untouched(store, seen)
            self.require_equal(store)
            tally.show()


def markers(store: Path) -> dict[str, int]:
    """When the marker of each finished shard was written."""
    return {str(path): path.stat().st_mtime_ns for path in store.rglob("done/*.json")}


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def exercise(of: str, kills: int, folder: Path, split: Path, seed: int) -> None:
    tally = Tally()
    with Exercise(folder, split, seed) as stage:
        ways: dict[str, Callable[[int, Tally], None]] = {
            "worker": stage.kill_workers,
            "flow": stage.kill_flows,
            "scheduler": stage.kill_schedulers,
        }
        try:
            ways[of](kills, tally)
        finally:
            print(f"{of}: {tally}")
            for message in sorted(tally.messages):
                print(f"  the flow said: {json.dumps(message)}")
