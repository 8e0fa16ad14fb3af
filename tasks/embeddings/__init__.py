"""Embeddings of a split: shard by shard, on workers, kept in a Zarr store."""
