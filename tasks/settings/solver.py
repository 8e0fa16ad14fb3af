"""The evaluation file's ``solver:``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from congruence.tasks.settings.strict import Strict


class SolverSettings(Strict):
    """How the Gram systems are solved; ``auto`` takes the cheapest solver whose certificate meets the aim.

    ``kind``: ``cholesky`` (exact, tiled), ``conjugate_gradient`` (exact to a certificate, matrix-free), ``nystrom`` (a
    declared approximation with its certificate). ``tolerance`` is the largest residual relative to the right-hand side.
    By row blocks, where no memory limits the rows, the answer is Nystrom's on ``landmarks``; where none are named, on
    512 to 4,096, as many as bring its certificate to a thousandth of the mean CCE or its noise floor, or promise to. Up
    to 5,000 rows, and where landmarks do not reach the aim up to 100,000, ``auto`` is exact. ``memory`` (for
    example ``8 GiB``) is what the solver may use over all workers; what would not fit is refused before it starts.
    ``approximate`` lets ``auto`` fall back to Nystrom in memory where nothing exact fits.
    """

    kind: Literal["auto", "cholesky", "conjugate_gradient", "nystrom"] = "auto"
    tolerance: float = Field(default=3e-7, gt=0, lt=1)
    landmarks: int | None = Field(default=None, ge=1)
    memory: str | None = None
    approximate: bool = False

    @field_validator("memory")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None:
            from dask.utils import parse_bytes  # not at the start: a file is refused in a fraction of its import

            parse_bytes(value)
        return value
