"""Encoders: rows of images, texts or features in, embeddings out; one interface, whatever computes them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.encoders.base import Encoder
    from congruence.tasks.encoders.errors import InvalidRow
    from congruence.tasks.encoders.loading import load_encoder
    from congruence.tasks.encoders.moments import standardisation
    from congruence.tasks.encoders.settings import EncoderSettings
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = ["Encoder", "EncoderSettings", "InvalidRow", "load_encoder", "standardisation"]
