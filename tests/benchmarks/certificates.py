"""Do the certificates hold? `python tests/benchmarks/certificates.py [PROBLEMS]`: random problems, and larger ones.

Every bound is held against the definition in extended precision (float64 for n above 400) from the inputs as they are,
up to ``ROUNDING`` of the largest CCE.
The kept record is certificates.md.
"""

import sys
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from certified import LARGE, SMALL, evaluated, exact_values, large_problem, random_problem

from congruence.kernels.errors import ConvergenceError

ROUNDING = 1e-9


def checked(problem, precision=np.longdouble):
    """Kind of the bounds, (bound + rounding) / error of both, and the mean's bound as a share of the mean."""
    result, exact = evaluated(problem), exact_values(problem, precision)
    at_point = float(np.max(np.abs(result.values - exact)))
    in_mean = float(abs(np.mean(result.values) - np.mean(exact)))
    rounding = ROUNDING * float(np.max(exact))
    scale = float(np.mean(exact))
    tiny = np.finfo(float).tiny
    return (
        result.bound_kind,
        (result.error_bound + rounding) / max(at_point, tiny),
        (result.mean_error_bound + rounding) / max(in_mean, tiny),
        result.mean_error_bound / scale,
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
    print(
        "| solver | dtype | kind | problems | bound / error: least | median | 90 % | mean's: least | median | "
        "mean bound / mean CCE: median |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for (solver, dtype, kind), rows in sorted(ratios.items()):
        at_point, in_mean, relative = np.array(rows).T
        print(
            f"| {solver} | {dtype} | {kind} | {len(rows)} | {at_point.min():.2g} | {np.median(at_point):.2g} | "
            f"{np.quantile(at_point, 0.9):.2g} | {in_mean.min():.2g} | {np.median(in_mean):.2g} | "
            f"{np.median(relative):.1g} |"
        )


def large():
    """Thousands of rows, against float64."""
    print("| problem | at | kind | bound / error | mean's | mean bound / mean CCE |")
    print("|---|---|---|---|---|---|")
    for kind in LARGE:
        for solver in ("exact", "many landmarks"):
            for at_query in (False, True):
                problem = large_problem(kind, 2000, solver, at_query=at_query)
                found, at_point, in_mean, relative = checked(problem, np.float64)
                place = "query" if at_query else "reference"
                print(f"| {problem.name} | {place} | {found} | {at_point:.3g} | {in_mean:.3g} | {relative:.2g} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["large"]:
        large()
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
