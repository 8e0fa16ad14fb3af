"""Is a model calibrated given its inputs? PIT scores smoothed over them: a test, a local reading, a correction."""
