"""Moving an alias of a registered model: forward only, however many watchers move it at once."""

from __future__ import annotations

from collections.abc import Collection

from congruence.tasks.mlflow.connection import TrackingError, connect, with_retries
from congruence.tasks.mlflow.identity import PREFIX, EvaluationIdentity
from congruence.tasks.mlflow.settings import TrackingSettings
from congruence.tasks.mlflow.version_tags import alias_holder, set_alias
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.watching.claims import exclusive, new_owner

MOVING = PREFIX + "alias."
"""Tags of the registered model: the versions that an alias is being moved to, and the one it was moved to last."""

_TRIES = 5


def move_alias(model: ModelVersion, alias: str, settings: TrackingSettings, *, beaten: Collection[str] = ()) -> str:
    """Point ``alias`` at ``model`` unless it is on a newer version; the number of the version that it is on then.

    ``beaten`` are numbers of versions that ``model`` was compared with and is to replace, also where they are newer.

    Whoever was held up between looking and setting, and lost the claim meanwhile, may have put the alias back: it looks
    again, and sets it to the newest version to which anybody was moving it.

    Raises:
        TrackingError: MLflow refuses or does not answer, or others move it all the time.
    """
    registered = ModelVersion(model.name, "", f"models:/{model.name}")
    lock = EvaluationIdentity(registered, f"alias {alias}", alias, "alias", ())
    wanted = int(model.version)
    for _ in range(_TRIES):
        with exclusive(lock, new_owner(), settings) as stands:
            holder = alias_holder(model.name, alias, settings)
            newest = max(wanted, 0 if holder in beaten else int(holder or 0))
            if holder != str(newest):
                _note(model.name, alias, newest, settings)
                set_alias(ModelVersion(model.name, str(newest), f"models:/{model.name}/{newest}"), alias, settings)
            if stands():
                _forget_older(model.name, alias, newest, settings, beaten)
                return str(newest)
            noted = _noted(model.name, alias, settings)
            wanted = max([wanted, *(version for version in noted if str(version) not in beaten)])
    raise TrackingError(f"{model.label}: MLflow answers too slowly to move the alias {alias}; it is tried again later")


def _key(alias: str, version: int | str) -> str:
    return f"{MOVING}{alias}.{version}"


def _note(name: str, alias: str, version: int, settings: TrackingSettings) -> None:
    client = connect(settings)
    with_retries(
        f"setting alias {alias}",
        lambda: client.set_registered_model_tag(name, _key(alias, version), "moved"),
        settings,
    )


def _noted(name: str, alias: str, settings: TrackingSettings) -> list[int]:
    client, prefix = connect(settings), _key(alias, "")
    tags = with_retries("reading the aliases", lambda: client.get_registered_model(name).tags, settings)
    return [0, *(int(key.removeprefix(prefix)) for key in tags if key.startswith(prefix))]


def _forget_older(name: str, alias: str, newest: int, settings: TrackingSettings, beaten: Collection[str]) -> None:
    client = connect(settings)
    noted = _noted(name, alias, settings)
    older = [version for version in noted if 0 < version < newest or str(version) in beaten]

    def remove() -> None:
        for version in older:
            if _key(alias, version) in client.get_registered_model(name).tags:
                client.delete_registered_model_tag(name, _key(alias, version))

    if older:
        with_retries(f"setting alias {alias}", remove, settings)
