"""What runs left on disk or in a bucket and no run needs: listed with sizes, then removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

from congruence.tasks.cleanup.unused import Leftover, Named, leftovers
from congruence.tasks.embeddings.worker import encoder_key
from congruence.tasks.encoders.loading import asking_encoder
from congruence.tasks.evaluate.splits import open_planned, opened, store_uri, with_fitted_encoder
from congruence.tasks.runtime.files import alone
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.store.objects import ObjectStore, group_folder


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
    stores = {store_uri(each): each.store.storage_options for each in settings}
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
