"""What says that shards are finished: a marker for each, and one summary of all markers of a finished split."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

from congruence.tasks.data.split import Shard

DIGITS = 32


class DamagedError(Exception):
    """A marker or summary that is cut off, changed, or about something else: says which."""


def digest_of(value: Any) -> str:
    """32 hexadecimal digits for a value that JSON can hold."""
    return content_digest(json.dumps(value, sort_keys=True).encode())


def content_digest(data: bytes) -> str:
    """32 hexadecimal digits (128 bits of SHA-256) for the bytes of an object."""
    return sha256(data).hexdigest()[:DIGITS]


def sealed(content: Mapping[str, Any]) -> bytes:
    """``content`` as JSON with a checksum of itself."""
    return json.dumps({**content, "checksum": digest_of(dict(content))}, sort_keys=True).encode()


def unsealed(data: bytes) -> dict[str, Any]:
    """What ``sealed`` was given.

    Raises:
        DamagedError: not JSON, or without its checksum.
    """
    try:
        content: dict[str, Any] = json.loads(data)
        checksum = content.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedError("is damaged") from error
    if checksum != digest_of(content):
        raise DamagedError("is damaged")
    return content


@dataclass(frozen=True)
class Entry:
    """Where a finished shard's data lies, and which of its rows, counted within it, are invalid."""

    content: str
    invalid: frozenset[int]


@dataclass(frozen=True)
class Marker:
    """A finished shard: where its data lies, under the digest of its content, and what became of its rows.

    Attributes:
        content: digest of the data object.
        size: its bytes.
        valid_rows: how many rows have an embedding.
        rounding_error: the largest relative error of a stored row, 0 for float32.
        batch_size: rows that were embedded at a time, None where nobody said.
        reasons: why, for each invalid row, by row within the shard.
    """

    content: str
    size: int
    valid_rows: int
    rounding_error: float
    batch_size: int | None
    reasons: Mapping[int, str]

    @property
    def entry(self) -> Entry:
        """What reading needs of it."""
        return Entry(self.content, frozenset(self.reasons))

    def to_bytes(self, encoder_key: str, shard: Shard) -> bytes:
        """The marker's object."""
        reasons = {str(row): reason for row, reason in sorted(self.reasons.items())}
        return sealed({**vars(self), "reasons": reasons, **_about(encoder_key, shard)})

    @classmethod
    def parse(cls, data: bytes, encoder_key: str, shard: Shard) -> Marker:
        """The marker of ``shard`` in ``data``; raises DamagedError where it is none."""
        content = unsealed(data)
        for name, value in _about(encoder_key, shard).items():
            if content.pop(name, None) != value:
                raise DamagedError(f"is of another {name}")
        try:
            return cls(**{**content, "reasons": {int(row): reason for row, reason in content["reasons"].items()}})
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise DamagedError("is damaged") from error


@dataclass(frozen=True)
class Summary:
    """All markers of a finished split, shard by shard; ``reasons`` by row of the split, in order."""

    contents: Sequence[str]
    valid_rows: Sequence[int]
    rounding_errors: Sequence[float]
    reasons: Mapping[int, str]

    @classmethod
    def of(cls, shards: Sequence[Shard], markers: Sequence[Marker]) -> Summary:
        """The summary of the markers of ``shards``."""
        reasons = {
            shard.start + row: marker.reasons[row]
            for shard, marker in zip(shards, markers, strict=True)
            for row in sorted(marker.reasons)
        }
        return cls(
            [marker.content for marker in markers],
            [marker.valid_rows for marker in markers],
            [marker.rounding_error for marker in markers],
            reasons,
        )

    def rows_between(self, start: int, stop: int) -> list[int]:
        """The invalid ones of the split's rows ``start`` to ``stop``."""
        return self._invalid[bisect_left(self._invalid, start) : bisect_left(self._invalid, stop)]

    def entry(self, shard: Shard) -> Entry:
        """What reading ``shard`` needs of it."""
        invalid = (row - shard.start for row in self.rows_between(shard.start, shard.stop))
        return Entry(self.contents[shard.index], frozenset(invalid))

    @cached_property
    def _invalid(self) -> list[int]:
        return list(self.reasons)

    def to_bytes(self, encoder_key: str, shards: Sequence[Shard]) -> bytes:
        """The summary's object; rows with the same reason stand together."""
        rows: dict[str, list[int]] = {}
        for row, reason in self.reasons.items():
            rows.setdefault(reason, []).append(row)
        content = {
            "contents": "".join(self.contents),
            "valid_rows": list(self.valid_rows),
            "rounding_errors": list(self.rounding_errors) if any(self.rounding_errors) else [],
            "reasons": rows,
        }
        return sealed({**content, "encoder_key": encoder_key, "shards": shards_digest(shards)})

    @classmethod
    def parse(cls, data: bytes, encoder_key: str, shards: Sequence[Shard]) -> Summary:
        """The summary in ``data``; raises DamagedError where it is damaged or of other shards than these."""
        content = unsealed(data)
        if content.get("encoder_key") != encoder_key or content.get("shards") != shards_digest(shards):
            raise DamagedError("is of other shards")
        contents, count = content["contents"], len(shards)
        reasons = {row: reason for reason, rows in content["reasons"].items() for row in rows}
        return cls(
            [contents[at * DIGITS : (at + 1) * DIGITS] for at in range(count)],
            content["valid_rows"],
            content["rounding_errors"] or [0.0] * count,
            dict(sorted(reasons.items())),
        )


def shards_digest(shards: Sequence[Shard]) -> str:
    """The digest of the list of shards: which, of how many rows, in which order."""
    return digest_of([[shard.digest, shard.rows] for shard in shards])


def _about(encoder_key: str, shard: Shard) -> dict[str, Any]:
    return {"encoder_key": encoder_key, "shard_digest": shard.digest, "rows": shard.rows}
