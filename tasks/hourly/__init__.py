"""Demonstration data: counts of every hour, whose law is known at each hour, and each hour like the one before."""
