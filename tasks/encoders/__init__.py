"""Encoders: rows of images, texts or features in, embeddings out; one interface, whatever computes them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.encoders.base import Encoder as Encoder
    from congruence.tasks.encoders.errors import InvalidRow as InvalidRow
    from congruence.tasks.encoders.loading import load_encoder as load_encoder
    from congruence.tasks.encoders.moments import standardisation as standardisation
    from congruence.tasks.encoders.settings import EncoderSettings as EncoderSettings
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
