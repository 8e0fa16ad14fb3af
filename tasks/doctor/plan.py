"""How much a first run of an evaluation writes, by the rows and features of its splits, without reading them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from congruence.kernels.errors import CongruenceError
from congruence.tasks.compact_clip.location import WEIGHTS
from congruence.tasks.data.index import source_files
from congruence.tasks.data.opening import open_kept
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.doctor.findings import Finding, Step, fine, wrong
from congruence.tasks.encoders.settings import EncoderSettings
from congruence.tasks.settings.evaluation import EvaluationSettings

PLACE = "data"
INDEX_BYTES, PREDICTION_BYTES = 25, 30
"""Of a row; of a row and version of a normal law (`infra/CAPACITY.md`)."""
ASSUMED_FEATURES = 1024
_MOST_FOOTERS = 200


@dataclass(frozen=True)
class Written:
    """Bytes that a first run writes at most: into the home folder, and into the store."""

    home: int
    store: int


def data(settings: EvaluationSettings) -> Iterator[Finding | Step]:
    """Whether the files of every split are there."""
    for split in settings.all_splits:
        yield Step(
            f"looking for the files of split '{split.name}'", "see whether uri: is right and can be read from here"
        )
        try:
            files = source_files(split)
        except CongruenceError as error:
            yield wrong(PLACE, str(error), "")
            continue
        yield fine(PLACE, f"split '{split.name}' has {len(files)} file{'s' if len(files) != 1 else ''}")


def written(settings: EvaluationSettings, home: Path) -> Written | None:
    """What a first run writes; None where nobody knows the rows yet."""
    rows = [_rows(split, home) for split in settings.all_splits]
    if any(count is None for count in rows):
        return None
    total = sum(count or 0 for count in rows)
    features = _features(settings.encoder, settings) or ASSUMED_FEATURES
    width = 2 if settings.store.dtype == "float16" else 4
    versions = max(1, len(settings.models))
    return Written(INDEX_BYTES * total, total * (width * features + PREDICTION_BYTES * versions))


def _rows(split: SplitSettings, home: Path) -> int | None:
    """By the index of an earlier run, else by the footers of Parquet files on this machine."""
    try:
        kept = open_kept(split, home / "plans")
        if kept is not None:
            return kept.rows
        files = source_files(split)
    except CongruenceError:
        return None
    if len(files) > _MOST_FOOTERS or not all(file.endswith(".parquet") and Path(file).is_file() for file in files):
        return None
    import pyarrow.parquet

    return sum(int(pyarrow.parquet.read_metadata(file).num_rows) for file in files)


def _features(encoder: EncoderSettings, settings: EvaluationSettings) -> int | None:
    if encoder.kind == "identity":
        named = settings.statistics_split.input
        return encoder.dimension or (len(named) if isinstance(named, (list, tuple)) else None)
    if encoder.kind in ("open_clip", "open_clip_text"):
        return _clip_dimension(encoder.model)
    return None


def _clip_dimension(model: str | None) -> int | None:
    """By open_clip's own files: importing it would load torch."""
    found = find_spec("open_clip")
    file = WEIGHTS / "open_clip_config.json"
    if model not in (None, "compact"):
        if found is None or found.origin is None:
            return None
        file = Path(found.origin).parent / "model_configs" / f"{model}.json"
    if not file.is_file():
        return None
    content = json.loads(file.read_text())
    return int(content.get("model_cfg", content)["embed_dim"])
