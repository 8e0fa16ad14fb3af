"""Monitoring over time: is a version still right on new rows, and since when not?"""
