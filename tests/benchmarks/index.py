"""Indexing a Parquet split of 64 features, and reading its shards: seconds, and the memory of the process.

python tests/benchmarks/index.py write FOLDER --rows 10000000 --files 10
python tests/benchmarks/index.py open FOLDER --index FOLDER     # made the first time, found the second
python tests/benchmarks/index.py read FOLDER --index FOLDER --shards 512
"""

from __future__ import annotations

import argparse
import pickle
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from congruence.tasks.data.opening import open_split
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split

FEATURES = [f"x{column}" for column in range(64)]
ROW_GROUP = 2**20


def write(folder: Path, rows: int, files: int) -> None:
    """Float32 features and a float64 target, in row groups of 1,048,576 rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    schema = pa.schema([*((name, pa.float32()) for name in FEATURES), ("y", pa.float64())])
    for file in range(files):
        with pq.ParquetWriter(folder / f"{file:03d}.parquet", schema, use_dictionary=False) as writer:
            for start in range(0, rows // files, ROW_GROUP):
                x = rng.standard_normal((min(ROW_GROUP, rows // files - start), len(FEATURES)), dtype=np.float32)
                columns = {name: x[:, column] for column, name in enumerate(FEATURES)}
                y = x[:, 0] + rng.standard_normal(len(x))
                writer.write_table(pa.table(columns | {"y": y}, schema), row_group_size=ROW_GROUP)


def opened(folder: Path, index: Path | None) -> Split:
    """The split, indexed in ``index``."""
    settings = SplitSettings(uri=str(folder), input=FEATURES, input_kind="features", target="y")
    with timed("open"):
        split = open_split(settings, index)
    print(f"{split.rows:,} rows, {len(split.shards):,} shards, pickled {len(pickle.dumps(split)):,} bytes")
    return split


def read(split: Split, shards: int) -> None:
    """The targets of all shards, and the features of some: by the shard, then row by row."""
    with timed("all targets"):
        split.targets_of(split.shards)
    with timed(f"features of {shards} shards"):
        for shard in split.shards[:shards]:
            split.features(shard)
    with timed(f"readers of {shards} shards"):
        for shard in split.shards[:shards]:
            for reader in split.input_readers(shard):
                reader()


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print wall and CPU seconds, and the most memory that this process has had."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what}: {wall:.2f} s, {cpu:.2f} CPU s, peak {peak:.0f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["write", "open", "read"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--rows", type=int, default=ROW_GROUP)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--shards", type=int, default=512)
    given = parser.parse_args()
    if given.action == "write":
        write(given.folder, given.rows, given.files)
    elif given.action == "open":
        opened(given.folder, given.index)
    else:
        read(opened(given.folder, given.index), given.shards)
