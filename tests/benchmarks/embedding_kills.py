"""SIGKILL what embeds at random moments, again and again, and compare the store with an undisturbed one.

    python tests/benchmarks/embedding_kills.py --of process|worker|flow|scheduler --kills 50

``process`` is the loop over shards alone, without Prefect and Dask; the others run the flow on a real Prefect server
and Dask cluster. After each kill: every shard that was done is still done and whole, nothing half-written is read.
When a store is complete it must be byte for byte the undisturbed one, with only unfinished shards embedded again.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from embedding_kills_on_dask import exercise, files
from PIL import Image

from congruence.tasks.data.opening import open_split
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.embeddings.shard import embed_each

SCRIPT = Path(__file__).parents[1] / "tasks" / "embedding" / "embed_process.py"


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("embed_process", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_images(path: Path, rows: int) -> None:
    folder = path.parent / "images"
    folder.mkdir()
    random_numbers = np.random.default_rng(0)
    for row in range(rows):
        Image.fromarray(random_numbers.integers(0, 256, (16, 16), dtype=np.uint8)).save(folder / f"{row}.png")
    names = [f"images/{row}.png" for row in range(rows)]
    pq.write_table(pa.table({"image": names, "target": np.arange(float(rows))}), path)


def embed(split: Split, uri: str, log: Path, pause: float) -> None:
    """Embed what is missing; each shard that is embedded adds a line to ``log`` before and after."""
    script = load_script()
    store = script.open_store(uri, split)
    encoder = script.PixelEncoder(pause)
    for shard in split.shards:
        embedded = embed_each(split, [shard], encoder, store, threads=2)[0].embedded
        if embedded:
            with log.open("a") as stream:
                stream.write(f"{shard.index}\n")
    assert not store.pending()


def kill_processes(kills: int, folder: Path, table: Path, seed: int) -> None:
    moments, script = random.Random(seed), load_script()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["congruence.tasks.embeddings.shard", "congruence.tasks.data", "zarr"])
    split = open_split(SplitSettings(uri=str(table), input="image", target="target", shard_rows=20))
    embed(split, str(folder / "undisturbed"), folder / "undisturbed.log", 0.0)
    expected = files(folder / "undisturbed")
    killed = completed = during_work = 0
    while killed < kills:
        uri, log = folder / f"store-{completed}", folder / f"store-{completed}.log"
        done: set[int] = set()
        while True:
            process = context.Process(target=embed, args=(split, str(uri), log, 0.01))
            process.start()
            process.join(moments.uniform(0.05, 1.5))
            if not process.is_alive():
                assert process.exitcode == 0
                break
            process.kill()
            process.join()
            killed += 1
            store = script.open_store(str(uri), split)
            now = {shard.index for shard in split.shards} - {shard.index for shard in store.pending()}
            assert done <= now, "a finished shard was lost"
            during_work += 0 < len(now) < len(split.shards)
            done = now
        again = log.read_text().split()
        assert files(uri) == expected, "the store differs from the undisturbed one"
        # A shard may be done when its process dies before it writes the log, never the other way round.
        assert len(again) == len(set(again)), "a finished shard was embedded again"
        completed += 1
    print(f"{killed} kills, {during_work} of them with the store partly done; {completed} stores completed, all equal")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=["process", "worker", "flow", "scheduler"], default="process")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rows", type=int, default=400, help="in shards of 20, with Dask of 40")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    arguments = parser.parse_args()
    print(f"killing the {arguments.of}, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        folder = Path(home)
        table = folder / "split.parquet"
        write_images(table, arguments.rows)
        if arguments.of == "process":
            kill_processes(arguments.kills, folder, table, arguments.seed)
        else:
            exercise(arguments.of, arguments.kills, folder, table, arguments.seed)


if __name__ == "__main__":
    started = time.perf_counter()
    main()
    print(f"{time.perf_counter() - started:.0f} s, Python {sys.version.split()[0]}")
