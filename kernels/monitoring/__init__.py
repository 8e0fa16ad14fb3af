"""Monitoring over time: is a version still right on new rows, and since when not?"""

from congruence.kernels.monitoring.evidence import e_values
from congruence.kernels.monitoring.looks import Look, Monitor, Verdict
from congruence.kernels.monitoring.score_betting import ScoreBet, ScoreSums, score_bet

__all__ = ["Look", "Monitor", "ScoreBet", "ScoreSums", "Verdict", "e_values", "score_bet"]
