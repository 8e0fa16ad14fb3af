"""Young et al. (2025), sections 4.2 and 4.3: seven heads on one backbone over embedded images of a known law."""

from __future__ import annotations

from congruence.flows.reproduce.seven_heads import PROTOCOL, study_heads
from congruence.tasks.reproduction.counted_digits import counted_digits
from congruence.tasks.reproduction.counted_images import embedded
from congruence.tasks.reproduction.outcome import Outcome, Plan


def image_regression(plan: Plan) -> Outcome:
    """Counts on handwritten digits, splits 70/10/20; table 1, figures 3 to 5, and the map of figure 14."""
    n = plan.size(3000, 260)
    rows = counted_digits(n, plan.seed)
    first, second = round(0.7 * n), round(0.8 * n)
    parts = rows[:first], rows[first:second], rows[second:]
    table, claims, figures = study_heads(*parts, plan, encode=embedded, epochs=plan.size(60, 6))
    notes = (
        "Digits with counts of a known law stand for the private faces and crowds, a frozen shipped CLIP for the "
        "fine-tuned backbones; heads and losses are those of the papers.",
        PROTOCOL,
    )
    return Outcome("image-regression", "Image regression with seven heads", "CCE", tuple(claims), table, figures, notes)
