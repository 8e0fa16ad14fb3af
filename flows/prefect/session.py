"""Running flows from the command line: on a Prefect server, with their errors left to the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from congruence.flows.cli.error_messages import explaining
from congruence.tasks.data.ingest import require_columns
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.evaluate.plan import Plan, VersionOutcome
from congruence.tasks.settings.evaluation import EvaluationSettings


def run_evaluation(settings: EvaluationSettings, *, again: bool = False) -> list[VersionOutcome]:
    """The outcomes of an evaluation: of the flow, unless everything that it would do is done already.

    Raises:
        CongruenceError: settings, data or models that cannot be evaluated; what the files' first rows show, and an
            encoder that cannot be loaded, before a server is started.
    """
    plan = Plan(settings, again=again)
    if (found := plan.outcomes()) is not None:
        return found
    for split in plan.settings.all_splits:
        require_columns(split)
    if settings.encoder.kind != "identity":  # kept in this process, which asks it for its names
        asking_encoder(settings.encoder)
    with session():
        from congruence.flows.evaluate import evaluate

        return evaluate(settings, ", ".join(plan.settings.models) or "registry versions", again, plan)


@contextmanager
def session() -> Iterator[None]:
    """Flows run inside, on the Prefect server that is configured or else on one of our own."""
    from congruence.flows.prefect.local_server import prefect_server

    # Explained inside as well: the server's address is known there, and how it ended.
    with explaining(), prefect_server(), explaining():
        from congruence.flows.prefect.log_filters import told_by_a_command

        told_by_a_command()
        yield
