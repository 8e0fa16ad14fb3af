"""Watching a registry or stored predictions: what a pass does, and what people are told of it."""
