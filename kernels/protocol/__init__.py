"""Protocols: the conditions under which congruence errors compare, and how each takes its reference points."""
