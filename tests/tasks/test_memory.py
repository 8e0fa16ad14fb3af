"""What a process frees goes back to the system when it is asked to."""

from __future__ import annotations

import sys

import numpy as np
import psutil
import pytest

from congruence.tasks.runtime.memory import give_back

MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such call")
def test_free_pages_below_what_is_in_use_are_given_back() -> None:
    process = psutil.Process()
    parts = [np.ones(8_000) for _ in range(3_000)]  # 64 KB each, of the heap
    last, before = parts[-1], process.memory_info().rss
    del parts
    give_back()
    assert before - process.memory_info().rss > 100 * MIB
    assert last.sum() == 8_000
