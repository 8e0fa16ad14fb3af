"""Evaluations that nobody starts by hand: polling, schedules, deployments."""
