"""Rows that depend on each other: blocks of rows, inference by blocks, a look for correlation, and weights."""
