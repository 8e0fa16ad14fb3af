"""Rows that depend on each other: blocks of rows, inference by blocks, hold-outs, and a look for correlation."""
