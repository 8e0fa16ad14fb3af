"""Workers of this machine are forked from a process that has loaded what they need."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forked on Linux alone")

PROGRAM = """
import json, os, sys
from congruence.tasks.dask.preloading import preload

def seen(dask_worker):
    import psutil
    parent = " ".join(psutil.Process().parent().cmdline())
    names = ("OMP_NUM_THREADS", "MALLOC_MMAP_THRESHOLD_", "SET_LATER")
    return ["forkserver" in parent, "tabnanny" in sys.modules] + [os.environ.get(name) for name in names]

if __name__ == "__main__":
    preload("tabnanny")
    os.environ["SET_LATER"] = "yes"
    from congruence.tasks.dask.clusters import dask_client
    from congruence.tasks.settings.cluster import ClusterSettings

    with dask_client(ClusterSettings(kind="local", workers=2)) as client:
        print(json.dumps(list(client.run(seen).values())))
"""


def test_workers_are_forked_with_the_variables_of_now(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ended = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1]) == 2 * [[True, True, "1", str(2**25), "yes"]]
