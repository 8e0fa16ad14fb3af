"""The PIT-histogram interpreter (Podsztavek et al., 2024), with sample-size noise, intervals and a verdict."""
