"""A store travels as a small address, is opened once per process, and knows what is finished by few requests."""

from __future__ import annotations

import json
import pickle
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster

from congruence.tasks.data.split import Shard
from congruence.tasks.embeddings.addresses import StoreAddress
from congruence.tasks.embeddings.objects import ObjectStore
from congruence.tasks.embeddings.store import EmbeddingStore, StoreError, open_store_cached
from congruence.tasks.runtime.files import sealed

SHARDS, DIMENSION = 5000, 3


class Plan:
    """Many shards of few rows; ``size`` cuts the same rows otherwise."""

    digest = "f" * 32

    def __init__(self, shards: int = SHARDS, size: int = 2) -> None:
        self.shards = [Shard(i, size * i, size, f"{size * 10**9 + i:032x}") for i in range(shards)]


def opened(uri: str, plan: Plan, **options: Any) -> EmbeddingStore:
    return EmbeddingStore.open(
        uri, split=plan, encoder_id="e", preprocessing_digest="p", dimension=DIMENSION, **options
    )


def rows(shard: Shard) -> np.ndarray:
    return np.random.default_rng(shard.start).normal(size=(shard.rows, DIMENSION)).astype(np.float32)


def write(store: EmbeddingStore, shard: Shard, invalid: bool = False) -> None:
    store.write(shard, rows(shard), {0: f"bad {shard.index % 2}"} if invalid else {})


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often objects are asked for, and folders listed."""
    counted: Counter[str] = Counter()
    for name in ("get", "objects", "size", "put"):
        original = getattr(ObjectStore, name)

        def count(self: Any, *args: Any, name: str = name, original: Any = original, **options: Any) -> Any:
            counted[name] += 1
            return original(self, *args, **options)

        monkeypatch.setattr(ObjectStore, name, count)
    return counted


def test_one_listing_tells_what_is_pending_and_each_marker_is_read_once(tmp_path: Path, requests: Counter[str]) -> None:
    """5,000 markers, copied from a real one; data are not looked at, and damage shows when they are read."""
    plan = Plan()
    store = opened(str(tmp_path), plan)
    write(store, plan.shards[0])
    done = tmp_path / store.encoder_key / "done"
    marker = json.loads((done / f"{plan.shards[0].digest}.json").read_text())
    for shard in plan.shards[1:]:
        described = {name: value for name, value in marker.items() if name != "checksum"}
        described |= {"shard_digest": shard.digest}
        (done / f"{shard.digest}.json").write_bytes(sealed(described))
    (done / f"{plan.shards[7].digest}.json").unlink()
    (done / f"{plan.shards[8].digest}.json").write_bytes(b"")
    requests.clear()
    assert store.pending() == plan.shards[7:9]
    assert requests == {"objects": 1}  # the markers' folder

    for shard in plan.shards[7:9]:
        write(store, shard)
    damaged = done / f"{plan.shards[9].digest}.json"
    damaged.write_bytes(damaged.read_bytes()[:-2])
    requests.clear()
    assert store.pending() == [plan.shards[9]]
    assert requests["put"] == 0
    write(store, plan.shards[9])
    assert store.pending() == []

    again = opened(str(tmp_path), plan)
    requests.clear()
    assert again.pending() == []
    assert again.valid().all()
    assert again.reasons() == {}
    assert requests == {"get": SHARDS, "objects": 1}
    with pytest.raises(StoreError, match=r"shard 1 \(rows 2 to 4\) lacks its data; rerun"):
        again.read(slice(0, 8))
    assert opened(str(tmp_path), plan).pending() == [plan.shards[1]]


def test_one_split_cut_in_two_ways_is_two_plans(tmp_path: Path) -> None:
    stores = [opened(str(tmp_path), Plan(shards, size)) for shards, size in ((6, 2), (4, 3))]
    for store, plan in zip(stores, (Plan(6, 2), Plan(4, 3)), strict=True):
        for shard in plan.shards:
            write(store, shard)
        assert store.pending() == []
    for store, plan in zip(stores, (Plan(6, 2), Plan(4, 3)), strict=True):
        arrived = EmbeddingStore(store.address, plan.shards)
        np.testing.assert_array_equal(arrived.read(), np.concatenate([rows(shard) for shard in plan.shards]))


def test_damage_is_seen_by_whoever_shares_the_shard(tmp_path: Path) -> None:
    short, long = opened(str(tmp_path), Plan(3)), opened(str(tmp_path), Plan(4))
    for shard in Plan(4).shards:
        write(long, shard)
    assert short.pending() == long.pending() == []
    (data,) = tmp_path.rglob(f"{Plan(3).shards[1].digest}-*/0.0")
    data.write_bytes(data.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"shard 1 .* is damaged"):
        long.read()
    for count in (3, 4):
        assert opened(str(tmp_path), Plan(count)).pending() == [Plan(4).shards[1]]
    write(long, Plan(4).shards[1])
    for reader in (short, long):
        assert reader.pending() == []
        assert len(reader.read()) == reader.rows


def test_an_address_is_small_and_opened_once_for_a_split(tmp_path: Path) -> None:
    plan = Plan()
    store = opened(str(tmp_path), plan, storage_options={"auto_mkdir": True})
    write(store, plan.shards[0])
    data = pickle.dumps(store.address)
    assert len(data) < 1000
    assert "auto_mkdir" not in repr(store.address)
    address: StoreAddress = pickle.loads(data)
    arrived = open_store_cached(address, plan)
    assert arrived is open_store_cached(store.address, Plan())
    assert arrived is not open_store_cached(address, Plan(4, 3))
    np.testing.assert_array_equal(arrived.read(slice(0, 2)), rows(plan.shards[0]))
    assert arrived.rows == SHARDS * 2
    assert address.options == {"auto_mkdir": True}


@pytest.fixture
def client() -> Iterator[Client]:
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0")
    with cluster, Client(cluster) as client:
        yield client


def test_workers_open_the_store_by_its_address_and_no_options_stay_behind(tmp_path: Path, client: Client) -> None:
    plan = Plan(6)
    shards = plan.shards

    def read_there(address: StoreAddress, start: int) -> tuple[int, np.ndarray]:
        from types import SimpleNamespace

        from congruence.tasks.embeddings.store import open_store_cached as opened_there

        split = SimpleNamespace(shards=shards, digest="f" * 32)
        return id(opened_there(address, split)), opened_there(address, split).read(slice(start, start + 2))

    store = opened(f"file://{tmp_path}", plan, storage_options={"auto_mkdir": True})
    for shard in plan.shards:
        write(store, shard)
    futures = client.map(read_there, [store.address] * 6, range(0, 12, 2), pure=False)
    found = client.gather(futures)
    np.testing.assert_array_equal(np.concatenate([part for _, part in found]), store.read())
    assert len({opened_as for opened_as, _ in found}) <= 2
    del futures

    def kept(dask_scheduler: Any) -> tuple[list[str], list[str]]:
        plugins = [name for name in dask_scheduler.worker_plugins if "congruence" in name]
        return plugins, [str(key) for key in dask_scheduler.tasks if "read_there" in str(key)]

    deadline = time.monotonic() + 10.0
    while client.run_on_scheduler(kept) != ([], []) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client.run_on_scheduler(kept) == ([], [])
