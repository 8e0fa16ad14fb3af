"""Labelled splits of any size, read in shards from Parquet, manifests, tar shards, arrays or Hugging Face folders."""
