"""How often the PIT interpreter is wrong: its verdicts on uniform PIT values, and on laws without a second mode.

    python tests/benchmarks/pit_verdicts.py [--repetitions 200]

Prints the tables of pit_verdicts.md.
"""

import collections

import numpy as np
from scipy.special import ndtr
from simulations import asked, head, machine, row

from congruence.kernels.distributions import Poisson
from congruence.kernels.pit import pit_values
from congruence.kernels.pit_interpreter.interpretation import interpret_pit
from congruence.kernels.pit_interpreter.shape import KINDS

LAWS = {
    "uniform": lambda rng, n: rng.uniform(-np.sqrt(3.0), np.sqrt(3.0), n),
    "uniform, U(-3, 3)": lambda rng, n: rng.uniform(-3.0, 3.0, n),
    "Beta(2, 2)": lambda rng, n: (rng.beta(2.0, 2.0, n) - 0.5) / np.sqrt(0.05),
    "gamma, shape 3": lambda rng, n: rng.gamma(3.0, 1.0, n) / np.sqrt(3.0) - np.sqrt(3.0),
    "Laplace": lambda rng, n: rng.laplace(0.0, np.sqrt(0.5), n),
    "two modes, -+1.4 sd": lambda rng, n: _two_modes(rng, n, 1.4),
    "two modes, -+2 sd": lambda rng, n: _two_modes(rng, n, 2.0),
    "two modes, -+3 sd": lambda rng, n: _two_modes(rng, n, 3.0),
}


def _two_modes(rng: np.random.Generator, n: int, distance: float) -> np.ndarray:
    """Halves N(-distance, 1) and N(distance, 1), brought to variance 1."""
    return (rng.choice([-distance, distance], n) + rng.normal(size=n)) / np.sqrt(1.0 + distance**2)


def poisson(rng: np.random.Generator, n: int) -> np.ndarray:
    """Randomised PIT values of counts under their own law."""
    rate = rng.uniform(0.2, 3.0, n)
    return pit_values(rng.poisson(rate), Poisson(rate), seed=int(rng.integers(2**31)))


def false_alarms(repetitions: int) -> None:
    """Share of samples of calibrated PIT values in which each kind of fault is among the findings."""
    head("PIT values", "n", "samples", "any fault", "most frequent", "abstained")
    for name, draw in (("uniform", lambda rng, n: rng.uniform(size=n)), ("Poisson, randomised", poisson)):
        for n in (100, 1_000, 10_000, 100_000, 1_000_000):
            count = {100_000: repetitions // 2, 1_000_000: max(1, repetitions // 20)}.get(n, repetitions)
            kinds, faulty, abstained = collections.Counter(), 0, 0
            for i in range(count):
                verdict = interpret_pit(draw(np.random.default_rng([n, i]), n), seed=i).verdict
                kinds.update(finding.kind for finding in verdict.findings)
                faulty += bool(verdict.findings)
                abstained += verdict.abstained
            most = "".join(f"{kind} {times / count:.3f}" for kind, times in kinds.most_common(1)) or "none"
            row(name, n, count, faulty / count, most, abstained / count)


def shapes(repetitions: int) -> None:
    """The leading verdict on laws with the predictive mean and variance, and how often another mode is found."""
    head("law of the outcomes", "n", "samples", "leading verdict", "more modes")
    for name, draw in LAWS.items():
        for n in (100, 300, 1_000, 10_000, 100_000):
            labels, modes = collections.Counter(), 0
            for i in range(repetitions):
                verdict = interpret_pit(ndtr(draw(np.random.default_rng([n, i]), n)), seed=i).verdict
                labels[verdict.label] += 1
                modes += any(finding.kind == KINDS[-1] for finding in verdict.findings)
            label, times = labels.most_common(1)[0]
            row(name, n, repetitions, f"{label} {times / repetitions:.2f}", modes / repetitions)


if __name__ == "__main__":
    repetitions = asked(__doc__, repetitions=200).repetitions
    machine()
    false_alarms(repetitions)
    shapes(max(repetitions // 8, 1))
