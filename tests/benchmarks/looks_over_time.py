"""Looks over time: true versions ever called wrong, average run length, power and delay; against alpha spending.

python tests/benchmarks/looks_over_time.py
python tests/benchmarks/looks_over_time.py --whole 200    (p-values of whole evaluations, 500 rows each)
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.special import eval_sh_legendre, ndtr

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Normal
from congruence.kernels.monitoring import ScoreSums, e_values, score_bet
from congruence.kernels.monitoring.evidence import detector, martingale, spending
from congruence.kernels.protocol.protocol import EXACT
from congruence.tasks.mlflow_plugin.table_evaluation import TableEvaluationSettings
from congruence.tasks.solving.measurement import measure

LEVEL, RUN_LENGTH, VERSIONS = 0.05, 1000.0, 4000


def p_values(effect: Array, versions: int, seed: int = 0) -> Array:
    """p-values of looks whose statistic is shifted by ``effect`` standard errors, as 1,000 draws give them."""
    rng = np.random.default_rng(seed)
    exact = ndtr(-(rng.normal(size=(versions, len(effect))) + effect))
    return np.asarray((1.0 + rng.binomial(999, exact)) / 1000.0)


def rules(p: Array) -> dict[str, Array]:
    """Whether each rule calls the version wrong at a look, (versions, looks)."""
    product, spent = martingale(e_values(p)), spending(p, LEVEL)
    bar = np.log(1.0 / LEVEL)
    return {
        "spending 6a / (pi^2 k^2) alone": spent >= bar,
        "product of e-values alone": product >= bar,
        "half each (the account)": np.logaddexp(product, spending(p, LEVEL / 2.0)) - np.log(2.0) >= bar,
    }


def first(called: Array) -> Array:
    """The look of the first call, counted from 1; infinity where there is none."""
    return np.where(called.any(axis=1), called.argmax(axis=1) + 1.0, np.inf)


def scores(u: Array) -> Array:
    return np.stack([np.sqrt(2 * j + 1) * eval_sh_legendre(j, u) for j in range(1, 5)], axis=1)


def bets(shift: float, scale: float, looks: int, rows: int, versions: int) -> Array:
    """log e of bets on the PIT scores of normal targets that are shifted and scaled against N(0, 1)."""
    rng, found = np.random.default_rng(3), np.empty((versions, looks))
    for version in range(versions):
        sums = ScoreSums()
        for look in range(looks):
            bet = score_bet(scores(ndtr(rng.normal(shift, scale, size=rows))), sums)
            found[version, look], sums = bet.log_e, bet.sums
    return found


def whole_p_values(looks: int, rows: int) -> Array:
    """p-values of a true version as an evaluation gives them: two drawn tests on ``rows`` rows, new ones each time."""
    settings = TableEvaluationSettings(metrics=["cce", "congruence_test", "calibration"])
    found = np.empty(looks)
    for look in range(looks):
        rng = np.random.default_rng([7, look])
        x = rng.normal(size=(rows, 2))
        loc, scale = x[:, 0] + np.sin(2.0 * x[:, 1]), 0.5 + 0.3 * np.abs(x[:, 0])
        law = Normal(loc, scale)
        measured = measure(settings, EXACT, x, rng.normal(loc, scale), {"version": law}, keys=np.arange(rows))
        calibration = measured.calibration["version"].test.p_value
        found[look] = min(1.0, 2.0 * min(measured.tests["version"].p_value, calibration))
    return found


def print_whole(looks: int, rows: int) -> None:
    """Whether these p-values are fit for multiplication: their e-values have a mean of at most 1."""
    p = whole_p_values(looks, rows)
    e = np.exp(e_values(p))
    error = e.std(ddof=1) / np.sqrt(looks)
    drawn = np.random.default_rng(8).choice(p, size=(VERSIONS, 1000))
    ever = {name: called.any(axis=1).mean() for name, called in rules(drawn).items()}
    print(
        f"\n{looks} looks at a true version, {rows} rows each: p <= .05 in {np.mean(p <= 0.05):.3f}, quartiles", end=" "
    )
    print(f"{np.round(np.quantile(p, [0.25, 0.5, 0.75]), 2)}, mean e-value {e.mean():.2f} (standard error {error:.2f})")
    print(f"1,000 looks drawn from these, {VERSIONS} versions: ever wrong {ever}")


def main() -> None:
    true = rules(p_values(np.zeros(1000), VERSIONS))
    print(
        "| rule | true: ever wrong in 1,000 looks | effect 3: at look 1 | effect 1: by 100, median | effect 2: median |"
    )
    print("|---|---|---|---|---|")
    three, one, two = (rules(p_values(np.full(100, e), VERSIONS, 1)) for e in (3.0, 1.0, 2.0))
    for name, called in true.items():
        found = first(one[name])
        print(
            f"| {name} | {called.any(axis=1).mean():.3f} | {three[name][:, 0].mean():.3f} | "
            f"{np.isfinite(found).mean():.3f}, {np.median(found):.0f} | {np.median(first(two[name])):.0f} |"
        )
    sums, _ = detector(e_values(p_values(np.zeros(20_000), 400)))
    alarm = np.minimum(first(sums >= np.log(RUN_LENGTH)), 20_001)
    print(f"\nAverage run length at A = {RUN_LENGTH:.0f} (cut at 20,000 looks): {alarm.mean():.0f}\n")
    print("| change at look 50 of | told after, median | not within 100 looks | date: median error | within 3 looks |")
    print("|---|---|---|---|---|")
    for effect in (1.0, 2.0, 3.0):
        p = p_values(np.where(np.arange(150) >= 50, effect, 0.0), VERSIONS, 2)
        sums, starts = detector(e_values(p))
        alarm = first(sums >= np.log(RUN_LENGTH))
        after = alarm > 50
        told = np.isfinite(alarm) & after
        began = starts[np.flatnonzero(told), alarm[told].astype(int) - 1]
        late = np.median(alarm[after] - 50), np.mean(~np.isfinite(alarm)), np.median(np.abs(began - 50))
        print(
            f"| {effect:.0f} | {late[0]:.0f} | {late[1]:.3f} | {late[2]:.0f} | {np.mean(np.abs(began - 50) <= 3):.2f} |"
        )
    print("\n| 20 looks of 500 rows, bets on PIT scores | ever wrong | median look |")
    print("|---|---|---|")
    for name, shift, scale in (
        ("true", 0.0, 1.0),
        ("bias of .1 spreads", 0.1, 1.0),
        ("spread 10 % too small", 0.0, 1.1),
    ):
        called = martingale(bets(shift, scale, 20, 500, 300)) >= np.log(1.0 / LEVEL)
        print(f"| {name} | {called.any(axis=1).mean():.3f} | {np.median(first(called)):.0f} |")


if __name__ == "__main__":
    if "--whole" in sys.argv:
        print_whole(int(sys.argv[2]), 500)
    else:
        main()
