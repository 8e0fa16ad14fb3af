"""What can be wrong with stored embeddings."""

from congruence.kernels.errors import CongruenceError


class StoreError(CongruenceError):
    """Embeddings that are missing, damaged or unfit for the store: names the shard and the remedy."""


class NotEmbeddedError(StoreError):
    """A shard without a marker."""
