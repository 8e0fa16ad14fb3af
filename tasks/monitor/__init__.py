"""Monitoring a version over time: the account of its looks, and the page of them."""
