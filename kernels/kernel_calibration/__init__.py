"""The kernel calibration error of Widmann et al. (2021): estimators, kernels on predictions, and tests."""
