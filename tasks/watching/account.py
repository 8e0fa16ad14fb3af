"""The account of looks at a version, kept as tags of it: who tests for ever calls true versions wrong sooner or later.

Before a watcher evaluates a version on data that it was never tested on, it opens a look: the look's number and level
(``kernels.many_looks``) are written to the version, and the evaluation that follows is judged at that level, by its
report, its sentences, its status and the gate. So the share of true versions that are ever called wrong stays below 5 %
however often they are looked at. Data and protocol name a look: the same ones again are the same look.

Looks of one version are numbered one at a time, by a claim on its account; watchers that start again find every look.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from congruence.kernels.many_looks import Look, LookAccount
from congruence.tasks.mlflow import EvaluationIdentity, TrackingError, TrackingSettings
from congruence.tasks.mlflow.connection import connect, persist
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.scores.evaluation import SIGNIFICANCE, Metric, truth_p_value
from congruence.tasks.scores.looks import LOOK, look_tag
from congruence.tasks.scores.meanings import probability
from congruence.tasks.watching.claims import exclusive

SAID = "cce_looks"
"""The tag that says in words how often the version was looked at, and whether it was ever called wrong."""

_TRIES = 5


def account_of(tags: Mapping[str, str]) -> LookAccount:
    """The account that a version's tags hold; a look that has not ended has its level spent and the p-value 1."""
    found = sorted(
        (
            json.loads(value) | {"evidence": key.removeprefix(LOOK)}
            for key, value in tags.items()
            if key.startswith(LOOK)
        ),
        key=lambda look: int(look["number"]),
    )
    looks = tuple(
        Look(
            "", str(look["evidence"]), 1.0 if look["p_value"] is None else float(look["p_value"]), float(look["level"])
        )
        for look in found
    )
    return LookAccount(SIGNIFICANCE, "version", looks)


def open_look(identity: EvaluationIdentity, owner: str, settings: TrackingSettings) -> float:
    """The level of a look at a version, written to it; that of the first where it was tested on the same before.

    Raises:
        TrackingError: MLflow does not answer, or other watchers hold the account.
    """
    name = look_tag(identity.split_digest, identity.protocol_digest)
    lock = replace(identity, split_name="account of looks", split_digest="looks", protocol_digest="looks")
    for _ in range(_TRIES):
        with exclusive(lock, owner, settings) as stands:
            tags = _tags(identity.model, settings)
            if name in tags:
                return float(json.loads(tags[name])["level"])
            account = account_of(tags)
            level = float(account.next_level(""))
            look = {"number": len(account.looks) + 1, "level": level, "p_value": None, "split": identity.split_name}
            written = json.dumps(look | {"owner": owner})
            _write(identity.model, {name: written}, settings)
            if stands():
                return level
            _withdraw(identity.model, name, written, settings)  # somebody else may have counted this number meanwhile
    raise TrackingError(
        f"{identity.model.label}: MLflow answers too slowly to open a look at it; it is tried at the next look"
    )


def close_look(identity: EvaluationIdentity, metrics: Mapping[str, Metric], settings: TrackingSettings) -> str | None:
    """Write what an evaluation found to the account, and say it; None where there was no test or no look was opened.

    The first p-value on the same evidence stands.

    Raises:
        TrackingError: MLflow does not answer.
    """
    p_value = truth_p_value(metrics)
    name = look_tag(identity.split_digest, identity.protocol_digest)
    tags = _tags(identity.model, settings)
    if p_value is None or name not in tags:
        return None
    look = json.loads(tags[name])
    if look["p_value"] is None:
        look["p_value"] = p_value
        tags[name] = json.dumps(look)
        _write(identity.model, {name: tags[name]}, settings)
    said = in_words(tags)
    _write(identity.model, {SAID: said}, settings)
    return said


def is_open(identity: EvaluationIdentity) -> bool:
    """Whether a look was opened at this evidence and never closed, by the tags that the version came with."""
    written = identity.model.tags.get(look_tag(identity.split_digest, identity.protocol_digest))
    return written is not None and json.loads(written)["p_value"] is None


def in_words(tags: Mapping[str, str]) -> str:
    """How often a version was looked at, at which level last, and whether a look ever called it wrong."""
    looks = sorted(
        (json.loads(value) for key, value in tags.items() if key.startswith(LOOK)), key=lambda look: int(look["number"])
    )
    ended = [look for look in looks if look["p_value"] is not None]
    wrong = next((look for look in ended if look["p_value"] <= look["level"]), None)
    counted = f"{len(ended)} look{'s' if len(ended) != 1 else ''}, {SIGNIFICANCE:.0%} over all of them"
    if wrong is not None:
        return f"{counted}: called wrong at look {wrong['number']} ({_shown(wrong)}), which stands"
    return f"{counted}: not called wrong; the last, look {ended[-1]['number']} ({_shown(ended[-1])})"


def _shown(look: Mapping[str, object]) -> str:
    p_value, level = float(str(look["p_value"])), float(str(look["level"]))
    return f"{look['split']}: p {probability(p_value)} at level {level:.2g}"


def _withdraw(model: ModelVersion, key: str, written: str, settings: TrackingSettings) -> None:
    client = connect(settings)

    def remove() -> None:
        if client.get_model_version(model.name, model.version).tags.get(key) == written:
            client.delete_model_version_tag(model.name, model.version, key)

    persist("writing the account", remove, settings)


def _tags(model: ModelVersion, settings: TrackingSettings) -> dict[str, str]:
    client = connect(settings)
    entry = persist("reading the account", lambda: client.get_model_version(model.name, model.version), settings)
    return dict(entry.tags)


def _write(model: ModelVersion, tags: Mapping[str, str], settings: TrackingSettings) -> None:
    client = connect(settings)

    def write() -> None:
        for key, value in tags.items():
            client.set_model_version_tag(model.name, model.version, key, value)

    persist("writing the account", write, settings)
