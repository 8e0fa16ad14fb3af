"""The evaluation file's ``predict:``, and what an entry of its ``models:`` may say beyond which versions."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from congruence.tasks.contract.settings import PredictionSettings
from congruence.tasks.settings.strict import Strict

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
