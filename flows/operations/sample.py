"""`congruence evaluate --quick`: a first look on a sample of the rows, kept apart from the evaluations of the whole."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pandas as pd

from congruence.flows.evaluation.splits import open_planned
from congruence.kernels.streams import stream
from congruence.tasks.data import Split, SplitSettings
from congruence.tasks.runtime.atomic_files import whole_file
from congruence.tasks.settings.evaluation import EvaluationSettings

ROWS = 2_000
SHARDS = 32
"""A sample is of rows from so many shards at the most: of a large split, only those are read."""


def quick(settings: EvaluationSettings, rows: int = ROWS) -> EvaluationSettings:
    """The evaluation on a random sample of ``rows`` rows of every split, without its gate.

    A sampled split is a file of its own in the home folder and is named ``<split>-quick``: its evaluations never meet
    those of the whole. The same split gives the same sample.

    Raises:
        CongruenceError: a split that cannot be opened.
    """
    sampled = {
        "splits": [_sampled(split, settings, rows) for split in settings.splits],
        "reference": None if settings.reference is None else _sampled(settings.reference, settings, rows),
        "gate": None,
    }
    return settings.model_copy(update=sampled)


def _sampled(settings: SplitSettings, evaluation: EvaluationSettings, rows: int) -> SplitSettings:
    split = open_planned(settings, evaluation)
    if split.rows <= rows:
        return settings
    named = sha256(f"{split.digest} {rows} {settings.model_dump_json()}".encode()).hexdigest()[:16]
    path = evaluation.home_folder / "quick" / f"{named}.parquet"
    if not path.exists():
        with whole_file(path) as stream:
            _sample(split, rows).to_parquet(stream, index=False)
    key = settings.key or split.key_column
    changes = {"name": f"{settings.name}-quick", "uri": str(path), "format": "parquet", "key": key, "image_root": None}
    return settings.model_copy(update=changes)


def _sample(split: Split, rows: int) -> pd.DataFrame:
    """Rows drawn without replacement from some shards, in the order of the split."""
    draw = stream(0, "rows of a quick look")
    places = np.sort(draw.choice(len(split.shards), size=min(SHARDS, len(split.shards)), replace=False))
    shards = [split.shards[place] for place in places]
    held = np.concatenate([np.arange(shard.start, shard.stop) for shard in shards])
    chosen = np.sort(draw.choice(held, size=min(rows, len(held)), replace=False))
    frames = [split.frame(shard, split.row_columns) for shard in shards]
    return pd.concat([frame.loc[frame.index.isin(chosen)] for frame in frames], ignore_index=True)
