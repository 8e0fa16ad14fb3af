"""Where a split's embeddings lie, small enough to travel with every piece of work."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from distributed import Client, WorkerPlugin

from congruence.tasks.embeddings.errors import StoreError

_options: dict[str, Mapping[str, Any]] = {"": {}}
_lock = Lock()


@dataclass(frozen=True)
class StoreAddress:
    """What a worker needs to open the embeddings of one split by one encoder; a few hundred bytes, no secrets.

    `store.open_store_cached` opens it.

    Attributes:
        uri: of the store.
        options: names the options of its file system, which a process knows or not (``share_options``); "" for none.
        encoder_key: the encoder, preprocessing, dimension and dtype, by digest.
        plan: the split and the shards that it is cut into, by their digests.
    """

    uri: str
    options: str
    encoder_key: str
    plan: str


def reference_to(options: Mapping[str, Any]) -> str:
    """A name for options of a file system that is no secret, though they may be: good in this process alone.

    Workers of a cluster know it by ``share_options``.
    """
    with _lock:
        for reference, known in _options.items():
            if _canonical(known) == _canonical(options):
                return reference
        reference = uuid.uuid4().hex
        _options[reference] = dict(options)
        return reference


def options_of(reference: str) -> Mapping[str, Any]:
    """The options that ``reference`` names.

    Raises:
        StoreError: nobody told this process.
    """
    try:
        return _options[reference]
    except KeyError:
        raise StoreError(
            "the storage options of the embeddings are not known in this process; call "
            "congruence.tasks.embeddings.addresses.share_options with the cluster's client before work is sent there"
        ) from None


def share_options(client: Client, options: Mapping[str, Any]) -> None:
    """Tell the workers of a cluster, those that join it later too, what ``reference_to(options)`` stands for."""
    if options:
        client.register_plugin(_StorageOptions(reference_to(options), dict(options)))


class _StorageOptions(WorkerPlugin):
    """Makes options known in a worker's process, when it starts or joins."""

    def __init__(self, reference: str, options: Mapping[str, Any]) -> None:
        self.name = f"congruence-storage-{reference}"
        self._reference, self._held = reference, options

    def __repr__(self) -> str:
        return f"<{self.name}>"

    def setup(self, worker: Any) -> None:  # noqa: ARG002
        """Called by the worker."""
        with _lock:
            _options[self._reference] = self._held


def _canonical(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True, default=repr)
