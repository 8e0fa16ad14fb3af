"""What the flow and task that a log line comes from say of it: run, evaluation, stage, version, split, shards."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

from prefect.context import FlowRunContext, TaskRunContext

_OF_RECORD = {"run": "flow_run_id", "evaluation": "flow_run_name", "stage": "task_name", "task": "task_run_name"}
"""Prefect's loggers of runs say it themselves, also where the run's context has been left for that of its parent."""


_NAMES = (
    re.compile(r"embed (?P<split>.+?)(?: shards (?P<shard>\d+-\d+))?"),
    re.compile(r"(?:check|predict|score|log) (?P<version>\S+) on (?P<split>.+?)(?: shards (?P<shard>\d+-\d+))?"),
    re.compile(r"solve (?P<split>.+): (?P<version>.+)"),
)
"""Names of our tasks' runs, for what is logged of them after their end, when their parameters are gone."""


def run_fields(record: logging.LogRecord) -> dict[str, str]:
    """By Prefect's contexts of this thread, and by what its own loggers attach."""
    found: dict[str, str] = {}
    flow = FlowRunContext.get()
    if flow is not None and flow.flow_run is not None:
        found |= {"run": str(flow.flow_run.id), "evaluation": flow.flow_run.name}
    task = TaskRunContext.get()
    if task is None:
        found |= dict(_of_name(str(getattr(record, "task_run_name", ""))))
    else:
        found |= {"run": str(task.task_run.flow_run_id), "stage": task.task.name, "task": task.task_run.name}
        found |= dict(_of_parameters(task.parameters))
    for name, attribute in _OF_RECORD.items():
        if (value := getattr(record, attribute, None)) not in (None, "<unknown>"):
            found[name] = str(value)
    return found


def _of_parameters(parameters: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in ("version", "label", "labels"):
        if (value := parameters.get(name)) is not None:
            yield "version", str(getattr(value, "label", value))
            break
    for value in (parameters.get("split_name"), parameters.get("split"), parameters.get("rows")):
        if value is not None:
            split = getattr(value, "split", value)
            yield "split", str(getattr(split, "name", split))
            break
    if "first" in parameters and "last" in parameters:
        yield "shard", f"{parameters['first']}-{parameters['last']}"


def _of_name(name: str) -> Iterator[tuple[str, str]]:
    for form in _NAMES:
        if (match := form.fullmatch(name)) is not None:
            yield from ((field, value) for field, value in match.groupdict().items() if value is not None)
            return
