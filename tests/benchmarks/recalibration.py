"""Recalibration: what it mends in wrong versions, and what it does to true ones, on rows that it has not seen.

python tests/benchmarks/recalibration.py --rows 2000 --splits 20
python tests/benchmarks/recalibration.py --labels     (fits with a few wrong labels)
python tests/benchmarks/recalibration.py --advised    (which corrections are advised, and what they bring on new rows)
python tests/benchmarks/recalibration.py --ensembles --splits 40    (whether corrected draws are called wrong)
"""

import itertools
from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np
from local_reading import embedded
from scipy.special import ndtri
from simulations import asked, head, machine, row, share

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import (
    Distribution,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    StudentT,
    ZeroInflated,
)
from congruence.kernels.engine.spectrum import input_spectrum
from congruence.kernels.kernel_functions import Polynomial
from congruence.kernels.recalibration import fit
from congruence.kernels.recalibration.fit import fit_recalibration, recalibration_rehearsal, rehearsal_split
from congruence.kernels.recalibration.recalibration_map import input_features
from congruence.kernels.scores import crps
from congruence.kernels.split import prepare
from congruence.tasks.sentences.calibration import CALIBRATION_P, WORTH_IT, CorrectionPreview, PreviewRow

KERNEL = Polynomial(3, 1.0, 1.0)
LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])


def normal(x: Array) -> Normal:
    return Normal(3.0 * np.sin(x[:, 0]), np.exp(0.4 * x[:, 1]))


def rate(x: Array) -> Array:
    return np.asarray(np.exp(0.5 + 0.5 * x[:, 1]))


def wrong_versions(x: Array) -> Iterator[tuple[str, Distribution, Distribution]]:
    """Name, the true law, and what the version says."""
    n, law = len(x), normal(x)
    shape = NegativeBinomial(rate(x), np.full(n, 0.5))
    yield "overconfident (scale halved)", law, Normal(law.loc, law.scale / 2.0)
    yield "overconfident on half of x", law, Normal(law.loc, law.scale / 2.0 ** (x[:, 0] > 0))
    yield "underconfident (scale doubled)", law, Normal(law.loc, law.scale * 2.0)
    yield "homoscedastic", law, Normal(law.loc, np.full(n, np.sqrt(np.mean(law.scale**2))))
    yield "biased, either sign", law, Normal(law.loc - 0.5 * law.scale * np.sin(1.5 * x[:, 0]), law.scale)
    yield "normal for t3", StudentT(np.full(n, 3.0), law.loc, law.scale), law
    yield "Poisson for negative binomial", shape, Poisson(rate(x))
    yield (
        "quantiles, 60 % of the width",
        law,
        Quantiles(LEVELS, law.loc[:, None] + 0.6 * np.outer(law.scale, ndtri(LEVELS))),
    )
    members = law.sample(20, seed=np.random.default_rng([n, 5])) - law.loc[:, None]
    yield "ensemble of 20, right", law, Samples(law.loc[:, None] + members)
    yield "ensemble of 20, half the spread", law, Samples(law.loc[:, None] + 0.5 * members)
    yield "ensemble of 5, half the spread", law, Samples(law.loc[:, None] + 0.5 * members[:, :5])
    off = 0.5 * (law.scale * np.sin(1.5 * x[:, 0]))[:, None]
    yield "ensemble of 20, biased, either sign", law, Samples(law.loc[:, None] - off + members)


def true_laws(x: Array) -> Iterator[tuple[str, Callable[[int], tuple[Distribution, Array]]]]:
    """Name, and seed -> (the true law as a version states it, targets)."""
    n, law = len(x), normal(x)
    laws: dict[str, Distribution] = {
        "normal": law,
        "t4": StudentT(np.full(n, 4.0), law.loc, law.scale),
        "Poisson": Poisson(rate(x)),
        "zero-inflated Poisson": ZeroInflated(Poisson(rate(x)), np.full(n, 0.3)),
        "mixture": Mixture(np.full((n, 2), 0.5), (Normal(law.loc - 2.0, law.scale), Normal(law.loc + 2.0, law.scale))),
    }

    def stated(of: Distribution) -> Callable[[int], tuple[Distribution, Array]]:
        return lambda seed: (of, drawn(of, seed))

    def ensemble(seed: int) -> tuple[Distribution, Array]:
        return Samples(law.sample(10, seed=np.random.default_rng([seed, 1]))), drawn(law, seed)

    yield from ((name, stated(of)) for name, of in laws.items())
    yield "ensemble of 10", ensemble


def drawn(law: Distribution, seed: int) -> Array:
    return law.sample(1, seed=np.random.default_rng([seed, 2]))[:, 0]


