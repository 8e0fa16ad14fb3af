"""What says that a shard is finished: its marker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from congruence.tasks.data.split import Shard
from congruence.tasks.runtime.files import DamagedError, sealed, unsealed


@dataclass(frozen=True)
class Marker:
    """A finished shard: where its data lies, under the digest of its content, and what became of its rows.

    Attributes:
        content: digest of the data object.
        size: its bytes.
        batch_size: rows that were embedded at a time, None where nobody said.
        reasons: why, for each invalid row, by row within the shard.
    """

    content: str
    size: int
    batch_size: int | None
    reasons: Mapping[int, str]

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


def _about(encoder_key: str, shard: Shard) -> dict[str, Any]:
    return {"encoder_key": encoder_key, "shard_digest": shard.digest, "rows": shard.rows}
