"""How far a version can be trusted on an input without a label: support, local faults, and what to withhold."""
