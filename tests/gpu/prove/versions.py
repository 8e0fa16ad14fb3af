"""Which packages, driver and cards are here, and what the card does at best."""

import importlib
from typing import Any

PARTS = {
    "numpy": "everything",
    "scipy": "everything",
    "cupy": "solving on a card",
    "torch": "embedding",
    "open_clip": "embedding",
    "zarr": "the store of embeddings",
    "distributed": "a cluster",
    "dask_cuda": "a cluster of cards",
    "rmm": "a cluster of cards",
    "prefect": "an evaluation",
    "mlflow": "an evaluation",
    "pytest": "the tests",
}


def run(record: Any, name: str, device: str, small: bool) -> None:
    """Note what is missing for what."""
    missing = {}
    for package, purpose in PARTS.items():
        try:
            _import(package)
        except Exception as error:  # a package that is there and broken is as good as missing, and says why
            missing[package] = f"{purpose}: {type(error).__name__}: {str(error)[:300]}"
    record.note(missing=missing)
    if device == "cuda" and "cupy" in missing:
        raise RuntimeError(f"no usable CuPy: {missing['cupy']}")
    if device == "cuda":
        import cupy

        record.note(device=str(cupy.cuda.runtime.getDeviceProperties(0)["name"]), memory=cupy.cuda.Device().mem_info)
        ceilings(record)


def _import(package: str) -> None:
    if package == "open_clip":
        importlib.import_module("congruence.tasks.encoders.open_clip_import")
    else:
        importlib.import_module(package)


def ceilings(record: Any) -> None:
    """What the card does at best: a large copy and a large product in single precision, medians of events."""
    import cupy
    from cupyx.profiler import benchmark

    source = cupy.ones(2**30, dtype=cupy.float32)
    target = cupy.empty_like(source)
    copy = benchmark(cupy.copyto, (target, source), n_warmup=2, n_repeat=9).gpu_times
    del source, target
    rng = cupy.random.default_rng(0)
    a, b = (rng.standard_normal((8192, 8192), dtype=cupy.float32) for _ in range(2))
    product = benchmark(cupy.matmul, (a, b), n_warmup=2, n_repeat=9).gpu_times
    record.note(
        copy_gb_per_s=round(2 * 4 * 2**30 / float(cupy.median(cupy.asarray(copy)).get()) / 1e9),
        fp32_product_tflops=round(2 * 8192**3 / float(cupy.median(cupy.asarray(product)).get()) / 1e12, 1),
    )
