"""Encoders: rows of images, texts or features in, embeddings out; one interface, whatever computes them."""

from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.errors import InvalidRow
from congruence.tasks.encoders.features import standardisation
from congruence.tasks.encoders.loading import load_encoder
from congruence.tasks.encoders.settings import EncoderSettings

__all__ = ["Encoder", "EncoderSettings", "InvalidRow", "load_encoder", "standardisation"]
