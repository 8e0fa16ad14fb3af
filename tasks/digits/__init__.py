"""The demonstration data: rotated handwritten digits with a known conditional law."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.digits.dataset import DigitRows, digit_rows, noise_scale, write_digits
    from congruence.tasks.digits.images import base_images, draw, encode_png, labels
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = ["DigitRows", "base_images", "digit_rows", "draw", "encode_png", "labels", "noise_scale", "write_digits"]
