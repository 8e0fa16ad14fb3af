"""Which logged evaluations may be set side by side: those on the same split, under the same protocol."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mlflow.entities import Run

from congruence.kernels.errors import ProtocolError
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.mlflow.conditions import ANY, Conditions
from congruence.tasks.mlflow.connection import TrackingError, connect, with_retries
from congruence.tasks.mlflow.finished import complete_runs
from congruence.tasks.mlflow.identity import PREFIX
from congruence.tasks.mlflow.reading import read_version
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.models.registry import ModelVersion

Shared = tuple[str, str]
"""The digests of a split and of a protocol: what two evaluations must share to be compared."""


def comparable_versions(
    split: str, versions: Sequence[ModelVersion], settings: TrackingSettings, *, conditions: Conditions = ANY
) -> list[ComparedVersion]:
    """The evaluations of ``versions`` on ``split`` under the latest content and protocol that all of them share.

    Args:
        split: the split's name.
        versions: that all must have an evaluation.
        settings: where evaluations are logged.
        conditions: under these alone, for example those of an evaluation file.

    Raises:
        ProtocolError: no split content and protocol under which every one of them was evaluated.
        TrackingError: a version was never evaluated on the split under the conditions, or MLflow does not answer.
    """
    client = connect(settings)
    runs = with_retries("looking for evaluations", lambda: complete_runs(client, split, settings), settings)
    found: dict[str, dict[Shared, Run]] = defaultdict(dict)
    for run in runs:  # latest first
        if conditions.admit(run.data.tags):
            found[run.data.tags[PREFIX + "model_uri"]].setdefault(_shared(run), run)
    for version in versions:
        if version.uri not in found:
            raise TrackingError(_not_evaluated(version, split, conditions, runs))
    shared = set.intersection(*(set(found[version.uri]) for version in versions))
    if not shared:
        raise ProtocolError(_nothing_shared(split, {version.label: list(found[version.uri]) for version in versions}))
    latest = max(shared, key=lambda item: max(found[version.uri][item].info.start_time for version in versions))
    return [read_version(str(found[version.uri][latest].info.run_id), settings) for version in versions]


def _shared(run: Run) -> Shared:
    tags = run.data.tags
    return tags[PREFIX + "split_digest"], tags[PREFIX + "protocol_digest"]


def _not_evaluated(version: ModelVersion, split: str, conditions: Conditions, runs: Sequence[Run]) -> str:
    said = f"{version.label}: not evaluated on split '{split}'"
    if conditions.protocol_digest is not None:
        said += f" under protocol {conditions.protocol_digest}"
    own = [run.data.tags for run in runs if run.data.tags[PREFIX + "model_uri"] == version.uri]
    if own:
        closest = min((conditions.unmet(tags) for tags in own), key=len)
        said += f" as asked; its closest evaluation has another {'; another '.join(closest)}"
    return f"{said}; run `congruence evaluate FILE -m {version.uri}` first"


def _nothing_shared(split: str, conditions: dict[str, list[Shared]]) -> str:
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
