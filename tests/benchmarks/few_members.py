"""Shift and factor of ensembles of few members: how often their 95 % intervals hold, and what is told first.

    python tests/benchmarks/few_members.py [--rows 500] [--splits 1000] [--members 3 5 10 20 50 100]

Targets are normal, and members are drawn from another normal law. The record is in judged_as_stated.md.
"""

import numpy as np
from scipy.special import ndtr
from simulations import asked, head, machine, row, share

from congruence.kernels.conditional_calibration.reading import GroupReading, group_reading

FACTORS, SHIFTS = (0.67, 1.0, 1.5, 2.0), (0.0, 0.5)


def holds(interval: tuple[float, float], true: float) -> bool:
    return interval[0] <= true <= interval[1]


def read(members: int, shift: float, factor: float, n: int, rng: np.random.Generator) -> GroupReading:
    below = rng.binomial(members, ndtr(shift + factor * rng.standard_normal(n)))
    return group_reading((below + rng.random(n)) / (members + 1.0), members=members)


if __name__ == "__main__":
    given = asked(__doc__, rows=500, splits=1000, members=[3, 5, 10, 20, 50, 100])
    machine()
    head("members", "factor", "shift", "median factor", "median shift", "factor held", "shift held", "shape told first")
    for members in given.members:
        for factor in FACTORS:
            for shift in SHIFTS:
                rng = np.random.default_rng([members, int(100 * factor), int(10 * shift)])
                found = [read(members, shift, factor, given.rows, rng) for _ in range(given.splits)]
                row(
                    members,
                    f"{factor:g}",
                    f"{shift:g}",
                    f"{np.median([each.factor for each in found]):.2f}",
                    f"{np.median([each.shift for each in found]):.2f}",
                    share(np.array([holds(each.factor_interval, factor) for each in found])),
                    share(np.array([holds(each.shift_interval, shift) for each in found])),
                    share(np.array([each.dominant in ("skew", "tails") for each in found])),
                )
