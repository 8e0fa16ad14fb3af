"""The evaluation file's ``predict:``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

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
