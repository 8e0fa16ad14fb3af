"""`congruence evaluate --quick`: a first look on a sample of the rows, kept apart from the evaluations of the whole."""

from __future__ import annotations

from hashlib import sha256

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.dependence.correlation import sample
from congruence.kernels.streams import stream
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import Split
from congruence.tasks.data.usable import split_of_rows
from congruence.tasks.evaluate.splits import open_planned, opened
from congruence.tasks.settings.evaluation import EvaluationSettings

ROWS = 2_000
_PURPOSE = "rows of a quick look"
SHARDS = 32
"""A sample is of rows from so many shards at the most: of a large split, only those are read."""


def quick(settings: EvaluationSettings, rows: int = ROWS) -> EvaluationSettings:
    """The evaluation on a random sample of ``rows`` rows of every split, without its gate.

    A sampled split is a file of its own in the home folder and is named ``<split>-quick``: its evaluations never meet
    those of the whole. The same split gives the same sample.

    Raises:
        CongruenceError: a split that cannot be opened.
    """
    settings = opened(settings)
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
    return split_of_rows(split, _drawn(split, rows), path, f"{settings.name}-quick")


def _drawn(split: Split, rows: int) -> Array:
    """Numbers of rows drawn without replacement, ascending: from some shards; whole groups or stretches of time."""
    design = split.design()
    dependence = RowDependence.of(split.rows, groups=design.groups, time=design.time)
    if dependence is not None:
        return sample(dependence, rows, 0, _PURPOSE)
    draw = stream(0, _PURPOSE)
    places = np.sort(draw.choice(len(split.shards), size=min(SHARDS, len(split.shards)), replace=False))
    held = np.concatenate([np.arange(split.shards[place].start, split.shards[place].stop) for place in places])
    return np.sort(draw.choice(held, size=min(rows, len(held)), replace=False))
