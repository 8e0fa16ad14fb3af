"""What the gate decides of simulated releases: `python tests/benchmarks/gate_decisions.py`.

The kept record is gate_decisions.md.

Inputs are unit vectors of five dimensions, y ~ N(x_1, 1). The version in use is off by a shift of its mean; a candidate
by a shift to the same side (it errs alike, so their difference is known well) or to the other one, so large that its
mean squared congruence error is larger by a given multiple of the margin: 5 % of the root mean squared CCE of the
version in use, as the gate's default has it. The gate's three answers are counted over simulated targets.

Rounded targets: y ~ N(20 x, 10^2), x standard normal; the version in use has the right law, candidates a spread that is
wrong by a factor. NLL at the gate's default margin, 5 % of skill, on the targets as they are and rounded to a step.
These alone by ``--rounded``.
"""

import math
from typing import Any

import numpy as np
import scipy.optimize
from simulations import asked, head, machine, row

from congruence.kernels import EXACT, RBF, Normal, negative_log_likelihood, prepare
from congruence.kernels.engine.results import difference_of_influences
from congruence.kernels.engine.targets import output_features
from congruence.kernels.resampling import PairedResampling, mean_of
from congruence.kernels.scores import resolution
from congruence.kernels.split import Split as PreparedSplit
from congruence.tasks.comparison.gate_settings import Margin
from congruence.tasks.scores.metrics.registry import METRICS

IN_USE = 0.3  # shift of the version in use, in spreads
OUTPUT_KERNEL = RBF(0.5)


def inputs(n: int) -> np.ndarray:
    x = np.random.default_rng(n).standard_normal((n, 5))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


class Split:
    """A split of n rows whose conditional law is known, and versions of a known congruence error on it."""

    def __init__(self, n: int) -> None:
        self.n, x = n, inputs(n)
        self.mean = x[:, 0]
        self.prepared: PreparedSplit = prepare(x, input_kernel=EXACT.input_kernel)
        self.features = output_features(OUTPUT_KERNEL, np.linspace(-6.0, 6.0, 400), self.version(IN_USE))
        self.truth = self.features.expectation(self.version(0.0))
        self.noise = self.noise_floor()

    def version(self, shift: float) -> Normal:
        return Normal(self.mean + shift, np.ones(self.n))

    def squared_error(self, shift: float) -> float:
        """Mean squared CCE without noise: of the expected Delta."""
        smoothed = self.prepared.smooth(self.truth - self.features.expectation(self.version(shift)))
        return float(np.mean(np.sum(smoothed.values**2, axis=1)))

    def noise_floor(self) -> float:
        y = self.version(0.0).sample(1, seed=1)[:, 0]
        result = self.prepared.conditional_congruence_error(y, self.version(0.0), output_kernel=OUTPUT_KERNEL)
        return float(np.mean(result.noise_floor_values**2))

    def shift_worse_by(self, multiple: float, side: int) -> float:
        """The shift whose mean squared CCE is expected to lie at ``multiple`` margins above that of the version in use.

        The margin is a share of the root mean squared CCE, in which the noise floor is: R^2 = error^2 + floor^2.
        """
        squared = self.squared_error(IN_USE)
        root = math.sqrt(squared + self.noise)
        wanted = squared + multiple * limit(root)
        return float(scipy.optimize.brentq(lambda shift: self.squared_error(shift) - wanted, 0.0, side * 3.0))


def limit(root: float) -> float:
    """The default margin of ``cce_mean`` on the scale of the mean squared CCE: 2 R delta + delta^2."""
    margin = Margin.of("5 %").absolute(root)
    return 2.0 * root * margin + margin**2


def answer_of(item: Any, largest: float) -> str:
    """Of the gate, by the interval of a difference and the largest one that it lets pass."""
    return "passed" if item.high < largest else "failed" if item.low > largest else "undecided"


