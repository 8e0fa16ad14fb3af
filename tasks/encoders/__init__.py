"""Encoders: rows of images, texts or features in, embeddings out; one interface, whatever computes them."""
