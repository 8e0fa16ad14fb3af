"""Monitoring over time: is a version still right on new rows, and since when not?"""

from congruence.kernels.monitoring.evidence import ScoreBet, ScoreSums, e_values, score_bet
from congruence.kernels.monitoring.looks import Look, Monitor, Verdict

__all__ = ["Look", "Monitor", "ScoreBet", "ScoreSums", "Verdict", "e_values", "score_bet"]
