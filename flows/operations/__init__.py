"""What the other commands do: compare, gate, recalibrate, score, validate, and the like."""
