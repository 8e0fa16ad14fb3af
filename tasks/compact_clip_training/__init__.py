"""How the shipped compact CLIP was made, and what linear probes find in its embeddings."""
