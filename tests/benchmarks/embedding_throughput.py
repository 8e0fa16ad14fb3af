"""Embedding speed against the bare forward pass, and memory against the number of rows.

    python tests/benchmarks/embedding_throughput.py speed --images 5000 --model ViT-B-32 --pretrained random
    python tests/benchmarks/embedding_throughput.py memory --rows 5000 50000

``speed`` alternates the forward pass on tensors that are already in memory with the whole pipeline on JPEG files
(read, decode, resize, forward, write to the store), same model, batch and threads, and prints the ratio of the rates.
``memory`` embeds splits of growing size with the compact CLIP, each in a process of its own, and prints the peak.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from congruence.tasks.data.opening import open_split
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.embeddings.shard import embed_each
from congruence.tasks.embeddings.store import EmbeddingStore
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.settings import EncoderSettings

DISTINCT = 512


def jpeg(number: int, size: int) -> bytes:
    """A smooth random picture: compresses like a photograph, some 10 to 40 kB at 375 pixels."""
    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((size * 4 // 3, size))
    noisy = np.asarray(coarse, dtype=np.int16) + random.integers(-12, 13, (size, size * 4 // 3, 3), dtype=np.int16)
    stream = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def write_split(folder: Path, rows: int, size: int) -> None:
    """Parquet files of 2,000 images each; a number is appended to each JPEG so that no two rows are equal."""
    distinct = [jpeg(number, size) for number in range(min(rows, DISTINCT))]
    for start in range(0, rows, 2000):
        numbers = range(start, min(rows, start + 2000))
        images = [distinct[number % DISTINCT] + number.to_bytes(4, "big") for number in numbers]
        table = pa.table({"image": images, "target": np.arange(len(images), dtype=float)})
        pq.write_table(table, folder / f"{start:08d}.parquet", row_group_size=500, compression="none")


def split_of(folder: Path, shard_rows: int) -> Split:
    return open_split(SplitSettings(uri=str(folder), input="image", target="target", shard_rows=shard_rows))


def store_of(folder: Path, split: Split, encoder: Any) -> EmbeddingStore:
    return EmbeddingStore.open(
        str(folder),
        split=split,
        encoder_id=encoder.id,
        preprocessing_digest=encoder.preprocessing_digest,
        dimension=encoder.dimension,
    )


def speed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Forward-only and pipeline rates, shard by shard in turn."""
    torch.set_num_threads(arguments.threads)
    encoder: Any = load_encoder(
        EncoderSettings(model=arguments.model, pretrained=arguments.pretrained, batch_size=arguments.batch)
    )
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "split").mkdir()
        write_split(folder / "split", arguments.images, arguments.size)
        split = split_of(folder / "split", arguments.shard_rows)
        store = store_of(folder / "store", split, encoder)
        raw = [
            value for value, _ in zip(split.read_encoder_inputs(split.shards[0]), range(arguments.batch), strict=False)
        ]
        started = time.perf_counter()
        rows = [encoder.preprocess(value) for value in raw]
        decode = (time.perf_counter() - started) / len(rows)
        batch = torch.stack(rows).to(encoder.device)
        forward_rates, pipeline_rates, waiting = [], [], 0.0
        forward_cpu, pipeline_cpu = 0.0, 0.0
        with torch.inference_mode():
            encoder.forward(batch)
            for shard in split.shards:
                batches = -(-shard.rows // arguments.batch)
                started, used = time.perf_counter(), time.process_time()
                for _ in range(batches):
                    encoder.forward(batch).cpu()
                forward_rates.append(batches * len(batch) / (time.perf_counter() - started))
                forward_cpu += (time.process_time() - used) / (batches * len(batch))
                used = time.process_time()
                (report,) = embed_each(split, [shard], encoder, store, threads=arguments.decode_threads)
                pipeline_rates.append(shard.rows / report.seconds)
                pipeline_cpu += (time.process_time() - used) / shard.rows
                waiting += report.waiting
        ratios = [b / a for a, b in zip(forward_rates, pipeline_rates, strict=True)]
    return {
        "model": arguments.model,
        "device": str(encoder.device),
        "images": arguments.images,
        "batch": arguments.batch,
        "mean_jpeg_bytes": int(np.mean([len(value) for value in raw])),
        "decode_ms_per_image_one_thread": round(decode * 1e3, 2),
        "forward_images_per_s": round(statistics.median(forward_rates), 1),
        "pipeline_images_per_s": round(statistics.median(pipeline_rates), 1),
        "ratio_median": round(statistics.median(ratios), 3),
        "ratio_lowest": round(min(ratios), 3),
        "ratio_of_cpu_seconds": round(forward_cpu / pipeline_cpu, 3),
        "seconds_encoder_waited": round(waiting, 2),
    }


def memory(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Peak resident memory at each number of rows, in processes of their own."""
    results = []
    for rows in arguments.rows:
        command = [sys.executable, __file__, "peak", "--images", str(rows), "--size", "64"]
        results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return results


def peak(arguments: argparse.Namespace) -> dict[str, Any]:
    """Embed one split with the compact CLIP; the images are written by another process."""
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        (folder / "split").mkdir()
        command = [
            sys.executable,
            __file__,
            "write",
            "--images",
            str(arguments.images),
            "--folder",
            str(folder / "split"),
        ]
        subprocess.run(command, check=True)
        encoder = load_encoder(EncoderSettings())
        loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        split = split_of(folder / "split", 2048)
        store = store_of(folder / "store", split, encoder)
        for shard in split.shards:
            embed_each(split, [shard], encoder, store, threads=arguments.decode_threads)
        seconds = time.perf_counter() - started
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "rows": arguments.images,
        "peak_mib": highest // 1024,
        "after_loading_the_encoder_mib": loaded // 1024,
        "images_per_s": round(arguments.images / seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "memory", "peak", "write"])
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--size", type=int, default=375, help="height of the JPEGs in pixels")
    parser.add_argument("--model", default="ViT-B-32")
    parser.add_argument("--pretrained", default="random")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--shard-rows", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2, help="torch's threads")
    parser.add_argument("--decode-threads", type=int, default=2)
    parser.add_argument("--rows", type=int, nargs="+", default=[5000, 50000])
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "write":
        write_split(arguments.folder, arguments.images, 64)
        return
    result = {"speed": speed, "memory": memory, "peak": peak}[arguments.what](arguments)
    versions = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
    print(json.dumps(result if arguments.what == "peak" else {"result": result, **versions}, indent=None))


if __name__ == "__main__":
    main()
