"""Do the certificates hold? `python tests/benchmarks/error_bounds.py [PROBLEMS]`: random problems, and larger ones.

Every bound is held against the definition in extended precision (float64 for n above 400) from the inputs as they are,
up to ``ROUNDING`` of the largest CCE.
The kept record is error_bounds.md.
"""

import itertools
import sys
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from certified import LARGE, SMALL, evaluated, exact_values, large_problem, random_problem
from simulations import head, row

from congruence.kernels.errors import ConvergenceError

ROUNDING = 1e-9


def checked(problem, precision=np.longdouble):
    """Kind of the bounds, (bound + rounding) / error of both, and the mean's bound as a share of the mean."""
    result, exact = evaluated(problem), exact_values(problem, precision)
    at_point = float(np.max(np.abs(result.values - exact)))
    in_mean = float(abs(np.mean(result.values) - np.mean(exact)))
    rounding = ROUNDING * float(np.max(exact))
    tiny = np.finfo(float).tiny
    return (
        result.bound_kind,
        (result.error_bound + rounding) / max(at_point, tiny),
        (result.mean_error_bound + rounding) / max(in_mean, tiny),
        result.mean_error_bound / float(np.mean(exact)),
    )


def main(count):
    """Run ``count`` problems and print the record."""
    warnings.simplefilter("ignore")
    ratios, outcome, started = defaultdict(list), Counter(), time.time()
    for seed in range(count):
        problem = random_problem(seed, SMALL[seed % len(SMALL)])
        try:
            kind, at_point, in_mean, relative = checked(problem)
        except ConvergenceError as error:
            outcome["refused"] += 1
            print(f"refused {problem.name}: {str(error)[:160]}")
            continue
        outcome["evaluated"] += 1
        if at_point < 1 or in_mean < 1:
            outcome["violated"] += 1
            print(f"VIOLATED {problem.name} ({kind}): {at_point:.3g} {in_mean:.3g}")
        ratios[problem.solver, str(problem.x.dtype), kind].append((at_point, in_mean, relative))
    print(dict(outcome), f"{time.time() - started:.0f} s")
    head("solver", "dtype", "kind", "problems", "bound / error: least", "median", "90 %", "mean's: least", "median",
         "mean bound / mean CCE: median")  # fmt: skip
    for case, rows in sorted(ratios.items()):
        at_point, in_mean, relative = np.array(rows).T
        bounds = (at_point.min(), np.median(at_point), np.quantile(at_point, 0.9), in_mean.min(), np.median(in_mean))
        row(*case, len(rows), *(f"{bound:.2g}" for bound in bounds), f"{np.median(relative):.1g}")


def large():
    """Thousands of rows, against float64."""
    head("problem", "at", "kind", "bound / error", "mean's", "mean bound / mean CCE")
    for kind, solver, at_query in itertools.product(LARGE, ("exact", "many landmarks"), (False, True)):
        problem = large_problem(kind, 2000, solver, at_query=at_query)
        found, at_point, in_mean, relative = checked(problem, np.float64)
        place = "query" if at_query else "reference"
        row(problem.name, place, found, f"{at_point:.3g}", f"{in_mean:.3g}", f"{relative:.2g}")


if __name__ == "__main__":
    if sys.argv[1:] == ["large"]:
        large()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
