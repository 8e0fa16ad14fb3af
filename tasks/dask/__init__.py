"""Dask clusters: by configuration, with TLS, with GPUs."""
