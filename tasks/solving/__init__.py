"""The linear algebra of a reference split on a Dask cluster: the operator, its columns, and a tiled factorisation."""
