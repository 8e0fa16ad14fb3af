"""A compact CLIP for the demonstration and the tests, shipped with the package and loaded by open_clip itself.

It knows rotated handwritten digits only; `congruence.tasks.compact_clip_training.train` says how it was made.
"""
