"""Registered versions, and what they predict."""
