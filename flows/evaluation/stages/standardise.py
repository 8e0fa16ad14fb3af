"""standardise: mean and scale of tabular features, by tasks on the workers; part of the stage index.

What is kept is only read, and a split of one part is read here.
"""

from __future__ import annotations

from collections.abc import Callable

from distributed import Client
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from congruence.flows.cli.progress import stage
from congruence.flows.evaluation.batching import in_groups
from congruence.flows.evaluation.splits import with_fitted_encoder
from congruence.flows.evaluation.stages.waiting import as_completed
from congruence.flows.prefect.dask_runner import on_workers_of
from congruence.flows.prefect.journal import JOURNALED
from congruence.kernels.arrays import Array
from congruence.tasks.data import Split
from congruence.tasks.embeddings.standardisation import Part, fit_here
from congruence.tasks.encoders.moments import Moments
from congruence.tasks.settings.evaluation import EvaluationSettings


@task(
    name="standardise",
    task_run_name="standardise {split.name} rows {first}-{last}",
    retries=1,
    cache_policy=NO_CACHE,
)
def moments_task(
    split: Split,
    parts: list[Part],
    origin: Array,
    missing: bool,
    first: int,  # noqa: ARG001 - part of the run's name
    last: int,  # noqa: ARG001
) -> list[Moments | None]:
    """The moments of some parts of a split."""
    return fit_here(split, parts, origin, missing)


def standardise(settings: EvaluationSettings, cluster: Callable[[], Client]) -> EvaluationSettings:
    """The settings with the statistics of tabular features: given, kept, or by the workers of ``cluster``.

    Raises:
        SplitError: no row of the split can be used.
    """

    def fit(split: Split, parts: list[Part], origin: Array, missing: bool) -> list[Moments | None]:
        runner = on_workers_of(cluster())
        on_dask = take_moments.with_options(task_runner=runner, flow_run_name=f"standardise {split.name}")
        return on_dask(split, parts, origin, missing)

    return with_fitted_encoder(settings, fit)


@flow(name="standardise-features", validate_parameters=False, **JOURNALED)
def take_moments(split: Split, parts: list[Part], origin: Array, missing: bool) -> list[Moments | None]:
    """The moments of all parts, in their order, in whatever order they finish."""
    groups = in_groups(parts)
    with stage(f"standardising by {split.name}", split.rows) as advance:
        futures = [moments_task.submit(split, group, origin, missing, group[0][0], group[-1][1]) for group in groups]
        for ended in as_completed(futures):
            ended.result()
            advance(split.rows // len(groups))
    return [found for future in futures for found in future.result()]
