"""Recalibrating a registered version: fitting the map, the model around it, its registration, and the preview."""
