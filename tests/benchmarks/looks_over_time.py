"""Looks over time: true versions ever called wrong, average run length, power and delay; against alpha spending.

python tests/benchmarks/looks_over_time.py                        (simulated p-values; two minutes)
python tests/benchmarks/looks_over_time.py --measure 0 25 a.npz   (evaluations 0 to 24 of a true version, 500 rows each)
python tests/benchmarks/looks_over_time.py --whole a.npz b.npz    (what these p-values are, and what rules make of them)
"""

import sys
from bisect import bisect_left, insort

import numpy as np
from scipy.special import ndtr
from simulations import head, row

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Normal
from congruence.kernels.monitoring.evidence import (
    ScoreSums,
    detector,
    likeliest_start,
    martingale,
    players,
    score_bet,
    spending,
)
from congruence.kernels.pit import pit_scores
from congruence.kernels.protocol import EXACT
from congruence.tasks.solving.solve import measure

LEVEL, RUN_LENGTH, VERSIONS, AT_ONCE = 0.05, 1000.0, 4000, 200


def p_values(effects: tuple[Array, Array], versions: int, rng: np.random.Generator) -> Array:
    """p-values (2, versions, looks) of two tests of one look, shifted by ``effects`` standard errors; 999 draws each.

    Their statistics are correlated by .3, as those of CCE and calibration on the same rows are.
    """
    first = rng.normal(size=(versions, len(effects[0])))
    second = 0.3 * first + np.sqrt(1.0 - 0.09) * rng.normal(size=first.shape)
    exact = np.stack([ndtr(-(first + effects[0])), ndtr(-(second + effects[1]))])
    return np.asarray((1.0 + rng.binomial(999, exact)) / 1000.0)


def former(p: Array) -> Array:
    """log e of the mixture of all powers of the corrected p-value: the account before several players bet."""
    x = -np.log(np.minimum(1.0, 2.0 * p.min(axis=0)))
    small, safe = x < 1e-3, np.where(x < 1e-3, 1.0, x)
    large = safe + np.log1p(-(1.0 + safe) * np.exp(-safe)) - 2.0 * np.log(safe)
    return np.asarray(np.where(small, np.log(0.5 + x / 6.0), large))[None]


def rules(p: Array) -> dict[str, Array]:
    """Whether each rule calls the version wrong at a look, (versions, looks)."""
    corrected, bar = np.minimum(1.0, 2.0 * p.min(axis=0)), np.log(1.0 / LEVEL)
    product = martingale(players(p[0], p[1], np.nan))
    return {
        "spending 6a / (pi^2 k^2) alone": spending(corrected, LEVEL) >= bar,
        "product of one e-value a look": martingale(former(p)) >= bar,
        "martingale of all players": product >= bar,
        "half martingale, half spending (the account)": np.logaddexp(product, spending(corrected, LEVEL / 2.0))
        - np.log(2.0)
        >= bar,
    }


def first(called: Array) -> Array:
    """The look of the first call, counted from 1; infinity where there is none."""
    return np.where(called.any(axis=1), called.argmax(axis=1) + 1.0, np.inf)


