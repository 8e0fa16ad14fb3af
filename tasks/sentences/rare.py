"""Targets far out, and values that many targets share, in plain English."""

from __future__ import annotations

from collections.abc import Sequence

from congruence.kernels.conditional_calibration.rare import Extremes, Mass, TailCount
from congruence.tasks.sentences.calibration import listed
from congruence.tasks.sentences.findings import Finding

MOST_NAMED = 3
"""Rows that a sentence names."""

_OF_MASS = 24.0
"""What a share of the targets at a wrong value makes of the scores' variance: as much as it can, since it is the cause
of what shows there as bias, spread and skew: the squares of four scores at the end of their range."""

_OF_EXTREMES = 8.0
"""What a target far out makes of it. Where a place holds most of them its own fault, of up to 24, is the larger one."""

_LEAST = 1e-3
_GIVEN = {"square": "variance given as standard deviation", "root": "standard deviation given as variance"}


def mass_finding(mass: Mass) -> Finding:
    """ "50 % of the targets are exactly 0, and the predictions give that 0 %"."""
    held, stated = _share(mass.observed_share), _share(mass.expected_share)
    apart = abs(mass.observed_share - mass.expected_share)
    clause = f"{held} of the targets are exactly {mass.value:g}, and the predictions give that {stated}"
    short = f"{held} are exactly {mass.value:g}, {stated} predicted"
    return Finding("", "", mass.observed, apart, clause, short, _OF_MASS, "mass", apart)


def extremes_finding(found: Extremes, count: TailCount, rows: Sequence[str] = ()) -> Finding:
    """ "20 of 2,000 targets lie where the predictions put less than 1e-6; 0.004 were to be expected", and rows."""
    expected = f"{count.expected:.2g}" if count.expected >= _LEAST else f"fewer than {_LEAST:g}"
    level = f"{count.level:.0e}".replace("e-0", "e-")
    lie = "lies" if count.observed == 1 else "lie"
    clause = (
        f"{count.observed:,} of {found.rows:,} targets {lie} where the predictions put less than {level}; "
        f"{expected} were to be expected"
    )
    named = list(rows[: min(MOST_NAMED, count.observed)])
    if named:
        which = "" if len(named) == count.observed else ", the farthest of them"
        clause += f" ({'row' if len(named) == 1 else 'rows'} {listed(named)}{which})"
    share = count.observed / found.rows
    short = f"{count.observed:,} targets where less than {level} was predicted"
    return Finding("", "", count.observed, share, clause, short, _OF_EXTREMES, "extremes", share)


def crossing_finding(rows: int, share: float) -> Finding:
    """Quantiles that fall as their level rises in most rows, after all that they do to the scores."""
    clause = (
        f"the predicted quantiles fell as the level rises in {_share(share)} of the rows, and were sorted: are level "
        "and 1 - level exchanged?"
    )
    return Finding("", "", rows, share, clause, "quantiles fall with the level", 0.0, "crossing", share)


def power_finding(rows: int, power: str, *, shows: bool) -> Finding:
    """A spread that is the "square" or the "root" of what is needed: all other faults follow where the rows show it."""
    clause = f"the predicted spread is the {power} of what is needed: was the {_GIVEN[power]}?"
    short = f"predicted spread is the {power} of what is needed"
    return Finding("", "", rows, 1.0, clause, short, _OF_MASS if shows else 0.0, "power", 1.0)


def _share(share: float) -> str:
    if share > 0.905:
        return f"{100.0 * share:.3g} %"
    return f"{100.0 * share:.0f} %" if share < 5e-5 or share >= 0.095 else f"{100.0 * share:.2g} %"
