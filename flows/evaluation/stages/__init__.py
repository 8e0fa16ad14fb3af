"""The stages of an evaluation as Prefect tasks that run on Dask workers."""
