"""Neighbouring shards, files or parts in groups of which each is one task run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from congruence.tasks.data.split import Shard

T = TypeVar("T")

MAX_TASKS = 200
TASK_ROWS = 2**15
"""From which on a task run of quick work is worth the fifth of a second of CPU that it takes of the processes."""
QUICK_TASKS = 64
"""Of quick work, however many the rows: more would show no more progress, and a thread waits for the server in each."""
TASKS_PER_THREAD = 8
"""However few the rows: workers end together to an eighth of their work, and progress is seen."""


def groups_of_shards(shards: Sequence[Shard], threads: int, times: int = 1) -> list[list[Shard]]:
    """Shards in groups of some 32,768 rows: smaller ones where that leaves a thread fewer than eight, and larger ones
    where there would be more than 64 and eight for each thread.

    Args:
        shards: in split order.
        threads: of all workers.
        times: how often all shards are worked on, by a version each.
    """
    rows = sum(shard.rows for shard in shards) * times
    tasks = min(MAX_TASKS, max(min(rows // TASK_ROWS, QUICK_TASKS), TASKS_PER_THREAD * threads))
    return in_groups(shards, tasks, times)


def in_groups(work: Sequence[T], tasks: int = MAX_TASKS, times: int = 1) -> list[list[T]]:
    """``work`` in order, in groups of one size, in at most ``tasks`` groups ``times`` over where there are no more
    ``times``.
    """
    size = max(1, -(-len(work) * times // max(1, tasks)))
    return [list(work[start : start + size]) for start in range(0, len(work), size)]
