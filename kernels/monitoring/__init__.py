"""Monitoring over time: is a version still right on new rows, and since when not?"""

from congruence.kernels.monitoring.evidence import Look, Monitor, ScoreBet, ScoreSums, Verdict, e_values, score_bet

__all__ = ["Look", "Monitor", "ScoreBet", "ScoreSums", "Verdict", "e_values", "score_bet"]
