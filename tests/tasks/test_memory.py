"""What a container may use of its machine, as the kernel's files state it, and what a process frees."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from congruence.tasks.dask import workers
from congruence.tasks.dask.workers import available_memory, give_back, memory_left, memory_limit, total_memory

MIB = 2**20
GIB = 2**30


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such call")
def test_free_pages_below_what_is_in_use_are_given_back() -> None:
    process = psutil.Process()
    parts = [np.ones(8_000) for _ in range(3_000)]  # 64 KB each, of the heap
    last, before = parts[-1], process.memory_info().rss
    del parts
    give_back()
    assert before - process.memory_info().rss > 100 * MIB
    assert last.sum() == 8_000


def write(root: Path, membership: str, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "membership").write_text(membership)
    return root / "membership", root


STAT_V2 = f"anon {2 * GIB}\nfile {3 * GIB}\nshmem {GIB}\nactive_file {GIB}\ninactive_file {GIB}\n"
STAT_V1 = f"cache 5\nactive_file 1\ninactive_file 1\ntotal_active_file {GIB}\ntotal_inactive_file 0\n"


@pytest.mark.parametrize(
    ("membership", "files", "limit", "left"),
    [
        (
            "0::/\n",
            {"memory.max": f"{8 * GIB}\n", "memory.current": f"{5 * GIB}\n", "memory.stat": STAT_V2},
            8 * GIB,
            5 * GIB,  # 3 are not in use, 2 are page cache that is given back, 1 in tmpfs is not
        ),
        ("0::/\n", {"memory.max": "max\n", "memory.current": "5\n"}, None, None),
        (
            "0::/pod/container\n",
            {
                "pod/memory.max": f"{4 * GIB}\n",
                "pod/memory.current": f"{4 * GIB}\n",
                "pod/container/memory.max": f"{6 * GIB}\n",
                "pod/container/memory.current": f"{GIB}\n",
            },
            4 * GIB,
            0,
        ),
        (
            "4:memory:/docker/a\n2:cpuacct:/\n",
            {
                "memory/docker/a/memory.limit_in_bytes": f"{2 * GIB}\n",
                "memory/docker/a/memory.usage_in_bytes": f"{2 * GIB}\n",
                "memory/docker/a/memory.stat": STAT_V1,
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/memory.usage_in_bytes": f"{9 * GIB}\n",
            },
            2 * GIB,
            GIB,
        ),
        ("0::/\n", {}, None, None),
    ],
)
def test_a_container_s_memory_is_its_limit_less_what_cannot_be_freed(
    membership: str, files: dict[str, str], limit: int | None, left: int | None, tmp_path: Path
) -> None:
    group = write(tmp_path, membership, files)
    assert memory_limit(*group) == limit
    assert memory_left(*group) == left


def test_memory_is_the_machine_s_or_the_container_s_whichever_is_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "memory_left", lambda: 1000)
    monkeypatch.setattr(workers, "memory_limit", lambda: 3000)
    assert (available_memory(), total_memory()) == (1000, 3000)
    monkeypatch.setattr(workers, "memory_limit", lambda: 2**62)
    assert total_memory() == psutil.virtual_memory().total


def test_cores_that_a_process_may_not_run_on_do_not_count() -> None:
    one = min(os.sched_getaffinity(0))
    script = (
        f"import os; os.sched_setaffinity(0, {{{one}}})\n"
        "from congruence.kernels.threads import usable_cores; print(usable_cores())"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "1\n"
