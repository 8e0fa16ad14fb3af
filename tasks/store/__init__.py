"""What runs keep for later runs, on a disk or in a bucket: whole objects, and the embeddings of splits in Zarr."""
