"""Installed packages against the pairs that install together, pass `pip check`, and fail when they run."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from congruence.tasks.doctor.findings import Finding, fine, wrong

PLACE = "packages"
_INSTALL = "install the versions that were tested together: pip install -c constraints.txt 'congruence[pipeline]'"


@dataclass(frozen=True)
class Break:
    """Two versions that pip lets stand beside each other though the first fails with the second.

    ``of`` and ``by`` are requirements: where the first is met and the second is not, ``what`` happens.
    """

    of: str
    by: str
    what: str


BREAKS = (
    Break("prefect>=3.8,<3.9", "fastapi<0.151", "every flow ends as it starts (TypeError: Body() got 'min_items')"),
    Break(
        "prefect>=3.8,<3.10", "sqlalchemy<2.1", "scheduled runs are never created, which only the server's log tells"
    ),
    Break("dask-cuda>=0", "rmm-cu13>=0", "a cluster of cards cannot have its pool of memory"),
    Break("dask-cuda>=0", "cuda-bindings>=0", "dask_cuda cannot be imported"),
)
_CHECKED = (
    "congruence",
    "torchvision",
    "open_clip_torch",
    "distributed",
    "prefect",
    "prefect-dask",
    "mlflow",
    "zarr",
    "s3fs",
    "dask-cuda",
    "rapids-dask-dependency",
)
"""Whose stated requirements are compared, too: an upgrade of one of theirs does not tell them."""
COMPARED = (
    "congruence",
    "python",
    "dask",
    "distributed",
    "cloudpickle",
    "msgpack",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "torch",
    "mlflow",
    "prefect",
    "zarr",
    "pydantic",
)
"""What workers must have in the version of the process that sends them work: it is pickled on one side and read on the
other."""


@cache
def installed(name: str) -> str | None:
    """The version of a distribution; None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def package_pairs() -> Iterator[Finding]:
    """Compare what is installed with ``BREAKS``, and with what the most entangled packages say that they need."""
    found = [*_broken(), *_unmet()]
    yield from found
    if not found:
        shown = ", ".join(f"{name} {installed(name)}" for name in ("congruence", "mlflow", "prefect", "dask", "torch"))
        yield fine(PLACE, f"{shown} and their neighbours fit together")


def _broken() -> Iterator[Finding]:
    for pair in BREAKS:
        of, by = Requirement(pair.of), Requirement(pair.by)
        if _meets(of.name, of.specifier) and not _meets(by.name, by.specifier):
            there = f"{by.name} {installed(by.name)}" if installed(by.name) else f"no {by.name}"
            remedy = _INSTALL if installed(by.name) else f"pip install -c constraints.txt {by.name}"
            yield wrong(PLACE, f"{of.name} {installed(of.name)} with {there}: {pair.what}", remedy)


def _unmet() -> Iterator[Finding]:
    for name in _CHECKED:
        for text in (requires(name) or []) if installed(name) else []:
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
                continue
            if installed(needed.name) and not _meets(needed.name, needed.specifier):
                found = (
                    f"{name} {installed(name)} needs {needed.name}{needed.specifier}, found {installed(needed.name)}"
                )
                yield wrong(PLACE, found, _INSTALL)


def _meets(name: str, allowed: SpecifierSet) -> bool:
    found = installed(name)
    # 2.13.0+cpu satisfies a requirement of 2.13.0.
    return found is not None and allowed.contains(Version(found).public, prereleases=True)


def cuda_versions() -> dict[str, int]:
    """The major version of CUDA that each installed package was built for; 0 for a torch of processors alone.

    Nothing of them is loaded.
    """
    found: dict[str, int] = {}
    for name in ("cupy-cuda", "rmm-cu", "distributed-ucxx-cu"):
        for major in (11, 12, 13, 14):
            if installed(f"{name}{major}{'x' if name == 'cupy-cuda' else ''}"):
                found[name.rpartition("-")[0]] = major
    if (torch := find_spec("torch")) is not None and torch.origin is not None:
        text = (Path(torch.origin).parent / "version.py").read_text()
        built = re.search(r"^cuda\b[^=]*=\s*['\"](\d+)", text, re.MULTILINE)
        found["torch"] = int(built[1]) if built else 0
    return found


def own_versions() -> dict[str, str | None]:
    """The installed versions of the packages that are ``COMPARED``, and of Python as ``python``."""
    return {name: platform.python_version() if name == "python" else installed(name) for name in COMPARED}


def unlike(ours: Mapping[str, str | None], theirs: Mapping[str, str | None]) -> dict[str, str]:
    """Packages of other versions, as ``ours, there theirs``; of Python only minor versions differ."""
    different = {}
    for name in sorted(ours.keys() & theirs.keys()):
        one, other = ours[name], theirs[name]
        if name == "python":
            one, other = (str(value).rpartition(".")[0] for value in (one, other))
        if one is not None and other is not None:
            one, other = one.partition("+")[0], other.partition("+")[0]
        if one != other:
            different[name] = f"{name} {one or 'missing'} here and {other or 'missing'} there"
    return different
