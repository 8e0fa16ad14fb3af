"""Embedding tabular features: rows per second, and what a shard costs beside reading and encoding.

    python tests/benchmarks/embedding_features.py --rows 200000

Opens a Parquet file of 64 float32 features in row groups of 2,048, embeds it in shards of 2,048 as an Identity encoder
does, and looks at the finished store again. CPU seconds are of this process and all of its threads.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.data.opening import open_split
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.embeddings.shard import embed_each
from congruence.tasks.embeddings.worker import open_store
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.settings.evaluation import StoreSettings

FEATURES, SHARD_ROWS = 64, 2048


@contextmanager
def measured(seconds: dict[str, dict[str, float]], name: str) -> Iterator[None]:
    """Adds the wall and CPU seconds of the body under ``name``."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    seconds[name] = {
        "wall": round(time.perf_counter() - wall, 3),
        "cpu": round(time.process_time() - cpu, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    names = [f"f{number}" for number in range(FEATURES)]
    seconds: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        values = np.random.default_rng(0).normal(size=(rows, FEATURES)).astype(np.float32)
        table = pa.table({name: values[:, at] for at, name in enumerate(names)} | {"y": np.zeros(rows)})
        pq.write_table(table, folder / "rows.parquet", row_group_size=SHARD_ROWS)
        del values, table
        settings = SplitSettings(
            uri=str(folder / "rows.parquet"), input=names, input_kind="features", target="y", shard_rows=SHARD_ROWS
        )
        with measured(seconds, "index"):
            split = open_split(settings)
        encoder = load_encoder(EncoderSettings(kind="identity", dimension=FEATURES, standardise=False))
        store = open_store(str(folder / "store"), StoreSettings(), split, encoder)
        with measured(seconds, "embed"):
            for shard in split.shards:
                embed_each(split, [shard], encoder, store, threads=1)
        with measured(seconds, "first look (reads all markers)"):
            assert not store.pending()
        with measured(seconds, "second look"):
            assert not open_store(str(folder / "store"), StoreSettings(), split, encoder).pending()
        with measured(seconds, "read all"):
            embeddings = store.read()
        written = [(shard, embeddings[shard.start : shard.stop]) for shard in split.shards]
        again = open_store(str(folder / "again"), StoreSettings(), split, encoder)
        with measured(seconds, "write alone"):
            for shard, part in written:
                again.write(shard, part, {})
    shards = len(written)
    print(json.dumps(seconds, indent=1))
    print(f"{rows / seconds['embed']['wall']:,.0f} rows/s")
    print(f"ms of CPU a shard: {1e3 * seconds['embed']['cpu'] / shards:.1f}")
    print(f"of which write alone: {1e3 * seconds['write alone']['cpu'] / shards:.1f}")


if __name__ == "__main__":
    main()
