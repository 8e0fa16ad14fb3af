"""Where a store may lie, and how what lies there may be damaged."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from congruence.tasks.store.objects import ObjectStore


@dataclass
class Place:
    """A folder, a bucket, or memory; a test damages what lies there."""

    uri: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def objects(self) -> ObjectStore:
        return ObjectStore(self.uri, self.options)

    def content(self, folder: str = "") -> dict[str, bytes]:
        store = self.objects
        return {key: store.get(key) or b"" for key in sorted(store.objects(folder))}


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda data: data[:-1],
    "one bit": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "a byte within": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 255]) + data[len(data) // 2 + 1 :]
    ),
    "noise": lambda data: b"damaged",
}