def mends(n: int, splits: int) -> None:
    head("version", "CCE before", "after", "truth", "CRPS before", "after", "truth", "NLL: after - truth")
    table: dict[str, list[list[float]]] = {}
    fitting = np.arange(2 * n) % 2 == 0
    for split in range(splits):
        x = np.random.default_rng([split, 3]).normal(size=(2 * n, 4))
        halves = rehearsal_split(embedded(x), fitting, input_kernel=KERNEL)
        prepared = prepare(halves.points, input_kernel=KERNEL, regularization=0.1)
        for name, law, version in wrong_versions(x):
            y = drawn(law, split)
            found = recalibration_rehearsal(halves, y, version)
            cce, score = found.changes["cce"], found.changes["crps"]
            truth, targets = law[~fitting], y[~fitting]
            right = prepared.evaluate(targets, {"": truth}, draws=0)[""].mean
            after = found.map(halves.points, version[~fitting])
            finite = after.has_density()
            lost = -after.log_prob(targets) + truth.log_prob(targets) if finite else np.full(1, np.nan)
            of_truth = (right, truth.crps(targets).mean())
            numbers = [cce.before, cce.after, of_truth[0], score.before, score.after, of_truth[1], float(np.mean(lost))]
            table.setdefault(name, []).append(numbers)
    for name, rows in table.items():
        row(name, *(f"{value:.4f}" for value in np.mean(rows, axis=0)))


def harms(n: int, splits: int) -> None:
    head("true law", "left as it is", "CRPS of new targets: relative change, mean", "worst of all splits")
    table: dict[str, list[tuple[bool, float]]] = {}
    for split in range(splits):
        x = np.random.default_rng([split, 4]).normal(size=(n, 4))
        points = embedded(x)
        features = input_features(input_spectrum(points, KERNEL, 0.1), points)
        for name, draw in true_laws(x):
            law, y = draw(split)
            fitted = fit_recalibration(features, y, law)
            new = draw(split + splits)[1]
            change = float(np.mean(fitted(points, law).crps(new)) / np.mean(law.crps(new)) - 1.0)
            table.setdefault(name, []).append((fitted.changes_nothing, change))
    for name, rows in table.items():
        kept, change = np.array(rows).T
        row(name, f"{kept.mean():.2f}", f"{change.mean():+.5f}", f"{change.max():+.4f}")


NEW_ROWS = 4000


def case(kind: str, n: int, rng: np.random.Generator) -> tuple[Array, Array, Distribution]:
    """Inputs, targets and what a version of that kind predicts: the truth is N(x_1, exp(.3 x_2)^2), or counts."""
    x = rng.normal(size=(n, 2))
    mean, spread, z = x[:, 0], np.exp(0.3 * x[:, 1]), rng.normal(size=n)
    what, _, size = kind.rpartition(" ")
    if what == "spread times":
        law: Distribution = Normal(mean, float(size) * spread)
    elif what == "bias of":
        law = Normal(mean + float(size) * spread, spread)
    elif what == "quantiles, spread times":
        law = Quantiles(LEVELS, mean[:, None] + float(size) * np.outer(spread, ndtri(LEVELS)))
    elif kind == "normal for t3":
        z, law = rng.standard_t(3, n) / np.sqrt(3.0), Normal(mean, spread)
    elif kind == "spread times 100 in a half":
        law = Normal(mean, spread * np.where(x[:, 0] > 0.0, 100.0, 1.0))
    else:
        return x, rng.poisson(rate(x) * rng.gamma(2.0, 0.5, n)).astype(float), Poisson(rate(x))
    return x, mean + spread * z, law


def gained(fitted: fit.RecalibrationMap, x: Array, y: Array, law: Distribution) -> float:
    """By how many per cent the CRPS of rows falls."""
    after = law if fitted.changes_nothing else fitted(x, law)
    return 100.0 * (1.0 - float(crps(y, after).mean() / crps(y, law).mean()))


def wrong_labels(splits: int) -> None:
    head("version", "rows", "wrong labels", "CRPS falls by % (fitted as they are)", "(within eight spreads)")
    kinds = ("spread times .667", "bias of .3", "normal for t3", "spread times 100 in a half", "Poisson")
    for kind, n, wrong in ((kind, n, wrong) for kind in kinds for n in (400, 1200) for wrong in (0, 1, 2)):
        found: list[list[float]] = []
        for split in range(splits):
            rng = np.random.default_rng([split, n, 5])
            (x, y, law), new = case(kind, n, rng), case(kind, NEW_ROWS, rng)
            y[rng.choice(n, wrong, replace=False)] = 999.0 if kind == "Poisson" else 1e6
            features, gains = input_features(input_spectrum(x, KERNEL, 0.1), x), []
            for reach in (np.inf, 8.0):
                with patch.object(fit, "_REACH", reach):
                    gains.append(gained(fit_recalibration(features, y, law, seed=split), *new))
            found.append(gains)
        row(kind, f"{n:,}", wrong, *(f"{value:.2f}" for value in np.mean(found, axis=0)))


