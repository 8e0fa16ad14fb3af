"""Docker or podman, whichever can run a container here, with its compose; or why there is none."""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

PROJECT = "congruence-exercise"
OWN = f"localhost/{PROJECT}"
"""Where images of the exercise alone are."""
LIMIT = 16384
"""Files and processes of a container: more than any of ours has, fewer than engines ask for where that is refused."""


class NotHereError(Exception):
    """What this machine lacks for the exercise."""


@dataclass
class Engine:
    """A command line that runs containers, and a folder for what it needs beside."""

    name: str
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    def __call__(
        self, *words: str | Path, seconds: float = 600, check: bool = True, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [self.name, *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, input=given, env=self.environment, check=False
        )
        if check and done.returncode:
            raise RuntimeError(
                f"{' '.join(command)[:300]}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
            )
        return done

    @property
    def environment(self) -> dict[str, str]:
        """The user's, less what compose files and images would take from it."""
        own = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "UV_", "COMPOSE_"))}
        return (
            own | {"DOCKER_BUILDKIT": "1"} | self.variables
        )  # clients before 23 build by BuildKit where it is asked for

    @cached_property
    def compose(self) -> list[str]:
        """The command of compose files: Docker's plugin, or podman-compose in an environment made for it."""
        if self.name == "docker":
            return ["docker", "compose"]
        found = shutil.which("podman-compose")
        if found is None:
            made = self.folder / "compose"
            subprocess.run([sys.executable, "-m", "venv", made], check=True)
            if subprocess.run([made / "bin" / "pip", "install", "--quiet", "podman-compose==1.6.0"]).returncode:
                raise NotHereError("podman-compose is not installed, and the package index does not give it")
            found = str(made / "bin" / "podman-compose")
        return [found]

    def inspect(self, name: str) -> dict[str, Any]:
        """What the engine knows of a container."""
        return dict(json.loads(self("container", "inspect", name).stdout)[0])

    def images(self) -> set[str]:
        """The names of the images that are there."""
        return set(self("images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split())

    def size(self, image: str) -> int:
        """The bytes of an image."""
        return int(json.loads(self("image", "inspect", image).stdout)[0]["Size"])

    def versions(self) -> str:
        """The engine's and its compose's version."""
        lines = (
            self("--version").stdout
            + subprocess.run([*self.compose, "version"], capture_output=True, text=True, check=True).stdout
        )
        return "; ".join(dict.fromkeys(lines.strip().splitlines()))

    @property
    def limits(self) -> dict[str, int]:
        """Limits that this user may give a container: an engine's own may be above them."""
        most = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        hard = {name: resource.getrlimit(number)[1] for name, number in most.items()}
        return {name: LIMIT if value == resource.RLIM_INFINITY else min(value, LIMIT) for name, value in hard.items()}


def find_engine(folder: Path, wanted: str | None = None) -> Engine:
    """The first engine that can be used here."""
    reasons = []
    for name in [wanted] if wanted else ["docker", "podman"]:
        asked = {"docker": ["docker", "compose", "version"], "podman": ["podman", "info"]}[name]
        if shutil.which(name) is None:
            reasons.append(f"{name} is not installed")
        elif name == "podman" and os.geteuid() != 0:
            reasons.append("podman is here, but not root")
        elif subprocess.run([name, "info"], capture_output=True).returncode:
            reasons.append(f"{name} has no engine that answers")
        elif subprocess.run(asked, capture_output=True).returncode:
            reasons.append(f"{name} has no compose")
        else:
            return Engine(name, folder)
    raise NotHereError("; ".join(reasons))


def until(condition: Callable[[], object], what: str, seconds: float = 180, lines: Any = lambda: "") -> None:
    """Return once ``condition`` holds; else what the ``lines`` are."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"{what} was not well within {seconds:.0f} s:\n{lines()}")
        time.sleep(1)


def scratch() -> Path:
    """A folder of this exercise."""
    return Path(tempfile.mkdtemp(prefix=f"{PROJECT}-"))
