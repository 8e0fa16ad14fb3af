"""Shard plans that were made before: found again for as long as no file of the split has changed."""

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from congruence.tasks.sources.digests import combine
from congruence.tasks.sources.files import file_state
from congruence.tasks.sources.inputs import InputColumns
from congruence.tasks.sources.locations import Location
from congruence.tasks.sources.settings import SplitSettings
from congruence.tasks.sources.split import Shard
from congruence.tasks.sources.tables import Table

_FORMAT = 1


@dataclass(frozen=True)
class Plan:
    """The shards of a split and the digest of its content."""

    shards: list[Shard]
    digest: str


@dataclass(frozen=True)
class KeptPlan:
    """The file that keeps a plan, named by the settings and the state of every file that the split consists of."""

    path: Path

    @classmethod
    def of(
        cls, folder: Path, settings: SplitSettings, table: Table, inputs: InputColumns, location: Location
    ) -> "KeptPlan":
        """Where the plan of this split in its present state is kept. Looks at files, reads none of their content."""
        described = settings.model_dump_json(exclude={"name", "uri", "storage_options"})
        parts = (part.encode() for part in (str(_FORMAT), described, *_states(table, inputs, location)))
        return cls(folder / f"{combine(parts)}.json")

    def load(self) -> Plan | None:
        """The plan, None where none is kept or what is kept is damaged."""
        try:
            content = json.loads(self.path.read_text())
            plan = Plan([Shard(**shard) for shard in content["shards"]], content["digest"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return plan if content.get("checksum") == _checksum(plan) else None

    def save(self, plan: Plan) -> None:
        """Keep ``plan``, whole or not at all."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{uuid.uuid4().hex}")
        temporary.write_text(json.dumps({**asdict(plan), "checksum": _checksum(plan)}))
        os.replace(temporary, self.path)


def _states(table: Table, inputs: InputColumns, location: Location) -> Iterator[str]:
    for path in table.files():
        yield path
        yield file_state(location.filesystem, path, location.is_local)
    for batch in table.batches(inputs.columns, 0, table.rows) if inputs.lie_outside else ():
        yield from inputs.outer_states(batch)


def _checksum(plan: Plan) -> str:
    return combine([json.dumps(asdict(plan), sort_keys=True).encode()])
