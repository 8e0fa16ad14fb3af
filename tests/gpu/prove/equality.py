"""pytest -m gpu: every kernel, solver and dtype against its definition, in a process of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


def run(record: Any, name: str, device: str, small: bool) -> None:
    """Note what passed; a skipped test is named, and a failed one fails the piece."""
    files = sorted(str(path) for path in (ROOT / "tests").glob("*/test_*_gpu.py"))
    command = [sys.executable, "-m", "pytest", "-v", "-rs", "-m", "gpu", "-p", "no:cacheprovider", *files]
    # A file whose packages are not here fails the piece, and keeps no other from being run.
    command += ["--durations=8", "--continue-on-collection-errors"]
    if device == "cpu":
        command += ["-k", "not cuda"]
    # In a file, so that tests that are cut off leave how far they came.
    said = record.path.with_suffix(".log")
    with record.sampler.stage("tests"), said.open("w") as output:
        finished = subprocess.run(
            command,
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            check=False,
        )
    lines = said.read_text().strip().splitlines() or [""]
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1])}
    record.note(counts=counts, skipped=[line for line in lines if line.startswith("SKIPPED")])
    record.note(slowest=[line for line in lines if re.match(r"[\d.]+s ", line)])
    if finished.returncode or not counts.get("passed"):
        raise RuntimeError("\n".join(lines)[-6000:])
