"""A compact CLIP for the demonstration and the tests, shipped with the package and loaded by open_clip itself.

It knows rotated handwritten digits only; `congruence.tasks.compact_clip_training.train` says how it was made.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.compact_clip.location import WEIGHTS as WEIGHTS
    from congruence.tasks.compact_clip.location import model_name as model_name
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
