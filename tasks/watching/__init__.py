"""Watching a registry: which versions to evaluate, when, and by whom."""
