"""Level of the congruence test by row blocks: `python tests/benchmarks/row_blocks_level.py --splits 600`.

The passes of the row blocks without a cluster, on splits of three uneven blocks whose inputs are drawn anew every 40
splits; 199 simulated splits from pools of 16 values a row, true models of four kinds. Targets and everything that the
test draws hang on the split's number and on ``--seed``. The kept record is row_blocks_level.md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from kept_p_values import KeptPValues, share, uniformity

from congruence.kernels import EXACT, Distribution, Mixture, NegativeBinomial, Normal, Samples
from congruence.kernels.congruence.outcome import TIE
from congruence.kernels.row_blocks.rows import SampledRows
from congruence.kernels.row_blocks.runs import PassesHere
from congruence.kernels.row_blocks.split import BlockSplit

SPLITS_PER_INPUTS = 40
DRAWS = 199
LANDMARKS = 200


class Cut(SampledRows):
    """Held rows in three uneven blocks."""

    @property
    def sizes(self) -> list[int]:
        return [stop - start for start, stop in self._cuts()]

    def inputs(self, block: int) -> np.ndarray:
        return self.rows[slice(*self._cuts()[block])]

    def targets(self, block: int) -> np.ndarray:
        return self.held_targets[slice(*self._cuts()[block])]

    def predictive(self, block: int, version: str) -> Distribution:
        return self.models[version][slice(*self._cuts()[block])]

    def _cuts(self) -> list[tuple[int, int]]:
        n = len(self.rows)
        return [(0, n // 5), (n // 5, n // 2), (n // 2, n)]


def p_value(x: np.ndarray, y: np.ndarray, law: Distribution, seed: int) -> float:
    """Of one split, by all passes up to the scores."""
    split = BlockSplit(PassesHere(Cut(x, y, {"version": law})), EXACT, seed)
    split.look_at(["version"])
    scored = split.solve(LANDMARKS, ["version"], lambda *_: None, draws=DRAWS, tested=True).scores["version"]
    reached = np.count_nonzero(scored.added["null statistics"] >= TIE * scored.added["statistic"])
    return (1 + reached) / (1 + DRAWS)


def drawn(family: str, mean: np.ndarray, seed: int) -> tuple[np.ndarray, Distribution]:
    """Targets from a law, and the law."""
    n = len(mean)
    if family == "ensemble of 7":
        values = Normal(mean, np.ones(n)).sample(8, seed=seed)
        return values[:, 0], Samples(values[:, 1:])
    law: Distribution = {
        "normal": Normal(mean, np.ones(n)),
        "negative binomial": NegativeBinomial(np.exp(0.5 * mean), np.full(n, 0.3)),
        "mixture": Mixture(np.array([0.3, 0.7]), (Normal(mean, np.ones(n)), Normal(mean + 3.0, 0.5 * np.ones(n)))),
    }[family]
    return law.sample(1, seed=seed)[:, 0], law


def seeds(seed: int, split: int) -> tuple[int, int]:
    """Of the targets of a split, and of its test."""
    targets, test = np.random.SeedSequence([seed, split]).generate_state(2)
    return int(targets), int(test)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--seed", type=int, default=0, help="of inputs, targets and tests")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--families", nargs="*", default=["normal", "negative binomial", "mixture", "ensemble of 7"])
    parser.add_argument("--keep", type=Path, help="file of the p-values, which further splits are added to")
    arguments = parser.parse_args()
    kept, started = KeptPValues(arguments.keep), time.process_time()
    for split in range(arguments.first, arguments.first + arguments.splits):
        if split == arguments.first or split % SPLITS_PER_INPUTS == 0:
            kept.save()
            print(f"split {split}, {time.process_time() - started:.0f} CPU s", flush=True)
            rng = np.random.default_rng([1, split, arguments.seed])
            x = rng.standard_normal((arguments.rows, 8)) * np.arange(1.0, 9.0) ** -0.7
            mean = 2.0 + np.tanh(x[:, 0]) + np.sin(2.0 * x[:, 1])
        of_targets, of_test = seeds(arguments.seed, split)
        for family in arguments.families:
            y, law = drawn(family, mean, of_targets)
            kept.add(family, p_value(x, y, law, of_test))
    kept.save()
    print(f"\n{arguments.rows} rows, {DRAWS} draws; {time.process_time() - started:.0f} CPU s; (standard errors)\n")
    print(
        "| model | splits | mean p | KS p of uniformity | rejected at 5 % | at 10 % |\n|---|---:|---:|---:|---:|---:|"
    )
    for family, values in kept.columns():
        p = values[:, 0]
        print(
            f"| {family} | {len(p)} | {p.mean():.3f} | {uniformity(p, DRAWS):.3f} | "
            f"{share(p <= 0.05)} | {share(p <= 0.1)} |"
        )


if __name__ == "__main__":
    main()
