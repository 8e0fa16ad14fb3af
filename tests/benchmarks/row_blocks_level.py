"""Level of the congruence test by row blocks: `python tests/benchmarks/row_blocks_level.py --splits 600`.

The passes of the row blocks without a cluster, on splits of three uneven blocks whose inputs are drawn anew every 40
splits; 199 simulated splits from pools of 16 values a row, true models of four kinds. The kept record is row_blocks.md.
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.stats

from congruence.kernels import EXACT, Distribution, Mixture, NegativeBinomial, Normal, Samples
from congruence.kernels.congruence.test import TIE
from congruence.kernels.row_blocks.inputs import RowSample, input_sums, protocol_inputs
from congruence.kernels.row_blocks.right_hand_sides import right_hand_side_sums
from congruence.kernels.row_blocks.scores import score_sums, version_answer
from congruence.kernels.row_blocks.sums import BlockSums
from congruence.kernels.row_blocks.system import BlockSystem, chosen_inputs, solved_system
from congruence.kernels.row_blocks.versions import (
    FIRST_TAILS,
    planned_version,
    prediction_sums,
    resolved_kernel,
    target_sums,
)

SPLITS_PER_INPUTS = 40
DRAWS = 199
LANDMARKS = 200


def cuts(n: int) -> list[tuple[int, int]]:
    return [(0, n // 5), (n // 5, n // 2), (n // 2, n)]


def added(parts: list[BlockSums]) -> BlockSums:
    total = BlockSums()
    for part in parts:
        total.merge(part)
    return total


def prepared(x: np.ndarray, y: np.ndarray) -> tuple[BlockSystem, RowSample]:
    n = len(x)
    sample = RowSample.draw(n, LANDMARKS, 0)
    rows = protocol_inputs(EXACT, x, 0, np.float64)[sample.positions]
    inputs, checked = chosen_inputs(EXACT, sample, rows, n, LANDMARKS, 0)
    sums = added([input_sums(inputs, x[a:b], y[a:b], a) for a, b in cuts(n)])
    return solved_system(inputs, sums, checked, sample.checked), sample


def p_value(
    system: BlockSystem, sample: RowSample, x: np.ndarray, y: np.ndarray, law: Distribution, seed: int
) -> float:
    """Of one split, as ``tasks.linalg.row_blocks`` makes it."""
    n, name = len(x), "version"
    targets = added([target_sums(y[a:b], a, n) for a, b in cuts(n)])
    predictions = added([prediction_sums(y[a:b], law[a:b], a, n, FIRST_TAILS) for a, b in cuts(n)])
    plan = planned_version(
        name,
        targets,
        predictions,
        resolved_kernel(EXACT, targets, system),
        n=n,
        filters=system.inputs.filters,
        scale=EXACT.output_scale,
        fixed_kernel=EXACT.output_kernel,
        tested=True,
        draws=DRAWS,
        seed=seed,
    )
    inputs, residual = system.inputs, sample.residual
    sums = added(
        [right_hand_side_sums(inputs, x[a:b], y[a:b], {name: law[a:b]}, [plan], a, residual)[name] for a, b in cuts(n)]
    )
    answer = version_answer(system, plan, sums)
    scored = added(
        [score_sums(inputs, x[a:b], y[a:b], {name: law[a:b]}, [answer], a, None)[0][name] for a, b in cuts(n)]
    )
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--splits", type=int, default=600)
    parser.add_argument("--first", type=int, default=0, help="number of the first split")
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--families", nargs="*", default=["normal", "negative binomial", "mixture", "ensemble of 7"])
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {family: [] for family in arguments.families}
    for split in range(arguments.first, arguments.first + arguments.splits):
        if split == arguments.first or split % SPLITS_PER_INPUTS == 0:
            rng = np.random.default_rng([1, split])
            x = rng.standard_normal((arguments.rows, 8)) * np.arange(1.0, 9.0) ** -0.7
            mean = 2.0 + np.tanh(x[:, 0]) + np.sin(2.0 * x[:, 1])
            system, sample = prepared(x, mean)
        for family, values in found.items():
            y, law = drawn(family, mean, 1000 + split)
            values.append(p_value(system, sample, x, y, law, split))
    print(f"{arguments.splits} splits of {arguments.rows} rows, {DRAWS} draws\n")
    print("| model | mean p | KS p of uniformity | rejected at 5 % | at 10 % |\n|---|---:|---:|---:|---:|")
    for family, values in found.items():
        p = np.array(values)
        smooth = p - np.random.default_rng(0).uniform(size=len(p)) / (1 + DRAWS)
        print(
            f"| {family} | {p.mean():.3f} | {scipy.stats.kstest(smooth, 'uniform').pvalue:.3f} | "
            f"{np.mean(p <= 0.05):.3f} | {np.mean(p <= 0.1):.3f} |"
        )


if __name__ == "__main__":
    main()
