"""Is a model calibrated given its inputs? PIT scores smoothed over the inputs: a test, a local reading, a correction."""
