"""The folder that holds everything a run leaves on disk, where nobody names another."""

VARIABLE = "CONGRUENCE_HOME"
DEFAULT = ".congruence"
