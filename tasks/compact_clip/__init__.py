"""A compact CLIP for the demonstration and the tests, shipped with the package and loaded by open_clip itself.

It knows rotated handwritten digits only; `docs/training/train_compact_clip.py` says how it was made.
"""
