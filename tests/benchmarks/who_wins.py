"""How often a comparison names a winner among equals, and finds the better one: `python tests/benchmarks/who_wins.py`.

Two versions err as far as each other on inputs of their own (``equal``), state the same, one by nine quantiles alone
(``stated alike``), or one has a bias of .15 to .3 spreads (``better``). The record is who_wins.md.
"""

import time
import warnings
from collections import Counter

import numpy as np
from scipy.special import ndtri
from simulations import asked, head, machine, row, share

import congruence
from congruence.kernels import Distribution, Normal, Quantiles
from congruence.tasks.report.comparison import comparison_data

LEVELS = np.arange(1, 10) / 10
CASES = ("equal", "stated alike", "better by .15", "better by .3")


def versions(case: str, mean: np.ndarray, spread: np.ndarray, x: np.ndarray) -> dict[str, Distribution]:
    """The two, the first the better one where one is."""
    if case == "equal":
        return {name: Normal(mean + 0.3 * np.sign(x[:, k]), spread) for name, k in (("a", 2), ("b", 3))}
    if case == "stated alike":
        return {"a": Normal(mean, spread), "b": Quantiles(LEVELS, mean[:, None] + spread[:, None] * ndtri(LEVELS))}
    return {"a": Normal(mean, spread), "b": Normal(mean + float(case.rpartition(" ")[2]) * spread, spread)}


def compared(case: str, n: int, number: int) -> tuple[str, str]:
    """The page's first sentence and that of the pair."""
    rng = np.random.default_rng([n, number, CASES.index(case)])
    x = rng.standard_normal((n, 4))
    mean, spread = x[:, 0], np.exp(0.3 * x[:, 1])
    y = rng.normal(mean, spread)
    found = congruence.compare(x, y, versions(case, mean, spread, x), progress=False, baseline="b", seed=number)
    data = comparison_data(found.comparison)
    return data.summary, data.sentences["a"]


def main() -> None:
    given = asked(__doc__, rows=[300], splits=200, cases=list(CASES))
    warnings.simplefilter("ignore")
    machine()
    head("versions", "rows", "splits", "a wins", "b wins", "the pair's sentence names a side", "CPU s")
    for n in given.rows:
        for case in given.cases:
            started, counts = time.process_time(), Counter[str]()
            for number in range(given.splits):
                summary, sentence = compared(case, n, number)
                counts.update(name for name in "ab" if summary.startswith(f"{name} wins"))
                counts["side"] += "within chance, and" not in sentence
            shares = [share(np.arange(given.splits) < counts[name]) for name in ("a", "b", "side")]
            row(case, n, given.splits, *shares, f"{time.process_time() - started:.0f}")


if __name__ == "__main__":
    main()
