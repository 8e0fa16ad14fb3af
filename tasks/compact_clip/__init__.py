"""A compact CLIP for the demonstration and the tests, shipped with the package and loaded by open_clip itself.

It knows rotated handwritten digits only; `congruence.tasks.compact_clip.train` says how it was made.
"""

from congruence.tasks.compact_clip.location import WEIGHTS, model_name

__all__ = ["WEIGHTS", "model_name"]
