"""The code of the GPU tests on arrays with CuPy's manners: no host array meets a device array, on any machine."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
STAND_IN = TESTS.parent / "device_arrays"


def test_the_gpu_code_keeps_host_and_device_arrays_apart():
    search = os.pathsep.join(filter(None, [str(STAND_IN), os.environ.get("PYTHONPATH")]))
    files = [str(path) for path in sorted(TESTS.parent.glob("*/test_*_gpu.py"))]
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-k", "not cuda", *files],
        env=os.environ | {"PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr[-2000:]
    assert " passed" in finished.stdout
    assert "skipped" not in finished.stdout
