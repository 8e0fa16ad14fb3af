"""Young et al. (2025), sections 4.2 and 4.3, on photographs: red cells in blood smears."""

from __future__ import annotations

from prefect import flow

from congruence.flows.reproduce.seven_heads import PROTOCOL, study_heads
from congruence.tasks.reproduction.blood_cells import blood_cells as read
from congruence.tasks.reproduction.blood_cells import colours_and_textures
from congruence.tasks.reproduction.outcome import Outcome, Plan


@flow(name="reproduce blood-cells", validate_parameters=False)
def blood_cells(plan: Plan) -> Outcome:
    """Red cells in the photographs of BCCD, by its own splits; table 1, figures 3 to 5, and the map of figure 14."""
    fitted, held, test = read(plan.require("bccd")).values()
    encode = colours_and_textures(fitted.images)
    table, claims, figures = study_heads(fitted, held, test, plan, encode=encode, epochs=plan.size(60, 6))
    notes = (
        f"{len(test.y)} photographs to test on: what the paper sees on thousands may lie within the noise here.",
        "Embedded by shares of colours and powers of frequencies: no network that knows photographs is shipped.",
        PROTOCOL,
    )
    return Outcome("blood-cells", "Blood cells with seven heads", "CCE", tuple(claims), table, figures, notes)
