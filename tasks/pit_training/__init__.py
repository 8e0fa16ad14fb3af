"""Training of the PIT-histogram interpreter: ``python -m congruence.tasks.pit_training``."""
