"""The evaluation file's ``predict:``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from congruence.tasks.settings.strict import Strict

Isolation = Literal["none", "environment"]


class PredictSettings(Strict):
    """How versions are asked for their predictions.

    Attributes:
        isolation: with ``none`` a version runs in the worker's own process, with the worker's packages, files and
            credentials. With ``environment`` it runs in a process of its own, with the Python and the packages that
            were logged with it (made once by uv or pyenv and kept in the home folder), without the environment
            variables of the worker. It is still the same user on the same machine: run workers in a container of their
            own if its files or network must be out of reach too.
        timeout: seconds that a version in a process of its own may take to load, and to predict one shard.
        build_timeout: seconds that making its environment may take.
    """

    isolation: Isolation = "none"
    timeout: float = Field(default=600.0, gt=0)
    build_timeout: float = Field(default=1800.0, gt=0)
