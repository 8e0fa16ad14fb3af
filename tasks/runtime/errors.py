"""The exceptions that steps raise, beside those of ``congruence.kernels.errors``."""

from congruence.kernels.errors import CongruenceError


class SettingsError(CongruenceError, ValueError):
    """An evaluation file that cannot be run: names file, key, value and remedy."""


class TooManyInvalidRowsError(CongruenceError):
    """More rows of a split are unusable than ``max_invalid`` allows: lists them with their reasons."""


class ClusterError(CongruenceError):
    """A Dask cluster or an embedded server that did not start or was lost: says what died, and how to go on."""
