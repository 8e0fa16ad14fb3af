"""Kernel mean embeddings of predictive distributions in coordinates, with what the coordinates leave out."""