def advised(splits: int) -> None:
    head(
        "version",
        "rows",
        "a score falls beyond chance",
        "the fault alone is gone",
        "CRPS of new rows falls by %",
        "least",
    )
    kinds = ("spread times 1", "spread times .8", "spread times .7", "spread times 1.3", "bias of .15", "bias of .3",
             "quantiles, spread times .7", "quantiles, spread times .8", "normal for t3", "Poisson")  # fmt: skip
    for kind, n in ((kind, n) for kind in kinds for n in (300, 600, 1200)):
        beyond, alone, gains = 0, 0, []
        for split in range(splits):
            rng = np.random.default_rng([split, n, 6])
            (x, y, law), new = case(kind, n, rng), case(kind, NEW_ROWS, rng)
            found = recalibration_rehearsal(rehearsal_split(x, np.arange(n) % 2 == 0, input_kernel=KERNEL), y, law)
            named = {"CRPS": "crps", "NLL": "nll"}
            changes = {word: found.changes[name] for word, name in named.items() if name in found.changes}
            rows = [PreviewRow(word, one.before, one.after, one.standard_error) for word, one in changes.items()]
            enough = {"CRPS": WORTH_IT["CRPS"] * rows[0].now, "NLL": WORTH_IT["NLL"]}
            preview = CorrectionPreview("", n, n, (*rows, PreviewRow(CALIBRATION_P, *found.p_values)))
            if any(each.is_better and each.now - each.then >= enough[each.name] for each in rows):
                beyond += 1
            elif preview.leaves_no_fault:
                alone += 1
                gains.append(gained(found.map, *new))
        said = (f"{np.mean(gains):.2f}", f"{np.min(gains):.2f}") if gains else ("", "")
        row(kind, f"{n:,}", f"{beyond / splits:.2f}", f"{alone / splits:.2f}", *said)


def corrected(members: int, factor: float, fitted_on: int, n: int, seed: int) -> tuple[float, float]:
    """p-values of both tests of a version that was corrected on other rows: of a normal one, or of so many draws."""
    rng, rows = np.random.default_rng([seed, members, int(100 * factor)]), fitted_on + n
    x = rng.normal(size=(rows, 2))
    mean, spread = 2.0 * np.sin(x[:, 0]), np.exp(0.3 * x[:, 1])
    y = mean + spread * rng.normal(size=rows)
    law: Distribution = Normal(mean, spread / factor)
    if members:
        law = Samples(mean[:, None] + spread[:, None] * rng.normal(size=(rows, members)) / factor)
    unit = x / np.hypot(1.0, np.linalg.norm(x, axis=1))[:, None]
    known, new = slice(0, fitted_on), slice(fitted_on, None)
    features = input_features(input_spectrum(unit[known], KERNEL, 0.1), unit[known])
    after = fit_recalibration(features, y[known], law[known])(unit[new], law[new])
    split = prepare(unit[new], input_kernel=KERNEL)
    tested = split.calibration_test(y[new], after, seed=seed)
    return tested.p_value, split.congruence_test(y[new], after, draws=199, seed=seed).p_value


def ensembles(splits: int) -> None:
    head("draws (0: a normal)", "spread too small by", "fitted on", "tested on", "calibration", "congruence", "both")
    for (fitted_on, n), members in itertools.product(((2000, 500), (750, 750)), (0, 5, 10, 20)):
        for factor in (1.5, 0.67):
            p = np.array([corrected(members, factor, fitted_on, n, seed) for seed in range(splits)])
            found = (*(p <= 0.05).T, 2.0 * p.min(axis=1) <= 0.05)
            row(members, factor, f"{fitted_on:,}", n, *(share(each) for each in found))


def main() -> None:
    given = asked(__doc__, rows=2000, splits=20, labels=False, advised=False, ensembles=False)
    machine()
    for part, wanted in ((wrong_labels, given.labels), (advised, given.advised), (ensembles, given.ensembles)):
        if wanted:
            part(given.splits)
            return
    print(f"## Wrong versions, n = {given.rows}, 3 splits\n", flush=True)
    mends(given.rows, 3)
    print(f"\n## True laws, n = {given.rows}, {given.splits} splits\n", flush=True)
    harms(given.rows, given.splits)


if __name__ == "__main__":
    main()
