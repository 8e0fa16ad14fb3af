"""The table of worked examples in CAPACITY.md, from measured costs and stated assumptions: python infra/capacity.py"""

from __future__ import annotations

# Measured: seconds of one core for one row, or one row of one version, by tests/benchmarks/straight_way.md.
INDEX = 4e-6  # 35 to 42 s of CPU for 10,000,000 rows
EMBED_FEATURES = 6e-6  # 30 s on 2 cores for 10,000,000 rows
EMBED_IMAGE_ON_CORES = 2 / 13.9  # ViT-B-32, 13.9 images/s on 2 cores
DECODE = 12e-3  # a JPEG of 341 x 256 pixels, by 16 threads of a worker: 1,350 a second
PREDICT = 2.7e-6  # 27 s on 2 cores for 10,000,000 rows of 2 versions; a cheap model
SOLVE_ROW_BLOCKS = 62e-6  # 618 s likewise, 512 landmarks, 199 draws
SCORE = 10e-6  # 101 s likewise
FIXED = 25.0  # 23 s of CPU for a small first run

# Measured on one H100 with 16 cores, by tests/benchmarks/gpu.md.
CORES_PER_CARD = 16
VIT_B_32 = 1 / 21_500  # seconds of one image in bf16
CARD_BYTES = 60e9  # of 80 GB, for the factor
CARD_FP64 = 40e12  # operations a second of the factor of 100,000 rows
COLUMNS = 55  # right-hand sides of one version with its noise floor: cce_engine.md
FEATURES = 512


SIZES = (2, 16, 128, 1024)  # cores; cards have CORES_PER_CARD of them each


def everything(rows: float, versions: int, cores: int) -> float:
    """Seconds of a whole evaluation of features by row blocks, the default beyond 100,000 rows; workers of one core."""
    each = INDEX + EMBED_FEATURES + versions * (PREDICT + SOLVE_ROW_BLOCKS + SCORE)
    return FIXED + rows * each / cores


def embedding_images(rows: float, cores: int) -> float:
    """Seconds until all images are embedded: decoding and the forward pass run side by side, the slower one decides."""
    cards = cores // CORES_PER_CARD
    if not cards:
        return rows * EMBED_IMAGE_ON_CORES / cores
    return max(rows * DECODE / cores, rows * VIT_B_32 / cards)


def exact_solve(rows: float, cores: int) -> float | None:
    """Seconds of the tiled factorisation on cards and of one version's solves."""
    cards = cores // CORES_PER_CARD
    if 4 * rows**2 > cards * CARD_BYTES:
        return None
    return (rows**3 / 3 + rows**2 * (FEATURES + 4 * COLUMNS)) / (cards * CARD_FP64)


def duration(seconds: float) -> str:
    """In the unit that says it in few digits."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 100 * size else f"{seconds / size:,.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 1 else "under 1 s"


def table() -> str:
    """Worked examples as Markdown."""
    heads = [f"{cores:,} cores" + (f", {cores // CORES_PER_CARD} GPUs" * (cores > 2)) for cores in SIZES]
    lines = [
        "| rows | what | " + " | ".join(heads).replace("1 GPUs", "1 GPU") + " |",
        "|---|---|" + "---:|" * len(SIZES),
    ]
    for power in range(5, 9):
        rows = 10.0**power
        cells = {
            "everything, features, 2 versions": [duration(everything(rows, 2, cores)) for cores in SIZES],
            "embedding images": [duration(embedding_images(rows, cores)) for cores in SIZES],
            "exact solve, 1 version": [
                "" if (seconds := exact_solve(rows, cores)) is None else duration(seconds) for cores in SIZES
            ],
        }
        lines += [f"| 10^{power} | {what} | " + " | ".join(values) + " |" for what, values in cells.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
