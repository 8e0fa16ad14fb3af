"""Alpha spending against e-values: true versions ever called wrong, and when wrong ones are found.

python tests/benchmarks/many_looks.py
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from congruence.kernels.arrays import Array
from congruence.kernels.many_looks import LookAccount

LEVEL, LOOKS, VERSIONS = 0.05, 50, 20_000
WEIGHTS = 6.0 / (np.pi * np.arange(1, LOOKS + 1)) ** 2


def spent(p_values: Array) -> Array:
    """Looks (versions, looks) that the account calls wrong."""
    account, levels = LookAccount(LEVEL), []
    for number in range(p_values.shape[1]):
        account, look = account.with_look("", str(number), 1.0)
        levels.append(look.level)
    return np.asarray(p_values <= np.array(levels))


def weighted_e_values(p_values: Array) -> Array:
    """sum_k w_k e_k >= 1 / alpha with e = 1 / (2 sqrt(p)): valid for looks of any dependence."""
    return np.asarray(np.cumsum(WEIGHTS / (2.0 * np.sqrt(p_values)), axis=1) >= 1.0 / LEVEL)


def multiplied_e_values(p_values: Array) -> Array:
    """prod e_k >= 1 / alpha: valid only where every look has data of its own."""
    return np.asarray(np.cumsum(-np.log(2.0 * np.sqrt(p_values)), axis=1) >= np.log(1.0 / LEVEL))


def plain(p_values: Array) -> Array:
    return np.asarray(p_values <= LEVEL)


RULES = {
    "every look at 5 %": plain,
    "alpha spending (the account)": spent,
    "weighted sum of e-values": weighted_e_values,
    "product of e-values": multiplied_e_values,
}


def p_values(design: str, effect: Array) -> Array:
    """Two-sided p-values of looks at versions whose standardised effect at look k is ``effect`` (looks,)."""
    noise = np.random.default_rng(7).normal(size=(VERSIONS, LOOKS + 1))
    common, noise = noise[:, :1], noise[:, 1:]
    if design == "one split":  # every look at nearly the same targets
        noise = np.sqrt(0.9) * common + np.sqrt(0.1) * noise
    if design == "growing data":
        counts = np.arange(1, LOOKS + 1)
        noise, effect = np.cumsum(noise, axis=1) / np.sqrt(counts), np.cumsum(effect) / np.sqrt(counts)
    return np.asarray(np.maximum(2.0 * ndtr(-np.abs(noise + effect)), 1e-300))


DRAWS = {"congruence": 999, "calibration": 9_999}


def monte_carlo(exact: Array, draws: int, rng: np.random.Generator) -> Array:
    """The p-values that so many drawn splits give where the exact ones are ``exact``."""
    return np.asarray((1.0 + rng.binomial(draws, exact)) / (draws + 1.0))


def watched(design: str, effect: Array) -> Array:
    """p-values as a watcher has them: of two dependent Monte-Carlo tests, by Bonferroni (``truth_p_value``)."""
    rng = np.random.default_rng(11)
    first = p_values(design, effect)
    z = ndtri(1.0 - first / 2.0) * rng.choice([-1.0, 1.0], size=first.shape)
    second = 2.0 * ndtr(-np.abs(np.sqrt(0.5) * z + np.sqrt(0.5) * rng.normal(size=first.shape)))
    found = monte_carlo(first, DRAWS["congruence"], rng), monte_carlo(second, DRAWS["calibration"], rng)
    return np.minimum(1.0, 2.0 * np.minimum(*found))


def main() -> None:
    never, from_start, late = np.zeros(LOOKS), np.full(LOOKS, 3.0), np.where(np.arange(LOOKS) >= 20, 5.0, 0.0)
    weak = np.full(LOOKS, 1.0)
    print("| looks | rule | true: ever wrong | effect 3: at look 1 | by 5 | effect 1: by 50 | 5 from look 21: by 25 |")
    print("|---|---|---|---|---|---|---|")
    for design in ("new data", "growing data", "one split"):
        for name, rule in RULES.items():
            found = [rule(p_values(design, effect)) for effect in (never, from_start, from_start, weak, late)]
            shares = [np.mean(np.any(f[:, :k], axis=1)) for f, k in zip(found, (LOOKS, 1, 5, LOOKS, 25), strict=True)]
            print(f"| {design} | {name} | " + " | ".join(f"{share:.3f}" for share in shares) + " |")
    print()
    print("| looks | rule | true: ever wrong | effect 3: look 1 | by 5 | 5 from look 9: by 12 | 5 from 21: by 50 |")
    print("|---|---|---|---|---|---|---|")
    early = np.where(np.arange(LOOKS) >= 8, 5.0, 0.0)
    for design in ("new data", "growing data", "one split"):
        for name in ("every look at 5 %", "alpha spending (the account)"):
            found = [RULES[name](watched(design, effect)) for effect in (never, from_start, from_start, early, late)]
            shares = [np.mean(np.any(f[:, :k], axis=1)) for f, k in zip(found, (LOOKS, 1, 5, 12, LOOKS), strict=True)]
            print(f"| {design} | {name} | " + " | ".join(f"{share:.3f}" for share in shares) + " |")


if __name__ == "__main__":
    main()
