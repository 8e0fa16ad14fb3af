"""Conditional congruence: how far predictive distributions are from the truth, and what a true one would show."""
