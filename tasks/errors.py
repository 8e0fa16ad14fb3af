"""The exceptions that steps raise, beside those of ``congruence.kernels.errors``."""

from congruence.kernels.errors import CongruenceError


class SettingsError(CongruenceError, ValueError):
    """An evaluation file that cannot be run: names file, key, value and remedy."""


class TooManyInvalidRowsError(CongruenceError):
    """More rows of a split are unusable than ``max_invalid`` allows: lists them with their reasons."""


class ClusterError(CongruenceError):
    """A Dask cluster that was lost during the work: says what died, and that a second run continues."""
