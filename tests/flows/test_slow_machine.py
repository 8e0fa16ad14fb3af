"""Embedded parts come up on a slow machine: at the lowest priority, on a quarter of the processor's time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from slow_machine import a_quarter_of_the_processor

WORKERS = """
import os
from congruence.tasks.dask.clusters import dask_client
from congruence.tasks.settings.computing import ClusterSettings
if __name__ == "__main__":
    with dask_client(ClusterSettings(kind="local", workers=2), print) as client:
        assert os.getpid() not in client.run(os.getpid).values()
        print("workers", len(client.run(os.getpid)))
"""


def said_by(code: str, folder: Path) -> str:
    script = folder / "script.py"
    script.write_text(code)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_API")}
    environment |= {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_LOGGING_LEVEL": "ERROR"}
    command = ["nice", "-n", "19", sys.executable, str(script)]
    started = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
    )
    with a_quarter_of_the_processor(psutil.Process(started.pid)):
        return started.communicate(timeout=280)[0]


@pytest.mark.exercise
def test_worker_processes_come_up(tmp_path: Path) -> None:
    assert "workers 2" in said_by(WORKERS, tmp_path)
