"""What we need of Prefect: its server, its task runner on Dask, its log."""
