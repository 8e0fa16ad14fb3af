"""The level at which an input is unusual, for those who read settings without loading what computes."""

UNUSUAL = 0.01
