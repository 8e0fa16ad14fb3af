"""When the p-value of a calibration test may not be trusted: each limit with its number and its remedy."""

from __future__ import annotations

from dataclasses import dataclass

from congruence.kernels.arrays import Array
from congruence.kernels.kernel_calibration.pairs import PairTerms
from congruence.kernels.streams import stream

MINIMUM_ROWS = 64
RELIABLE_BLOCKS = 30
ROWS_PER_LOCATION = 200
_SAMPLE_ROWS = 1024
_NEIGHBOURS = 5.0
_CONSTANT = 1e-2


@dataclass(frozen=True)
class Trust:
    """Whether the level of a test holds.

    Attributes:
        reliable: False where the p-value may be too small.
        reasons: what to know before reading the p-value; for a reliable one, limits of its power.
    """

    reliable: bool
    reasons: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.reliable

    def __str__(self) -> str:
        return ("reliable" if self.reliable else "not reliable") + "".join(f"; {reason}" for reason in self.reasons)


def trust(terms: PairTerms, doubts: list[str], notes: list[str] | None = None) -> Trust:
    """``doubts`` are about the level, ``notes`` about power; limits of the kernel on predictions are added."""
    neighbours, spread = _resemblance(terms)
    notes = list(notes or [])
    if neighbours < _NEIGHBOURS:
        doubts = [
            *doubts,
            f"each prediction resembles only {neighbours:.2g} others under the kernel on predictions (its scale is too "
            "large for these units), so few pairs carry the statistic: give a smaller scale, or scale=None",
        ]
    if spread < _CONSTANT:
        notes.append(
            "the kernel on predictions is nearly constant, so only the average over all predictions is tested: give a "
            "larger scale, or scale=None"
        )
    return Trust(not doubts, (*doubts, *notes))


def _resemblance(terms: PairTerms) -> tuple[float, float]:
    """n times the mean of k_P over distinct rows, and 1 - its least value."""
    coordinates: Array = terms.coordinates
    if terms.n > _SAMPLE_ROWS:
        coordinates = coordinates[stream(0, "resemblance").choice(terms.n, _SAMPLE_ROWS, replace=False)]
    gram = terms.h.prediction_kernel(coordinates, coordinates)
    rows = len(gram)
    mean = (float(gram.sum()) - rows) / (rows * (rows - 1))
    return mean * (terms.n - 1), 1.0 - float(gram.min())
