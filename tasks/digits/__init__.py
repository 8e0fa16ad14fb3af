"""The demonstration data: rotated handwritten digits with a known conditional law."""
