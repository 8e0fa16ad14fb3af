"""The demonstration data: rotated handwritten digits with a known conditional law."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.digits.dataset import DigitRows as DigitRows
    from congruence.tasks.digits.dataset import digit_rows as digit_rows
    from congruence.tasks.digits.dataset import noise_scale as noise_scale
    from congruence.tasks.digits.dataset import write_digits as write_digits
    from congruence.tasks.digits.images import base_images as base_images
    from congruence.tasks.digits.images import draw as draw
    from congruence.tasks.digits.images import encode_png as encode_png
    from congruence.tasks.digits.images import labels as labels
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
