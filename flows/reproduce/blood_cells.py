"""Young et al. (2025), sections 4.2 and 4.3, on photographs: red cells in blood smears."""

from __future__ import annotations

import numpy as np

from congruence.flows.reproduce.seven_heads import PROTOCOL, study_heads
from congruence.kernels import Normal
from congruence.tasks.reproduction.blood_cells import blood_cells as read
from congruence.tasks.reproduction.blood_cells import colours_and_textures
from congruence.tasks.reproduction.outcome import Outcome, Plan


def blood_cells(plan: Plan) -> Outcome:
    """Red cells in the photographs of BCCD, by its own splits; table 1, figures 3 to 5, and the map of figure 14."""
    fitted, held, test = read(plan.require("bccd")).values()
    encode = colours_and_textures(fitted.images)
    table, claims, figures = study_heads(fitted, held, test, plan, encode=encode, epochs=plan.size(400, 6))
    blind = Normal(np.full(len(test.y), fitted.y.mean()), np.full(len(test.y), fitted.y.std(ddof=1)))
    notes = (
        f"{len(fitted.y)} photographs to train on and {len(test.y)} to test on, where the paper has thousands: a law "
        f"that ignores the photograph has an NLL of {-blind.log_prob(test.y).mean():.3f}, the best head one of "
        f"{table['NLL'].min():.3f}. Where little is learnt, blurred or mixed photographs can spoil little.",
        "Embedded by shares of colours and powers of frequencies: no network that knows photographs is shipped.",
        PROTOCOL,
    )
    return Outcome("blood-cells", "Blood cells with seven heads", "CCE", tuple(claims), table, figures, notes)
