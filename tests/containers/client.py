"""Calls of inside.py's methods from outside the containers."""

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from engine import Engine

INSIDE = "/exercise"
"""The folder of tests/ in the container."""


class AnswerError(Exception):
    """What a call in the container raised."""


class Client:
    """``client.method(...)`` is ``Inside.method(...)`` in the exercise's container."""

    def __init__(self, engine: Engine, container: str) -> None:
        program = ["congruence-entrypoint", "python", f"{INSIDE}/containers/inside.py"]
        self._log = (engine.folder / "client.log").open("a")
        self._process = subprocess.Popen(
            [engine.name, "exec", "-i", container, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.write(json.dumps({"name": name, "arguments": arguments, "options": options}) + "\n")
            self._process.stdin.flush()
            if not (line := self._process.stdout.readline()):
                raise RuntimeError(f"the exercise's container ended; see {self._log.name}")
            answer = json.loads(line)
            if "error" in answer:
                raise AnswerError(answer["error"])
            return answer["value"]

        return call

    def close(self) -> None:
        """End the process in the container."""
        with suppress(OSError):
            self._process.communicate(timeout=30)
        self._log.close()


def eventually(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """What ``condition`` gives once it is true; servers that are away are asked again."""
    limit, last = time.monotonic() + seconds, ""
    while time.monotonic() < limit:
        try:
            if found := condition():
                return found
        except AnswerError as error:
            last = str(error)
        time.sleep(0.3)
    raise TimeoutError(f"{what} did not happen within {seconds:.0f} s; {last}")
