"""What a piece found, as a JSON file: written after every finding, so that one that is cut off is kept."""

import argparse
import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from typing import Any

import psutil
from utilisation import Sampler, card_names

LIMIT_SECONDS = 500
GRACE_SECONDS = 25  # to end clusters and servers in; then the process is ended, whatever it is doing
REHEARSAL_SECONDS = 900  # a machine without a card may be busy with other things
PACKAGES = (
    "numpy",
    "scipy",
    "cupy-cuda13x",
    "torch",
    "torchvision",
    "open_clip_torch",
    "dask",
    "dask-cuda",
    "rmm-cu13",
    "zarr",
    "prefect",
    "mlflow",
)


class OutOfTime(BaseException):
    """The piece has taken as long as it may, or was told to end."""


class Record:
    """Findings of one piece."""

    def __init__(self, name: str, arguments: argparse.Namespace) -> None:
        self.path = arguments.records / f"{name}-{arguments.device}-{arguments.size}.json"
        self.succeeded = False
        self.sampler = Sampler(arguments.device)
        self.content: dict[str, Any] = {
            "piece": name,
            "device": arguments.device,
            "size": arguments.size,
            "rehearsal": arguments.device == "cpu" or arguments.size == "small",
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": machine(),
            "versions": versions(),
            "commit": _commit(),
            "findings": {},
            "goals": [],
            "succeeded": False,
        }
        self._started = time.monotonic()

    def note(self, **findings: Any) -> None:
        """Keep findings, now, and print them."""
        self.content["findings"] |= findings
        for name, value in findings.items():
            print(f"  {name}: {json.dumps(value, default=str)}", flush=True)
        self.write()

    def goal(self, what: str, value: float, limit: float, *, at_least: bool) -> None:
        """Keep whether ``value`` is on the right side of ``limit``; of a rehearsal that says nothing."""
        met = value >= limit if at_least else value <= limit
        said = None if self.content["rehearsal"] else bool(met)
        self.content["goals"].append({"what": what, "value": value, "limit": limit, "at least": at_least, "met": said})
        print(f"  goal: {what}: {value:.4g} ({'>=' if at_least else '<='} {limit:g}) {said}", flush=True)
        self.write()

    def write(self) -> None:
        """To the file."""
        self.content["seconds"] = round(time.monotonic() - self._started, 2)
        self.content["utilisation"] = self.sampler.summary()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.content, indent=1, default=str) + "\n")


@contextmanager
def recorded(name: str, arguments: argparse.Namespace) -> Iterator[Record]:
    """A record that is finished with what went wrong, or with the word that nothing did."""
    print(f"{name}:", flush=True)
    record = Record(name, arguments)
    record.write()
    limit = LIMIT_SECONDS if arguments.device == "cuda" else REHEARSAL_SECONDS
    end = Timer(limit + GRACE_SECONDS, _end, (record,))
    end.daemon = True
    signal.signal(signal.SIGALRM, _out_of_time)
    signal.signal(signal.SIGTERM, _out_of_time)
    signal.alarm(limit)
    end.start()
    try:
        with record.sampler:
            yield record
        record.succeeded = True
    except (Exception, OutOfTime) as error:
        record.content["failure"] = "".join(traceback.format_exception(error))[-6000:]
        print(record.content["failure"], flush=True)
        if isinstance(error, OutOfTime) and error.args[0] == signal.SIGTERM:
            raise SystemExit(1) from error
    finally:
        signal.alarm(0)
        end.cancel()
        record.content["succeeded"] = record.succeeded
        record.write()


def _out_of_time(number: int, _: object) -> None:
    raise OutOfTime(signal.Signals(number))


def _end(record: Record) -> None:
    """End this process and what it started: the piece is out of time and still busy, in a library perhaps."""
    stacks = "".join("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
    record.content["failure"] = "out of time, and what it was doing could not be interrupted:\n" + stacks[-6000:]
    record.write()
    print(record.content["failure"], flush=True)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()
    os._exit(1)


def machine() -> dict[str, Any]:
    """Cores, memory and cards."""
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load": os.getloadavg()[0],
        "cards": card_names(),
        "python": platform.python_version(),
    }


def versions() -> dict[str, str | None]:
    """Of the packages that matter, None where one is missing."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _commit() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