def found_at(effects: tuple[Array, Array], versions: int, seed: int) -> dict[str, Array]:
    """When each rule calls versions wrong, (versions,)."""
    rng = np.random.default_rng(seed)
    called = [rules(p_values(effects, AT_ONCE, rng)) for _ in range(versions // AT_ONCE)]
    found = [{name: first(part) for name, part in each.items()} for each in called]
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def alarms(effects: tuple[Array, Array], versions: int, seed: int, *, before: bool = False) -> tuple[Array, Array]:
    """When the e-detector raises its alarm, and the start that it names, (versions,) both; NaN where none."""
    rng, told, began = np.random.default_rng(seed), [], []
    for _ in range(versions // AT_ONCE):
        p = p_values(effects, AT_ONCE, rng)
        log_e = former(p) if before else players(p[0], p[1], np.nan)
        at = first(detector(log_e) >= np.log(RUN_LENGTH))
        told.append(at)
        ends = [likeliest_start(log_e[:, v, : int(k)]) if np.isfinite(k) else np.nan for v, k in enumerate(at)]
        began.append(np.array(ends, dtype=np.float64))
    return np.concatenate(told), np.concatenate(began)


def bets(pit: Array) -> Array:
    """log e of bets on the PIT values of looks, (looks, rows)."""
    found, sums = [], ScoreSums()
    for rows in pit:
        log_e, sums = score_bet(pit_scores(rows), sums)
        found.append(log_e)
    return np.array(found)


def pitmon(pit: Array, rng: np.random.Generator, bins: int = 100) -> float:
    """The look at which PITMonitor's published rule raises its alarm (its defaults); infinity where it does not.

    Ranks of PIT values among the earlier ones are bet on by a histogram, M = e (M + 1 / (t (t + 1))), alarm at 1 / a.
    """
    seen: list[float] = []
    counts, evidence = np.ones(bins), 0.0
    for t, value in enumerate(pit.ravel(), 1):
        insort(seen, value)
        rank = (bisect_left(seen, value) + rng.uniform()) / t
        at = min(int(rank * bins), bins - 1)
        evidence = counts[at] / counts.sum() * bins * (evidence + 1.0 / (t * (t + 1.0)))
        counts[at] += 1.0
        if evidence >= 1.0 / LEVEL:
            return float(1 + (t - 1) // pit.shape[1])
    return np.inf


def print_pit_values(versions: int = 100, looks: int = 50, rows: int = 150) -> None:
    """On PIT values alone: the players who bet on them, and PITMonitor."""
    print()
    head(f"{looks} looks of {rows} rows", "PITMonitor: ever, median look", "martingale of bets", "e-detector of bets")
    for name, shift, scale, start in (
        ("true", 0.0, 1.0, 0),
        ("bias of .2 spreads from the first look on", 0.2, 1.0, 0),
        ("bias of .2 spreads from look 26 on", 0.2, 1.0, 25),
        ("spread 20 % too small from look 26 on", 0.0, 1.2, 25),
    ):
        rng, found = np.random.default_rng(3), []
        for _ in range(versions):
            z = rng.normal(size=(looks, rows))
            z[start:] = shift + scale * z[start:]
            pit = ndtr(z)
            log_e = bets(pit)[None, None]
            calls = martingale(log_e) >= np.log(1.0 / LEVEL), detector(log_e) >= np.log(RUN_LENGTH)
            found.append([pitmon(pit, rng), first(calls[0])[0], first(calls[1])[0]])
        ever, median = np.isfinite(found).mean(axis=0), np.median(found, axis=0)
        row(name, *(f"{a:.2f}, {b:.0f}" for a, b in zip(ever, median, strict=True)))


def measured(start: int, count: int, file: str, rows: int = 500) -> None:
    """p-values of a true version as evaluations give them: two tests on ``rows`` rows, new ones each time."""
    metrics = ["cce", "congruence_test", "calibration"]
    found, pit = [], []
    for look in range(start, start + count):
        rng = np.random.default_rng([7, look])
        x = rng.normal(size=(rows, 2))
        loc, scale = x[:, 0] + np.sin(2.0 * x[:, 1]), 0.5 + 0.3 * np.abs(x[:, 0])
        y = rng.normal(loc, scale)
        done = measure(EXACT, x, y, {"version": Normal(loc, scale)}, metrics=metrics, keys=np.arange(rows))
        found.append((done["version"].result.test.p_value, done["version"].calibration.test.p_value))
        pit.append(ndtr((y - loc) / scale))
    np.savez(file, p=np.array(found), pit=np.array(pit))


def print_whole(files: list[str]) -> None:
    """Whether these p-values are fit for multiplication: no player gains by them on average."""
    p = np.concatenate([np.load(file)["p"] for file in files]).T
    looks = p.shape[1]
    print(
        f"\n{looks} looks at a true version: p <= .05 by CCE's test in {np.mean(p[0] <= 0.05):.3f}, by that of", end=" "
    )
    print(f"calibration in {np.mean(p[1] <= 0.05):.3f}, by both corrected in {np.mean(2 * p.min(axis=0) <= 0.05):.3f};")
    print(f"quartiles {np.round(np.quantile(p, [0.25, 0.5, 0.75], axis=1).T, 2).tolist()}", end=", ")
    e = np.exp(martingale(players(p[0][:, None], p[1][:, None], np.nan)))[:, 0]
    print(f"mean e-value {e.mean():.3f} (standard error {e.std(ddof=1) / np.sqrt(looks):.3f})")
    rng, ever, alarm = np.random.default_rng(8), [], []
    for _ in range(VERSIONS // AT_ONCE):
        drawn = p[:, rng.integers(looks, size=(AT_ONCE, 1000))]
        ever.append({name: called.any(axis=1).mean() for name, called in rules(drawn).items()})
        alarm.append(first(detector(players(drawn[0], drawn[1], np.nan)) >= np.log(RUN_LENGTH)))
    print(f"1,000 looks drawn from these, {VERSIONS} versions, ever wrong:")
    for name in ever[0]:
        row(name, f"{np.mean([part[name] for part in ever]):.4f}")
    cut = np.minimum(np.concatenate(alarm), 1001.0)
    print(f"e-detector: alarm within 1,000 looks in {np.mean(cut <= 1000):.3f}, average cut at 1,000: {cut.mean():.0f}")


def main() -> None:
    none = np.zeros(1000)
    true = found_at((none, none), VERSIONS, 0)
    cases = ((3.0, 3.0), (1.0, 0.0), (1.0, 1.0), (2.0, 2.0))
    found = [found_at((np.full(100, a), np.full(100, b)), VERSIONS, 1) for a, b in cases]
    head("rule", "true: ever wrong in 1,000 looks", "effects 3, 3: at look 1", "1, 0: by 100, median", "1, 1", "2, 2")
    for name, at in true.items():
        cells = [f"{np.isfinite(part[name]).mean():.3f}, {np.median(part[name]):.0f}" for part in found[1:]]
        row(name, f"{np.isfinite(at).mean():.4f}", float(np.mean(found[0][name] == 1)), *cells)
    long = np.zeros(5000)
    alarm = np.minimum(alarms((long, long), 400, 5)[0], 5001.0)
    print(f"\nAverage run length at A = {RUN_LENGTH:.0f} (cut at 5,000 looks): {alarm.mean():.0f}\n", flush=True)
    head(
        "change at look 50 of", "told after: median, former rule", "not within 100 looks", "date: median error", "<= 3"
    )
    for a, b in ((1.0, 0.0), (1.0, 1.0), (2.0, 0.0), (2.0, 2.0), (3.0, 3.0)):
        shifted = np.arange(150) >= 50
        told, began = alarms((shifted * a, shifted * b), 1000, 2)
        old = alarms((shifted * a, shifted * b), 1000, 2, before=True)[0]
        after, error = told > 50, np.abs(began - 50)[np.isfinite(told) & (told > 50)]
        late = f"{np.median(told[after] - 50):.0f}, {np.median(old[old > 50] - 50):.0f}"
        missed, near = float(np.mean(~np.isfinite(told))), f"{np.mean(error <= 3):.2f}"
        row(f"{a:.0f}, {b:.0f}", late, missed, f"{np.median(error):.0f}", near)
    print_pit_values()


if __name__ == "__main__":
    if "--measure" in sys.argv:
        measured(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    elif "--whole" in sys.argv:
        print_whole(sys.argv[2:])
    else:
        main()
