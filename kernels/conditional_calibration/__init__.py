"""Is a model calibrated given its inputs? PIT scores smoothed over the inputs: test, local reading, correction."""
