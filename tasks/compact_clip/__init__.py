"""A compact CLIP for the demonstration and the tests, shipped with the package and loaded by open_clip itself.

It knows rotated handwritten digits only; `docs/training/train_compact_clip.py` says how it was made.
"""

from __future__ import annotations

from pathlib import Path

from congruence.kernels.errors import CongruenceError

WEIGHTS = Path(__file__).resolve().parent / "weights"


def model_name(folder: Path = WEIGHTS) -> str:
    """The compact CLIP as open_clip names it, `local-dir:...`; refused where the installation lacks its weights."""
    for name in ("open_clip_config.json", "open_clip_model.safetensors"):
        if not (folder / name).is_file():
            raise CongruenceError(
                f"the compact CLIP is incomplete: {name} is missing in {folder}; install the package again"
            )
    return f"local-dir:{folder}"
