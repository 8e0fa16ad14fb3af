"""The one module that imports open_clip and timm: it makes torchvision importable beside a CPU-only torch first.

torchvision's compiled library links CUDA in the wheels of some indexes. Beside a CPU torch it cannot be loaded, its
operators stay undeclared, and `import torchvision` (hence open_clip and timm) fails on `torchvision::nms does not
exist`. None of the encoders runs those detection operators, so declaring their schemas is enough.
"""

import contextlib
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch

from congruence.kernels.errors import CongruenceError

_SCHEMAS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


def _declare_torchvision_operators() -> torch.library.Library | None:
    """Load torchvision's operators, or declare the two its Python code registers against; None where they are real."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise CongruenceError(
            "torchvision is not installed, and open_clip's preprocessing needs it: install the torchvision that "
            f"belongs to torch {torch.__version__}"
        )
    compiled = Path(spec.origin).parent / "_C.so"
    # Only a library that the loader refuses is replaced; with CUDA present the real operators are used.
    with contextlib.suppress(OSError):
        torch.ops.load_library(str(compiled))  # type: ignore[no-untyped-call]
    missing = [schema for name, schema in _SCHEMAS.items() if not hasattr(torch.ops.torchvision, name)]
    if not missing:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for schema in missing:
        library.define(schema)  # type: ignore[no-untyped-call]
    return library


# The schemas live exactly as long as this object.
_declared_operators = _declare_torchvision_operators()

# Any: both are typed in part only, and what they return depends on the model's configuration.
open_clip: Any = importlib.import_module("open_clip")
timm: Any = importlib.import_module("timm")

__all__ = ["open_clip", "timm"]
