"""Networks of probabilistic regression: their heads and losses."""
