"""Digits and p-values as people read them."""

from __future__ import annotations

from congruence.tasks.sentences.calibration import p_value_in_words

CERTIFICATE_KINDS = {
    "computed": "Every part of it was computed.",
    "sampled": "Parts of it were read at random points and have a margin: an estimate, not a proof.",
}
"""What the run's parameter ``certificate_kind`` says of ``cce_error_bound``."""


def significant(value: float) -> str:
    """Three significant digits; four before the point stay whole."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def probability(p_value: float | None) -> str:
    """A p-value in a table: "0.012", "< 0.001" where more digits say nothing to a reader."""
    return "–" if p_value is None else p_value_in_words(p_value).removeprefix("p ").removeprefix("= ")
