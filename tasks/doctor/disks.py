"""Free space where a run writes, against what the evaluation will write there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from congruence.tasks.doctor.findings import Finding, Step, fine, warning, wrong
from congruence.tasks.runtime.plain_text import readable

PLACE = "disk"
_LEAST, _LITTLE = 64 * 2**20, 2**30


def disks(home: Path, plan: Mapping[Path, int]) -> Iterator[Finding | Step]:
    """Free bytes of the file systems of ``home``, of temporary files and of every place of ``plan``.

    Args:
        home: the home folder.
        plan: local folders, and the bytes that a first run writes there at most.
    """
    yield Step("asking for free space", "see whether a network file system hangs (`df`)")
    places = dict.fromkeys(plan, "store") | {Path(tempfile.gettempdir()): "temporary files", home: "home"}
    systems: dict[int, list[Path]] = {}
    for place in places:
        systems.setdefault(os.stat(_there(place)).st_dev, []).append(place)
    for on in systems.values():
        free, wanted = shutil.disk_usage(_there(on[0])).free, sum(plan.get(place, 0) for place in on)
        shown = ", ".join(f"{place} ({places[place]})" for place in on)
        said = f"{readable(free)} free for {shown}"
        if wanted:
            said += f"; a first run of this file writes at most some {readable(wanted)} there"
        if free < _LEAST:
            yield wrong(PLACE, said, "make room (`congruence clean FILE`), or name folders on another disk")
        elif free < max(_LITTLE, 1.1 * wanted):
            yield warning(PLACE, said, "make room, or name folders on another disk (--home, store.uri, TMPDIR)")
        else:
            yield fine(PLACE, said)


def writable_home(home: Path) -> Iterator[Finding | Step]:
    """Write a file into the home folder, and delete it."""
    yield Step(f"writing to {home}", "make it writable for this user, or give another folder with --home")
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=home, prefix=".doctor-") as file:
        file.write(b"deleted at once")
        file.flush()
        os.fsync(file.fileno())
    yield fine("home", f"{home} can be written")


def _there(place: Path) -> Path:
    return next(part for part in (place, *place.parents) if part.exists())
