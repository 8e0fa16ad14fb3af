"""What an evaluation file says of models, and a version as evaluations name it: known without MLflow."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from congruence.tasks.contract.settings import PredictionSettings
from congruence.tasks.settings.parts import Strict


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


Isolation = Literal["none", "environment"]


class PredictSettings(Strict):
    """How versions are asked for their predictions.

    Attributes:
        isolation: every version runs in a process of its own. With ``none`` that has the worker's packages and
            environment variables. With ``environment`` it has the Python and the packages that were logged with the
            version (made once by uv or pyenv and kept in the home folder), and none of the worker's variables. That is
            no security boundary, as it is the same user on the same machine: run workers in a container of their own
            for models you do not trust.
        timeout: seconds that a version may take to load, and to answer one call (a shard of the split).
        build_timeout: seconds that making its environment may take.
    """

    isolation: Isolation = "none"
    timeout: float = Field(default=600.0, gt=0)
    build_timeout: float = Field(default=1800.0, gt=0)


class ModelEntry(Strict):
    """Versions that are read, or given rows, in a way of their own.

    Attributes:
        uri: which, as a text under ``models:`` says it.
        predictions: how their output is read, in place of the file's.
        model_inputs: the columns that they are given, among those of the split; else its signature chooses.
        name: what a model is called that nobody registered, in place of the name that it was logged under.
    """

    uri: str = Field(min_length=1)
    predictions: PredictionSettings | None = None
    model_inputs: list[str] | None = Field(default=None, min_length=1)
    name: str | None = Field(default=None, min_length=1)
