"""A version of a model, as evaluations name it: known without MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModelVersion:
    """One version of a registered model, or a logged model that nobody registered (``version`` is then empty).

    ``uri`` is exact: an alias in the request has become a version number, so a moved alias cannot change the meaning.
    ``model_id`` is MLflow's LoggedModel, to which metrics are attached; versions of MLflow 2 have none.
    """

    name: str
    version: str
    uri: str
    model_id: str | None = None
    run_id: str | None = None
    aliases: tuple[str, ...] = ()
    tags: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """``name/version``, as people say it."""
        return f"{self.name}/{self.version}" if self.version else self.name
