"""Images/s from JPEG files to the store beside the bare forward pass of the same model on tensors that are there."""

import io
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

IMAGES, SMALL_IMAGES = 20_000, 96
DISTINCT, FILE_ROWS = 512, 2_000
SHARD_ROWS, SMALL_SHARD_ROWS = 4_096, 32
SECONDS = 4.0


def run(record: Any, name: str, device: str, small: bool) -> None:
    """ViT-B-32 in bf16 and the pictures' usual size; a rehearsal takes the compact model and small pictures."""
    precisions = ["bf16"] if small else ["bf16", "fp32"]
    with tempfile.TemporaryDirectory() as home:
        for size in (96,) if small else (256, 375):
            folder = Path(home) / f"pictures-{size}"
            folder.mkdir()
            _write_split(folder, SMALL_IMAGES if small else IMAGES, size)
            for precision in precisions if size != 375 else ["bf16"]:
                _measure(record, folder, device, small, precision, size)


def _write_split(folder: Path, rows: int, size: int) -> None:
    """Parquet files of JPEG files; a number is appended to each, so that no two rows are equal."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    distinct = [_jpeg(number, size) for number in range(min(rows, DISTINCT))]
    for start in range(0, rows, FILE_ROWS):
        numbers = range(start, min(rows, start + FILE_ROWS))
        images = [distinct[number % DISTINCT] + number.to_bytes(4, "big") for number in numbers]
        table = pa.table({"image": images, "target": np.arange(len(images), dtype=float)})
        pq.write_table(table, folder / f"{start:08d}.parquet", row_group_size=500, compression="none")


def _jpeg(number: int, size: int) -> bytes:
    """A smooth random picture: compresses like a photograph, some 10 to 40 kB at 375 pixels."""
    from PIL import Image

    random = np.random.default_rng(number)
    coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), dtype=np.uint8)).resize((size * 4 // 3, size))
    noisy = np.asarray(coarse, dtype=np.int16) + random.integers(-12, 13, (size, size * 4 // 3, 3), dtype=np.int16)
    stream = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(stream, "JPEG", quality=85)
    return stream.getvalue()


def _measure(record: Any, folder: Path, device: str, small: bool, precision: str, size: int) -> None:
    import torch

    from congruence.kernels.threads import usable_cores
    from congruence.tasks.data.settings import SplitSettings
    from congruence.tasks.data.split import open_split
    from congruence.tasks.encoders.loading import load_encoder
    from congruence.tasks.evaluate.pieces import embed_each
    from congruence.tasks.settings.sections import EncoderSettings
    from congruence.tasks.store.embeddings import EmbeddingStore

    settings: dict[str, Any] = {"precision": precision, "device": device}
    settings |= {"model": "compact", "batch_size": 16} if small else {"model": "ViT-B-32", "pretrained": "random"}
    encoder: Any = load_encoder(EncoderSettings.model_validate(settings))
    of, what = f"{precision}, {size} pixels", record.sampler.stage
    with what(f"{of}: batch size"):
        found = encoder.search_batch_size()
    encoder.use_batch_size(found.batch_size)
    shard_rows = SMALL_SHARD_ROWS if small else SHARD_ROWS
    split = open_split(SplitSettings(uri=str(folder), input="image", target="target", shard_rows=shard_rows))
    store = EmbeddingStore.open(str(folder.parent / f"store-{precision}-{size}"), split, encoder)
    raw = [read() for read, _ in zip(split.input_readers(split.shards[0]), range(64), strict=False)]
    rows = [encoder.preprocess(value) for value in raw]
    batch = torch.stack((rows * (-(-encoder.batch_size // len(rows))))[: encoder.batch_size]).to(encoder.device)
    with what(f"{of}: forward pass"):
        forward = _forward_rate(encoder, batch)
    cores = usable_cores()
    with what(f"{of}: decoding alone"), ThreadPoolExecutor(cores) as pool:
        started = time.perf_counter()
        decoded = sum(1 for _ in pool.map(encoder.preprocess, raw * (1 if small else 64)))
        decoding = decoded / (time.perf_counter() - started)
    with what(f"{of}: pipeline"):
        started = time.perf_counter()
        embed_each(split, split.shards, encoder, store, threads=cores)
        seconds = time.perf_counter() - started
    pipeline = int(store.valid().sum()) / seconds
    record.note(
        **{
            of: {
                "batch": encoder.batch_size,
                "search": str(found),
                "forward_images_per_s": round(forward, 1),
                "decoding_images_per_s": round(decoding, 1),
                "decode_threads": cores,
                "pipeline_images_per_s": round(pipeline, 1),
            }
        }
    )
    if device == "cuda" and precision == "fp32":
        record.note(**{f"{of}: forward images/s of two cores": round(_rate_of_cores(settings, batch), 1)})
    record.goal(f"{of}: pipeline over the forward pass", pipeline / forward, 0.9, at_least=True)
    record.goal(
        f"{of}: pipeline over the slower of forward pass and decoding",
        pipeline / min(forward, decoding),
        0.9,
        at_least=True,
    )
    record.goal(f"{of}: images/s", pipeline, 5000, at_least=True)


def _rate_of_cores(settings: dict[str, Any], batch: Any) -> float:
    """Images/s of the same model in single precision on two cores."""
    import torch

    from congruence.tasks.encoders.loading import load_encoder
    from congruence.tasks.settings.sections import EncoderSettings

    encoder: Any = load_encoder(EncoderSettings.model_validate(settings | {"precision": "fp32", "device": "cpu"}))
    threads, few = torch.get_num_threads(), batch[:16].float().cpu()
    torch.set_num_threads(2)
    try:
        return _forward_rate(encoder, few)
    finally:
        torch.set_num_threads(threads)


def _forward_rate(encoder: Any, batch: Any) -> float:
    """Images/s of forward passes in a row, waited for at their end."""
    import torch

    def wait() -> None:
        if batch.device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(2):
        encoder._embeddings(batch)
    wait()
    passes, started = 0, time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        encoder._embeddings(batch)
        passes += 1
        if passes % 8 == 0:
            wait()
    wait()
    return passes * len(batch) / (time.perf_counter() - started)
