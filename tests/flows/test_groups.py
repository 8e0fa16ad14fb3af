"""How many pieces the work of a step is: enough for its workers to end together, few enough not to show."""

from itertools import chain

import pytest

from congruence.tasks.data.split import Shard
from congruence.tasks.evaluate.executors import groups_of_shards


def shards(rows: int, size: int = 2048) -> list[Shard]:
    return [Shard(i, start, min(size, rows - start), "") for i, start in enumerate(range(0, rows, size))]


@pytest.mark.parametrize(
    ("rows", "versions", "threads", "least", "most"),
    [
        (300_000, 2, 2, 16, 20),
        (300_000, 2, 1, 16, 20),
        (300_000, 2, 16, 90, 128),
        (20_000, 200, 2, 200, 200),
        (20_000, 4, 2, 12, 16),
        (20_000, 1, 2, 10, 10),
        (10**7, 2, 2, 560, 640),
        (10**7, 1, 64, 460, 512),
        (10**6, 8, 2, 200, 250),
        (1, 1, 2, 1, 1),
        (20_000, 1000, 2, 1000, 1000),
    ],
)
def test_tasks_of_a_stage(rows, versions, threads, least, most):
    given = shards(rows)
    groups = groups_of_shards(given, threads, versions)
    assert list(chain(*groups)) == given
    assert least <= len(groups) * versions <= most


def test_no_shards_are_no_task():
    assert groups_of_shards([], 2) == []
