"""Installs the project with its extras into the Python that runs this: `python infra/install.py images dev`.

With `--packages` first, only what the project needs, to be built and to run: a layer of an image without its source.

uv does it in a tenth of pip's time, so it is installed first; where it cannot be had, pip goes on alone. Both take the
versions in constraints.txt, and uv is given the user's pip settings, which it does not read. Standard library only.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ["--constraint", str(ROOT / "constraints.txt")]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
PLACES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "proxy": ("ALL_PROXY", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
}
"""Each setting of pip: uv's variable for it, and what separates several values there."""


def pip_settings() -> dict[str, str]:
    """What pip's files and variables say, as pip itself resolves them: later kinds of source win."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False).stdout
    order = ("global", "user", "site", "install", ":env:")
    ranked: dict[str, tuple[int, str]] = {}
    for line in listed.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        rank = order.index(section) if section in order else -1
        if rank >= ranked.get(name, (-1, ""))[0] and rank >= 0:
            ranked[name] = (rank, str(ast.literal_eval(value)))
    return {name: value for name, (_, value) in ranked.items()}


def uv_variables(settings: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """pip's settings in uv's words, but for those that the user gave uv already."""
    found: dict[str, str] = {}
    for name, (variable, separator) in PLACES.items():
        if name in settings and variable not in environment:
            found[variable] = separator.join(settings[name].split())
    if "UV_INDEX" in found and "UV_INDEX_STRATEGY" not in environment:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # pip looks at all its indexes, too
    return found


def uv_command() -> list[str] | None:
    """uv in this Python's environment, installed by pip if it is not there; None where it cannot be had."""
    if importlib.util.find_spec("uv") is None:
        command = [*PIP, "install", "--quiet", *CONSTRAINTS, "uv"]
        if subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode != 0:
            return None
    return [str(Path(sysconfig.get_path("scripts")) / "uv"), "pip"]


def torch_backend(uv: list[str], environment: dict[str, str]) -> list[str]:
    """`--torch-backend auto`, which picks PyTorch's build for this machine, where the index of its builds answers."""
    if "UV_TORCH_BACKEND" in environment or importlib.util.find_spec("torch") is not None:
        return []
    wanted = ["--torch-backend", "auto"]
    quick = environment | {"UV_HTTP_TIMEOUT": "10", "UV_HTTP_RETRIES": "0"}
    trial = [*uv, "install", "--dry-run", "--quiet", *CONSTRAINTS, *wanted, "torch"]
    if subprocess.run(trial, env=quick, check=False, capture_output=True).returncode == 0:
        return wanted
    print("The index of PyTorch builds did not answer; torch comes from your own index, maybe with CUDA (over 2 GB).")
    return []


def requirements(described: Mapping[str, Any], extras: Iterable[str]) -> Iterator[str]:
    """What pyproject.toml needs for building, for running and for some extras; extras may name further extras."""
    project, offered = described["project"], described["project"]["optional-dependencies"]
    if unknown := set(extras) - set(offered):
        raise SystemExit(f"{', '.join(sorted(unknown))}: no such extra; there are {', '.join(sorted(offered))}")
    waiting = [
        *described["build-system"]["requires"],
        *project["dependencies"],
        *(x for e in extras for x in offered[e]),
    ]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop(0)
        if requirement in seen:
            continue
        seen.add(requirement)
        if own := re.fullmatch(rf"{project['name']}\[(.+)\]", requirement):
            waiting += [item for extra in own[1].split(",") for item in offered[extra.strip()]]
        else:
            yield requirement


def main(arguments: list[str]) -> int:
    """Install, say how long it took, and return the installer's status."""
    started = time.monotonic()
    extras = [each for each in arguments if each != "--packages"]
    project = ["--editable", f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)]
    if "--packages" in arguments:
        project = sorted(requirements(tomllib.loads((ROOT / "pyproject.toml").read_text()), extras))
    uv = uv_command()
    if uv is None:
        print("uv cannot be installed here; pip takes its place, which takes some five minutes.", flush=True)
        status = subprocess.run([*PIP, "install", "--quiet", *CONSTRAINTS, *project], check=False).returncode
    else:
        print(f"Installing packages by uv into {sys.prefix} ...", flush=True)
        environment = {**os.environ, **uv_variables(pip_settings(), os.environ), "VIRTUAL_ENV": sys.prefix}
        backend = torch_backend(uv, environment) if "images" in extras and "gpu" not in extras else []
        command = [*uv, "install", "--quiet", *CONSTRAINTS, *backend, *project]
        status = subprocess.run(command, env=environment, check=False).returncode
    if status == 0:
        print(f"Installed in {time.monotonic() - started:.0f} s.", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
