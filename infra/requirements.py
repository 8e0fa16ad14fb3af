"""The requirements of some extras of pyproject.toml, one a line, without the package itself: a layer of an image.

python infra/requirements.py pipeline s3 postgresql
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path


def requirements(project: dict[str, object], extras: Iterable[str]) -> Iterator[str]:
    """What the project and those of its extras need; extras that name the project's own extras bring these too."""
    name, offered = project["name"], project["optional-dependencies"]
    assert isinstance(offered, dict)
    assert isinstance(project["dependencies"], list)
    waiting = [*project["dependencies"]]
    for extra in extras:
        if extra not in offered:
            raise SystemExit(f"{extra}: there is no such extra; there are {', '.join(sorted(offered))}")
        waiting += offered[extra]
    seen: set[str] = set()
    while waiting:
        requirement = waiting.pop(0)
        if requirement in seen:
            continue
        seen.add(requirement)
        if own := re.fullmatch(rf"{name}\[(.+)\]", requirement):
            waiting += [item for extra in own[1].split(",") for item in offered[extra.strip()]]
        else:
            yield requirement


if __name__ == "__main__":
    places = [Path("pyproject.toml"), Path(__file__).resolve().parents[1] / "pyproject.toml"]
    text = next(place for place in places if place.exists()).read_text()
    print("\n".join(sorted(requirements(tomllib.loads(text)["project"], sys.argv[1:]))))
