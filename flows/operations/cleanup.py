"""What runs left on disk or in a bucket and no run needs: listed with sizes, then removed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from congruence.tasks.embeddings.worker import encoder_key
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.evaluate.splits import open_planned, with_fitted_encoder
from congruence.tasks.evaluate.stored import opened
from congruence.tasks.runtime.files import ENDING, abandoned, alone
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.store.objects import ObjectStore, StoredObject, group_folder


def clean(
    settings: Sequence[EvaluationSettings], may_remove: Callable[[int], bool], *, predictions: bool = False
) -> list[Leftover]:
    """List what no evaluation by ``settings`` needs, and remove it if one may.

    Args:
        settings: of evaluation files.
        may_remove: asked once, with the number of bytes, where there is something to remove.
        predictions: include those on the splits of ``settings``.

    Returns:
        What was removed.

    Raises:
        InUseError: a run works in a home folder or in a local store.
        CongruenceError: a split that cannot be opened, so that nobody knows what belongs to it.
    """
    homes = sorted({each.home_folder for each in settings})
    stores = {each.store_uri: each.store.storage_options for each in settings}
    places = [ObjectStore(uri, options) for uri, options in stores.items()]
    named = _named(settings)
    with alone(*homes, *(store.uri for store in places if store.is_local)):
        found = leftovers(homes, places, named, predictions)
        going = [part for part in found if not part.is_recent]
        _print(found)
        size = sum(part.size for part in going)
        if not going or not may_remove(size):
            typer.echo("nothing was removed" if found else "nothing is left over")
            return []
        for part in going:
            part.remove()
        typer.echo(f"removed {readable(size)}")
        return going


def _named(settings: Sequence[EvaluationSettings]) -> Named:
    named = Named()
    for each in map(opened, settings):
        encoder = with_fitted_encoder(each).encoder
        key = encoder_key(asking_encoder(encoder), each.store)
        for chosen in each.all_splits:
            split = open_planned(chosen, each)
            named.add(split.digest, (shard.digest for shard in split.shards), group_folder(key, split))
    return named


def _print(found: Sequence[Leftover]) -> None:
    for part in found:
        kept = ": kept (modified recently)" if part.is_recent else ""
        typer.echo(f"{readable(part.size):>10}  {part.kind} {part.name}, {part.place.uri}{kept}")


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def readable(size: float) -> str:
    """A number of bytes for people."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


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
        shards: digests of their shards.
        groups: where in a store the embeddings of one of them lie.
    """

    splits: set[str] = field(default_factory=set)
    shards: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)

    def add(self, split: str, shards: Iterable[str], group: str) -> None:
        """A split, and the ``group_folder`` of its embeddings by an encoder."""
        self.splits.add(split)
        self.shards.update(shards)
        self.groups.add(group)

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
        keys: of the objects there.
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

    Embeddings, predictions, measurements and indexes can all be made again from the data and the registry, at the price
    of the time that it took; what was logged, and what people wrote, is never listed.

    Args:
        homes: the home folders.
        stores: where embeddings are kept.
        named: what is still needed.
        predictions: list those of the named splits too.
    """
    found = [
        *(part for store in stores for part in _in_store(store, named, predictions)),
        *(part for home in homes for part in _in_home(ObjectStore(str(home), {}), named)),
    ]
    return sorted(found, key=lambda part: (part.kind, -part.size))


def _in_store(store: ObjectStore, named: Named, predictions: bool) -> Iterator[Leftover]:
    encoders: dict[str, str] = {}

    def group(key: str) -> tuple[str, str] | None:
        first, *rest = key.split("/")
        if first == "predictions" and rest:
            needed = rest[-1].partition("-")[0] in named.shards and not predictions
            return None if needed else ("predictions", f"by {rest[0].rpartition('-')[0] or rest[0]}")
        if first == "measurements" and rest:
            return None if named.has_split(rest[0].split("-")[0]) else ("measurements", f"on split {rest[0][:16]}")
        if first == "pictures" and rest:
            return None if named.has_split(rest[0]) else ("picture statistics", f"of split {rest[0][:16]}")
        if not rest or not _is_digest(first) or f"{first}/{rest[0]}" in named.groups:
            return None
        if rest[0] == "batch_size" and first in {folder.partition("/")[0] for folder in named.groups}:
            return None
        if first not in encoders:
            encoders[first] = _encoder_id(store, [key for key in objects if key.startswith(f"{first}/")])
        return "embeddings", f"by {encoders[first]} ({first[:8]})"

    objects = store.objects()
    yield from _grouped(store, objects, group)
    yield from _unfinished(store, [""])


def _in_home(home: ObjectStore, named: Named) -> Iterator[Leftover]:
    def of_looks(key: str) -> tuple[str, str] | None:
        # Beside rows of which keys were counted before are copies of what MLflow holds, which watchers read again.
        return ("rows of looks", "that were made") if key.endswith(".parquet") else None

    indexed = _index_files(home, named)
    rules: dict[str, Callable[[str], tuple[str, str] | None]] = {
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
        yield Leftover(kind, name, place, sorted(keys), size, max(objects[key].modified for key in keys))


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
            yield Leftover(
                _UNFINISHED,
                f"in {folder or place.uri}",
                place,
                [str(path.relative_to(root)) for path in paths],
                size,
                0,
            )


def _is_digest(name: str) -> bool:
    return len(name) == 32 and all(character in "0123456789abcdef" for character in name)


def _encoder_id(store: ObjectStore, keys: Iterable[str]) -> str:
    groups = (key for key in keys if key.endswith("/zarr.json") and key.count("/") < 3)
    said = (_record(store.get(key)).get("attributes", {}).get("encoder_id") for key in groups)
    return next((str(name) for name in said if name), "an unknown encoder")
