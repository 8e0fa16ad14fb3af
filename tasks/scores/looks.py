"""The level at which one evaluation is judged, where it is one of many looks at a version: a tag of the version."""

from __future__ import annotations

import json
from collections.abc import Mapping

from congruence.tasks.scores.evaluation import LOOK_LEVEL, Metric

LOOK = "congruence.look."
"""Tags of a version: what it was tested on, by the digests of split and protocol, with the number and level of it."""

_DIGITS = 16


def look_tag(split_digest: str, protocol_digest: str) -> str:
    """The tag that holds the look at this data under this protocol."""
    return f"{LOOK}{split_digest[:_DIGITS]}.{protocol_digest}"


def look_metrics(tags: Mapping[str, str], split_digest: str, protocol_digest: str) -> dict[str, Metric]:
    """``look_level`` where a watcher opened a look at this evidence; nothing where the evaluation stands alone."""
    written = tags.get(look_tag(split_digest, protocol_digest))
    return {} if written is None else {LOOK_LEVEL: Metric(float(json.loads(written)["level"]))}
