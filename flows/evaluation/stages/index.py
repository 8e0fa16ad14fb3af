"""index: the rows of a split, file by file, by tasks on the workers; a split that is indexed is only looked at."""

from __future__ import annotations

from collections.abc import Callable

from distributed import Client
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from congruence.flows.cli.console import say
from congruence.flows.cli.progress import stage
from congruence.flows.evaluation.batching import in_groups
from congruence.flows.evaluation.splits import open_planned, plans_folder
from congruence.flows.evaluation.stages.waiting import as_completed, on_workers_of, tasks_at_once
from congruence.tasks.data.index import check_files, describe_file, index_file, source_files
from congruence.tasks.data.measurable import require_measurable
from congruence.tasks.data.opening import open_kept
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.settings.evaluation import EvaluationSettings


@task(name="look at", task_run_name="look at {first} and {others} more", retries=1, cache_policy=NO_CACHE)
def describe_task(first: str, others: int, split: SplitSettings, files: list[str], folder: str) -> None:  # noqa: ARG001
    """Where the rows of some files lie: a footer, or a pass over a text file."""
    for file in files:
        describe_file(split, file, folder)


@task(name="index", task_run_name="index {first} and {others} more", retries=1, cache_policy=NO_CACHE)
def index_task(
    first: str,  # noqa: ARG001 - part of the run's name
    others: int,  # noqa: ARG001
    split: SplitSettings,
    files: list[str],
    folder: str,
    kinds: dict[str, str],
) -> None:
    """Index some files of a split; those that were indexed in their present state are left as they are."""
    for file in files:
        index_file(split, file, folder, kinds)


def index(settings: EvaluationSettings, split: SplitSettings, cluster: Callable[[], Client]) -> Split:
    """The split, indexed: as it is kept, or by the workers of ``cluster``, which is asked for only then.

    Raises:
        SplitError: see ``open_split``; or what ``require_measurable`` refuses.
    """
    opened = open_kept(split, plans_folder(settings))
    if opened is None:
        files = source_files(split)
        if len(files) > 1:
            runner = on_workers_of(cluster())
            on_dask = index_files.with_options(task_runner=runner, flow_run_name=f"index {split.name}")
            on_dask(split, files, str(plans_folder(settings)))
        opened = open_planned(split, settings)
    if split.target is not None:
        said = require_measurable(opened, settings.max_invalid, missing=settings.encoder.missing)
        if said is not None:
            say(said)
    return opened


@flow(name="index-files", validate_parameters=False)
def index_files(split: SplitSettings, files: list[str], folder: str) -> None:
    """Look at every file, settle the types of their columns together, and index every file."""
    groups = in_groups(files)
    for ended in as_completed([describe_task.submit(g[0], len(g) - 1, split, g, folder) for g in groups]):
        ended.result()
    kinds = check_files(split, folder)
    at_once = tasks_at_once() * max(map(len, groups))
    with stage(f"indexing {split.name}", len(files), "files", at_once=at_once) as advance:
        futures = {index_task.submit(g[0], len(g) - 1, split, g, folder, kinds): len(g) for g in groups}
        for ended in as_completed(list(futures)):
            ended.result()
            advance(futures[ended])
