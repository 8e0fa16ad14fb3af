"""The demonstrations: data with known conditional distributions, and how versions are registered."""

from __future__ import annotations

from mlflow import MlflowClient


def registered_kinds(name: str) -> set[str]:
    """Returns the tags ``kind`` of the versions of a registered model; none where there is no such model."""
    found = MlflowClient().search_model_versions(f"name = '{name}'")
    return {version.tags.get("kind", "") for version in found if version.status == "READY"}


def describe_version(name: str, version: object, kind: str, what: str) -> None:
    """Give a registered version its alias, and the tags that say of what ``kind`` it is and ``what`` that means."""
    client = MlflowClient()
    client.set_registered_model_alias(name, kind, str(version))
    client.update_model_version(name, str(version), what)
    for tag, text in {"what": what, "kind": kind}.items():
        client.set_model_version_tag(name, str(version), tag, text)