def decide(split: Split, side: int, multiples: list[float], releases: int) -> None:
    n = split.n
    shifts = {multiple: split.shift_worse_by(multiple, side) for multiple in multiples}
    versions = {"in use": split.version(IN_USE)} | {f"{m:g}": split.version(shift) for m, shift in shifts.items()}
    answers = {multiple: list[str]() for multiple in multiples}
    needed: list[tuple[float, float]] = []
    for release in range(releases):
        y = split.version(0.0).sample(1, seed=1_000_000 + release)[:, 0]
        results = split.prepared.evaluate(y, versions, output_kernel=OUTPUT_KERNEL, draws=0)
        used = results["in use"].uncertainty.influence
        largest = limit(math.sqrt(max(used.squared_mean, 0.0)))
        for multiple in multiples:
            item = difference_of_influences(results[f"{multiple:g}"].uncertainty.influence, used)
            answer = answer_of(item, largest)
            answers[multiple].append(answer)
            if answer == "undecided" and multiple == 0.0:
                half = item.high - item.difference
                needed.append((n * (half / abs(item.difference - largest)) ** 2, n * (half / largest) ** 2))
    for multiple, given in answers.items():
        shares = (given.count(name) / releases for name in ("passed", "undecided", "failed"))
        row(f"{n:,}", "same" if side > 0 else "other", f"{multiple:g}", f"{shifts[multiple]:+.3f}", *shares)
    if needed:
        stays, equal = np.median(needed, axis=0)
        print(
            f"\nequally good, undecided: the median of the rows that would decide is {stays:,.0f} if the difference "
            f"stays as it is, {equal:,.0f} if it is 0.\n"
        )


def rounded(releases: int, n: int = 1000) -> None:
    """Decisions on NLL of rounded targets beside those on the same targets before."""
    steps, factors = (None, 0.001, 0.1, 1.0, 10.0), (1.0, 1.1, 1.2, 1.35, 1.75)
    metric = METRICS["nll_mean"]
    answers = {(step, factor): list[str]() for step in steps for factor in factors}
    skills = {step: list[float]() for step in steps}
    for release in range(releases):
        rng = np.random.default_rng([7, release])
        center = 20.0 * rng.standard_normal(n)
        exact = center + 10.0 * rng.standard_normal(n)
        resampling = PairedResampling(n, 500, release)
        for step in steps:
            y = exact if step is None else np.round(exact / step) * step
            found = resolution(y)
            scores = {
                factor: negative_log_likelihood(y, Normal(center, np.full(n, 10.0 * factor)), step=found)[:, None]
                for factor in factors
            }
            used = float(scores[1.0].mean())
            skill = max(0.0, metric.marginal(y) - used)
            skills[step].append(skill)
            margin = Margin.of("5 % of skill").absolute(used, skill)
            for factor in factors:
                item = resampling.compare(scores[factor], scores[1.0], mean_of)
                answers[step, factor].append(answer_of(item, margin))
    head("rounded to", "spread wrong by", "skill", "passed", "undecided", "failed", "as on the exact targets")
    for (step, factor), given in answers.items():
        shares = (given.count(name) / releases for name in ("passed", "undecided", "failed"))
        same = np.mean([one == other for one, other in zip(given, answers[None, factor], strict=True)])
        row("not" if step is None else f"{step:g}", f"{factor:g}", f"{np.mean(skills[step]):.3f}", *shares, same)


def main() -> None:
    given = asked(__doc__, sizes=[125, 500, 2000], multiples=[-2.0, 0.0, 1.0, 2.0, 4.0], releases=200, rounded=False)
    machine()
    rounded(2 * given.releases)
    if given.rounded:
        return
    head("n", "side", "worse by (margins)", "shift", "passed", "undecided", "failed")
    for n in given.sizes:
        split = Split(n)
        for side in (1, -1):
            decide(split, side, given.multiples, given.releases)


if __name__ == "__main__":
    main()
