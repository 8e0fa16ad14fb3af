"""The evaluation file's ``solver:``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from congruence.tasks.settings.strict import Strict


class SolverSettings(Strict):
    """How the Gram system is solved; ``auto`` takes the cheapest answer whose certificate meets the aim.

    ``kind``: ``auto`` or ``cholesky``. ``auto`` is exact up to 5,000 rows; beyond, the answer stands on ``landmarks``;
    where none are named, on 512 to 4,096, as many as bring its certificate to a thousandth of the mean CCE or its noise
    floor, or promise to. ``cholesky`` is exact at any number of rows: beyond 10,000 by a tiled factorisation on the
    cluster, whose factor takes 4 n^2 bytes of its workers; ``memory`` (for example ``8 GiB``) is what it may take.
    """

    kind: Literal["auto", "cholesky"] = "auto"
    landmarks: int | None = Field(default=None, ge=1)
    memory: str | None = None

    @field_validator("memory")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None:
            from dask.utils import parse_bytes  # not at the start: a file is refused in a fraction of its import

            parse_bytes(value)
        return value
