"""Where the shipped compact CLIP lies."""

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
