"""What runs left on disk or in a bucket and no run needs: listed with sizes, then removed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer
from dask.utils import format_bytes

from congruence.tasks.data.split import open_split
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.evaluate.plan import with_fitted_encoder
from congruence.tasks.evaluate.stored import opened
from congruence.tasks.runtime.files import ENDING, abandoned, alone, digest_of
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.store.embeddings import group_folder, store_header
from congruence.tasks.store.objects import ObjectStore, StoredObject

RECENT_SECONDS = 3600.0
"""What was written within the last hour may belong to a run, and stays, whatever it is."""
RECENT_ELSEWHERE_SECONDS = 24 * 3600.0
"""The same where other machines may write without holding a lock that this one sees: in object stores."""
_UNFINISHED = "unfinished files of processes that are gone"
_Label = tuple[str, str]
"""Of what kind an object is, and which."""


@dataclass(frozen=True)
class Leftover:
    """Objects of one kind that belong together and that no named split needs: so many bytes in a folder or store.

    ``modified`` is when the youngest was written, in seconds since 1970.
    """

    kind: str
    name: str
    place: ObjectStore = field(repr=False)
    keys: list[str] = field(repr=False)
    size: int
    modified: float

    @property
    def is_recent(self) -> bool:
        """Whether a run that is under way may have written it."""
        limit = RECENT_SECONDS if self.place.is_local else RECENT_ELSEWHERE_SECONDS
        return self.kind != _UNFINISHED and time.time() - self.modified < limit

    def remove(self) -> None:
        """Remove the objects, and local folders that are empty then."""
        self.place.remove(self.keys)
        self.place.remove_empty_folders(self.keys)


def clean(
    settings: Sequence[EvaluationSettings], may_remove: Callable[[int], bool], *, predictions: bool = False
) -> list[Leftover]:
    """List what no evaluation by ``settings`` needs, largest first within each kind, and remove it if one may.

    Embeddings, predictions, measurements and indexes can all be made again from the data and the registry, at the price
    of the time that it took; what was logged, and what people wrote, is never listed. With ``predictions`` also those
    on the splits of ``settings``. ``may_remove`` is asked once, with the number of bytes; what was removed is returned.

    Raises:
        InUseError: a run works in a home folder or in a local store.
        CongruenceError: a split that cannot be opened, so that nobody knows what belongs to it.
    """
    homes = sorted({each.home_folder for each in settings})
    stores = {each.store_uri: each.store.storage_options for each in settings}
    places = [ObjectStore(uri, options) for uri, options in stores.items()]
    splits, shards, groups = _named(settings)
    with alone(*homes, *(store.uri for store in places if store.is_local)):
        found = [
            part for store in places for part in _in_store(store, splits, set() if predictions else shards, groups)
        ]
        found += [part for home in homes for part in _in_home(ObjectStore(str(home), {}), splits)]
        found.sort(key=lambda part: (part.kind, -part.size))
        for part in found:
            stays = ": kept (modified recently)" if part.is_recent else ""
            typer.echo(f"{format_bytes(part.size):>10}  {part.kind} {part.name}, {part.place.uri}{stays}")
        going = [part for part in found if not part.is_recent]
        size = sum(part.size for part in going)
        if not going or not may_remove(size):
            typer.echo("nothing was removed" if found else "nothing is left over")
            return []
        for part in going:
            part.remove()
        typer.echo(f"removed {format_bytes(size)}")
        return going


def _named(settings: Sequence[EvaluationSettings]) -> tuple[set[str], set[str], set[str]]:
    """What evaluation files name: digests of splits and of their shards, and where in a store their embeddings lie."""
    splits, shards, groups = set[str](), set[str](), set[str]()
    for each in map(opened, settings):
        key = digest_of(store_header(asking_encoder(with_fitted_encoder(each).encoder), each.store.dtype))
        for chosen in each.all_splits:
            split = open_split(chosen, each.plans_folder)
            splits.add(split.digest)
            shards |= {shard.digest for shard in split.shards}
            groups.add(group_folder(key, split.digest, split.shards))
    return splits, shards, groups


def _in_store(store: ObjectStore, splits: set[str], shards: set[str], groups: set[str]) -> Iterator[Leftover]:
    objects, encoders = store.objects(), dict[str, str]()
    beginnings, used = {split[:16] for split in splits}, {folder.partition("/")[0] for folder in groups}

    def label(key: str) -> _Label | None:
        first, *rest = key.split("/")
        if not rest:
            return None
        if first == "predictions":
            by = f"by {rest[0].rpartition('-')[0] or rest[0]}"
            return None if rest[-1].partition("-")[0] in shards else ("predictions", by)
        for kind, folder in (("measurements", "measurements"), ("picture statistics", "pictures")):
            if first == folder:
                return None if rest[0][:16] in beginnings else (kind, f"of split {rest[0][:16]}")
        is_embedding = len(first) == 32 and set(first) <= set("0123456789abcdef")
        if not is_embedding or f"{first}/{rest[0]}" in groups or (rest[0] == "batch_size" and first in used):
            return None
        if first not in encoders:
            encoders[first] = _encoder_id(store, [key for key in objects if key.startswith(f"{first}/")])
        return "embeddings", f"by {encoders[first]} ({first[:8]})"

    yield from _grouped(store, objects, label)
    yield from _unfinished(store, [""])


def _in_home(home: ObjectStore, splits: set[str]) -> Iterator[Leftover]:
    plans, looks = home.objects("plans"), home.objects("looks")
    indexed: set[str] = set()  # names, less endings: of manifests of named splits, and of the parts that these name
    for key in plans:
        record = _record(home.get(key)) if key.endswith(".json") else {}
        if record.get("digest") in splits:
            indexed.update([Path(key).stem, *(Path(part).stem for part in record.get("parts", []))])
    indexes = "indexes", "of splits or states of their files"
    yield from _grouped(home, plans, lambda key: None if Path(key).name.partition(".")[0] in indexed else indexes)
    # Beside rows of which keys were counted before are copies of what MLflow holds, which watchers read again.
    made = "rows of looks", "that were made"
    yield from _grouped(home, looks, lambda key: made if key.endswith(".parquet") else None)
    yield from _unfinished(home, ("plans", "looks"))


def _record(content: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(content or b"{}")
        return found if isinstance(found, dict) else {}
    except ValueError:
        return {}


def _grouped(
    place: ObjectStore, objects: dict[str, StoredObject], group: Callable[[str], _Label | None]
) -> Iterator[Leftover]:
    found: dict[_Label, list[str]] = {}
    for key in objects:
        if not key.endswith(ENDING) and (label := group(key)) is not None:
            found.setdefault(label, []).append(key)
    for (kind, name), keys in found.items():
        size = sum(objects[key].size for key in keys)
        yield Leftover(kind, name, place, sorted(keys), size, max(objects[key].modified for key in keys))


def _unfinished(place: ObjectStore, folders: Iterable[str]) -> Iterator[Leftover]:
    """Half-written files; object stores have none."""
    root = Path(place.uri)
    for folder in folders if place.is_local else ():
        inside = [root / folder, *(path for path in (root / folder).rglob("*") if path.is_dir())]
        paths = [path for part in inside for path in abandoned(part)]
        if paths:
            keys, size = [str(path.relative_to(root)) for path in paths], sum(path.stat().st_size for path in paths)
            yield Leftover(_UNFINISHED, f"in {folder or place.uri}", place, keys, size, 0)


def _encoder_id(store: ObjectStore, keys: Iterable[str]) -> str:
    groups = (key for key in keys if key.endswith("/zarr.json") and key.count("/") < 3)
    said = (_record(store.get(key)).get("attributes", {}).get("encoder_id") for key in groups)
    return next((str(name) for name in said if name), "an unknown encoder")
