"""Which logged evaluations may be set side by side: those on the same split, under the same protocol."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mlflow.entities import Run

from congruence.kernels.errors import ProtocolError
from congruence.tasks.comparison import ComparedVersion
from congruence.tasks.registry import ModelVersion
from congruence.tasks.tracking.connection import TrackingError, connect, persist
from congruence.tasks.tracking.identity import IDENTITY, PREFIX
from congruence.tasks.tracking.reading import complete_runs, read_version
from congruence.tasks.tracking.settings import TrackingSettings

Conditions = tuple[str, str]
"""The digests of a split and of a protocol: what two evaluations must share to be compared."""


def comparable_versions(
    split: str, versions: Sequence[ModelVersion], settings: TrackingSettings, *, protocol_digest: str | None = None
) -> list[ComparedVersion]:
    """The evaluations of ``versions`` on ``split`` under the latest content and protocol that all of them share.

    Args:
        protocol_digest: under this protocol alone.

    Raises:
        ProtocolError: no split content and protocol under which every one of them was evaluated.
        TrackingError: a version was never evaluated on the split, or MLflow does not answer.
    """
    client = connect(settings)
    runs = persist("looking for evaluations", lambda: complete_runs(client, split, settings), settings)
    found: dict[str, dict[Conditions, Run]] = defaultdict(dict)
    for run in runs:  # latest first
        tags = run.data.tags
        if protocol_digest in (None, tags[PREFIX + "protocol_digest"]):
            found[tags[PREFIX + "model_uri"]].setdefault(_conditions(run), run)
    for version in versions:
        if version.uri not in found:
            under = f" under protocol {protocol_digest}" if protocol_digest else ""
            raise TrackingError(
                f"{version.label}: not evaluated on split '{split}'{under}; run `congruence evaluate` on it first"
            )
    shared = set.intersection(*(set(found[version.uri]) for version in versions))
    if not shared:
        raise ProtocolError(_nothing_shared(split, {version.label: list(found[version.uri]) for version in versions}))
    latest = max(shared, key=lambda item: max(found[version.uri][item].info.start_time for version in versions))
    return [read_version(str(found[version.uri][latest].info.run_id), settings) for version in versions]


def finished_identities(split: str, settings: TrackingSettings) -> dict[str, str]:
    """The run id of every complete evaluation on ``split`` by its identity's digest.

    Raises:
        TrackingError: MLflow does not answer.
    """
    client = connect(settings)
    runs = persist("looking for finished evaluations", lambda: complete_runs(client, split, settings), settings)
    return {run.data.tags[IDENTITY]: str(run.info.run_id) for run in runs}


def _conditions(run: Run) -> Conditions:
    tags = run.data.tags
    return tags[PREFIX + "split_digest"], tags[PREFIX + "protocol_digest"]


def _nothing_shared(split: str, conditions: dict[str, list[Conditions]]) -> str:
    listed = "; ".join(
        f"{label} under " + ", ".join(f"protocol {protocol} (split {content[:16]})" for content, protocol in items)
        for label, items in conditions.items()
    )
    protocols = [{protocol for _, protocol in items} for items in conditions.values()]
    what = "split" if set.intersection(*protocols) else "protocol"
    return (
        f"{what} differs, so the numbers do not compare: on split '{split}' there are {listed}; "
        f"evaluate the versions with one evaluation file"
    )
