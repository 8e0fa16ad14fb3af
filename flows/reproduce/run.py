"""`congruence reproduce`: run experiments, keep and log what they came to, and write the page of verdicts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prefect import flow

from congruence.flows.cli.console import console
from congruence.flows.reproduce.experiments import NAMES, load
from congruence.tasks.reproduction.logged import log_reproduction
from congruence.tasks.reproduction.outcome import MissingDataError, Plan
from congruence.tasks.reproduction.record import Recorded, write_outcome, write_page


@dataclass(frozen=True)
class Reproduced:
    """The outcomes, the experiments that were left out with the reason, and the page."""

    outcomes: tuple[Recorded, ...]
    left_out: dict[str, str]
    page: Path


@flow(name="reproduce", validate_parameters=False)
def reproduce(names: Sequence[str], plan: Plan, output: Path) -> Reproduced:
    """Run the named experiments one after the other.

    Raises:
        MissingDataError: the only experiment that was asked for needs data that are not here; of several it is left
            out.
    """
    outcomes, left_out = [], {}
    for name in names:
        started = time.monotonic(), time.process_time()
        try:
            outcome = load(name)(plan)
        except MissingDataError as error:
            if len(names) == 1:
                raise
            left_out[name] = str(error)
            console.print(f"{name}: left out, {error}")
            continue
        took = time.monotonic() - started[0], time.process_time() - started[1]
        recorded = write_outcome(outcome, plan, took, output)
        log_reproduction(recorded)
        outcomes.append(recorded)
        _tell(recorded)
    return Reproduced(tuple(outcomes), left_out, write_page(output, NAMES))


def _tell(outcome: Recorded) -> None:
    console.print(f"{outcome.title} ({outcome.paper}), {outcome.seconds:.0f} s", style="bold")
    for claim in outcome.claims:
        style = "green" if claim.verdict == "holds" else "yellow"
        console.print(f"  {claim.verdict}: {claim.claim}", style=style, markup=False, soft_wrap=True)
        console.print(f"    {claim.found}", markup=False, soft_wrap=True)
