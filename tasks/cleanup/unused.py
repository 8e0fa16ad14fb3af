"""What earlier runs left in a home folder and in stores, and which of it the named splits still need."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from congruence.tasks.embeddings.objects import ObjectStore, StoredObject
from congruence.tasks.runtime.files import ENDING, abandoned

RECENT_SECONDS = 3600.0
"""What was written within the last hour may belong to a run, and stays, whatever it is."""
RECENT_ELSEWHERE_SECONDS = 24 * 3600.0
"""The same where other machines may write without holding a lock that this one sees: in object stores."""
_UNFINISHED = "unfinished files of processes that are gone"


@dataclass
class Named:
    """What evaluation files name.

    Attributes:
        splits: digests of the splits.
        shards: by the key of an encoder, the digests of the shards that it embeds.
    """

    splits: set[str] = field(default_factory=set)
    shards: dict[str, set[str]] = field(default_factory=dict)

    def add(self, split: str, encoder_key: str, shards: Iterable[str]) -> None:
        """A split that is embedded by an encoder."""
        self.splits.add(split)
        self.shards.setdefault(encoder_key, set()).update(shards)

    def has_split(self, beginning: str) -> bool:
        """Whether one of the splits has a digest that begins so."""
        return any(split.startswith(beginning) for split in self.splits)


@dataclass(frozen=True)
class Leftover:
    """Objects of one kind that belong together and that no named split needs.

    Attributes:
        kind: what they are.
        name: which.
        place: the folder or store.
        keys: of the objects there, in the order in which they are to go: a marker before what it vouches for.
        size: bytes of all.
        modified: when the youngest was written, seconds since 1970.
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


def leftovers(
    homes: Iterable[Path], stores: Iterable[ObjectStore], named: Named, predictions: bool = False
) -> list[Leftover]:
    """What may go, largest first within each kind; recent ones too, which stay (`Leftover.is_recent`).

    Embeddings, predictions, iterates and indexes can all be made again from the data and the registry, at the price of
    the time that it took; what was logged, and what people wrote, is never listed.

    Args:
        homes: the home folders.
        stores: where embeddings are kept.
        named: what is still needed.
        predictions: list those of the named splits too.
    """
    found = [
        *(part for store in stores for part in _in_store(store, named, predictions)),
        *(part for home in homes for part in _in_home(ObjectStore(str(home), {}), named, predictions)),
    ]
    return sorted(found, key=lambda part: (part.kind, -part.size))


def _in_store(store: ObjectStore, named: Named, predictions: bool) -> Iterator[Leftover]:
    encoders: dict[str, str] = {}

    def group(key: str) -> tuple[str, str] | None:
        first, *rest = key.split("/")
        if first == "predictions" and rest:
            return None if named.has_split(rest[0]) and not predictions else ("predictions", f"of split {rest[0][:16]}")
        if first == "measurements" and rest:
            return None if named.has_split(rest[0].split("-")[0]) else ("iterates", f"measured on split {rest[0][:16]}")
        if first == "pictures" and rest:
            return None if named.has_split(rest[0]) else ("picture statistics", f"of split {rest[0][:16]}")
        if not rest or not _is_digest(first) or _is_needed(rest, named.shards.get(first)):
            return None
        if first not in encoders:
            encoders[first] = _encoder_id(store, first)
        return "embeddings", f"by {encoders[first]} ({first[:8]})"

    yield from _grouped(store, store.objects(), group)
    yield from _unfinished(store, [".incoming"])


def _is_needed(key: list[str], shards: set[str] | None) -> bool:
    """Whether an object below an encoder's key is one of the named splits'."""
    if shards is None:
        return False
    if key[0] == "done":
        return key[1].removesuffix(".json") in shards
    if key[0] == "shards" and len(key) > 2:
        return key[1].split("-")[0] in shards
    return True


def _in_home(home: ObjectStore, named: Named, predictions: bool) -> Iterator[Leftover]:
    def of_predictions(key: str) -> tuple[str, str] | None:
        split = key.split("/")[1].split("-")[0]
        return None if named.has_split(split) and not predictions else ("predictions", f"of split {split}")

    def of_looks(key: str) -> tuple[str, str] | None:
        # Beside rows of which keys were counted before are copies of what MLflow holds, which watchers read again.
        return ("rows of looks", "that were made") if key.endswith(".parquet") else None

    indexed = _index_files(home, named)
    rules: dict[str, Callable[[str], tuple[str, str] | None]] = {
        "predictions": of_predictions,
        "solves": lambda _: ("iterates", "of solves that ended early"),
        "plans": lambda key: (
            None if Path(key).name.partition(".")[0] in indexed else ("indexes", "of splits or states of their files")
        ),
        "looks": of_looks,
    }
    for folder, rule in rules.items():
        yield from _grouped(home, home.objects(folder), rule)
    yield from _unfinished(home, rules)


def _index_files(home: ObjectStore, named: Named) -> set[str]:
    """The names, less endings, of the files of named splits: their manifests, and the parts that these name."""
    kept: set[str] = set()
    for key in home.objects("plans"):
        if not key.endswith(".json"):
            continue
        record = _record(home.get(key))
        if record.get("digest") in named.splits:
            parts = [Path(part).stem for part in record.get("parts", [])]
            kept.update([Path(key).stem, *parts])
    return kept


def _record(content: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(content or b"{}")
        return found if isinstance(found, dict) else {}
    except ValueError:
        return {}


def _grouped(
    place: ObjectStore, objects: dict[str, StoredObject], group: Callable[[str], tuple[str, str] | None]
) -> Iterator[Leftover]:
    found: dict[tuple[str, str], list[str]] = {}
    for key in objects:
        if not key.endswith(ENDING) and (label := group(key)) is not None:
            found.setdefault(label, []).append(key)
    for (kind, name), keys in found.items():
        size = sum(objects[key].size for key in keys)
        yield Leftover(kind, name, place, sorted(keys, key=_order), size, max(objects[key].modified for key in keys))


def _unfinished(place: ObjectStore, folders: Iterable[str]) -> Iterator[Leftover]:
    """Half-written files; object stores have none."""
    if not place.is_local:
        return
    root = Path(place.uri)
    for folder in folders:
        inside = [root / folder, *(path for path in (root / folder).rglob("*") if path.is_dir())]
        paths = [path for part in inside for path in abandoned(part)]
        if paths:
            size = sum(path.stat().st_size for path in paths)
            yield Leftover(_UNFINISHED, f"in {folder}", place, [str(path.relative_to(root)) for path in paths], size, 0)


def _order(key: str) -> tuple[bool, str]:
    return "/done/" not in f"/{key}", key


def _is_digest(name: str) -> bool:
    return len(name) == 32 and all(character in "0123456789abcdef" for character in name)


def _encoder_id(store: ObjectStore, key: str) -> str:
    return str(_record(store.get(f"{key}/zarr.json")).get("attributes", {}).get("encoder_id", "an unknown encoder"))
