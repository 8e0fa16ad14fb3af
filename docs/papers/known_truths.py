"""Young et al. (2025) on data whose truth is known: figures 1, 13, 7 (rejection) and 14 (NLL on a map)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
from experiment import Array, Claim, Options, Outcome, largest_chance_ece, main, published_ece
from networks import train
from pictures import calibration_columns, maps, rejection_pictures, trap
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import NearestNeighbors

from congruence.kernels import (
    RBF,
    Binomial,
    Distribution,
    DoublePoisson,
    NegativeBinomial,
    Normal,
    Poisson,
    absolute_error,
    conditional_congruence_error,
    congruence_test,
    expected_calibration_error,
    negative_log_likelihood,
    pit_values,
    prepare,
    rejection_curve,
)

FIGURE_1 = "Young et al. 2025, figure 1"
FIGURE_13 = "Young et al. 2025, appendix D.1, figure 13"
FIGURE_14 = "Young et al. 2025, appendix D.2, figure 14"
TRIALS = 60
RADIUS = 0.6
FIGURE_7 = "Young et al. 2025, appendix C.1, figure 7"
SHARES = (0.0, 0.2, 0.4, 0.6, 0.8)


def gaussian_trap(options: Options) -> Outcome:
    """X ~ N(0, 1), Y ~ N(3X, 1); the model says N(0, 10) whatever x is."""
    n = options.size(1000, 200)
    rng = np.random.default_rng(options.seed)
    x = rng.standard_normal(n)
    y = rng.normal(3.0 * x, 1.0)
    models = {
        "truth N(3x, 1)": Normal(3.0 * x, np.ones(n)),
        "marginal N(0, 10)": Normal(np.zeros(n), np.full(n, np.sqrt(10.0))),
    }
    rows, results = [], {}
    for name, model in models.items():
        result = conditional_congruence_error(x, y, model, input_kernel=RBF(0.5))
        test = congruence_test(x, y, model, input_kernel=RBF(0.5), draws=options.size(999, 199))
        results[name] = result
        low, high = result.interval()
        rows.append(
            {
                "model": name,
                "ECE": expected_calibration_error(y, model),
                "mean CCE": result.mean,
                "low": low,
                "high": high,
                "expected if true": test.expected,
                "p": test.p_value,
            }
        )
    table = pd.DataFrame(rows)
    true, wrong = table.to_dict("records")
    chance = largest_chance_ece(n, options.seed)
    claims = (
        Claim(
            "A model that ignores its input and has the right marginal achieves a near-perfect ECE.",
            FIGURE_1,
            wrong["ECE"] < chance,
            f"ECE {wrong['ECE']:.4f}, of the truth {true['ECE']:.4f}; a calibrated model of {n:,} rows stays below "
            f"{chance:.3f} in 99 of 100 samples",
        ),
        Claim(
            "Only a measure that sees the input, as CCE, recognises the discrepancy, at each x.",
            FIGURE_1,
            wrong["low"] > 3.0 * wrong["expected if true"] and wrong["p"] < 0.05 < true["p"],
            f"mean CCE {wrong['mean CCE']:.3f} [{wrong['low']:.3f}, {wrong['high']:.3f}], expected if true "
            f"{wrong['expected if true']:.3f}, p = {wrong['p']:.3f}; the truth has {true['mean CCE']:.4f}, expected "
            f"{true['expected if true']:.4f}, p = {true['p']:.2f}",
        ),
    )
    marginal = models["marginal N(0, 10)"]
    picture = trap(
        x,
        y,
        marginal.sample(1, seed=options.seed)[:, 0],
        marginal,
        pit_values(y, marginal),
        results["marginal N(0, 10)"].values,
        float(wrong["ECE"]),
    )
    notes = ("Exact kernel means instead of one draw per input.",)
    return Outcome("gaussian-trap", "The Gaussian trap", "CCE", claims, table, {"figure-1": picture}, notes)


def counts_ece(options: Options) -> Outcome:
    """Data from each of four truths with equal moments, each evaluated under the distribution that it comes from."""
    n = options.size(2000, 400)
    truths = count_truths(n, options.seed)
    x = truths["Gaussian"].mean()
    prepared = prepare(x, input_kernel=RBF(0.5))
    fits, pits, errors, said, rows = {}, {}, {}, {}, []
    for number, (name, truth) in enumerate(truths.items()):
        y = truth.sample(1, seed=options.seed + number)[:, 0]
        published = published_ece(y, truth)
        randomised = expected_calibration_error(y, truth)
        result = prepared.conditional_congruence_error(y, truth)
        test = congruence_test(x, y, truth, input_kernel=RBF(0.5), draws=options.size(999, 199))
        fits[name] = y, truth
        pits[name], errors[name] = pit_values(y, truth, kind="nonrandomized"), result
        said[name] = f"ECE {published:.3f} ({randomised:.3f} randomised)", f"mean CCE {result.mean:.4f}"
        rows.append(
            {
                "distribution": name,
                "ECE as published": published,
                "ECE with randomised PIT": randomised,
                "mean CCE": result.mean,
                "expected if true": test.expected,
                "p": test.p_value,
            }
        )
    table = pd.DataFrame(rows).set_index("distribution")
    counts = table.drop(index="Gaussian")
    gaussian, least = float(table["ECE as published"]["Gaussian"]), float(counts["ECE as published"].min())
    chance = largest_chance_ece(n, options.seed)
    claims = (
        Claim(
            "ECE is essentially zero for a true Gaussian model, but not for true models of counts.",
            FIGURE_13,
            bool(gaussian < chance and least > 2.0 * gaussian and least > chance),
            f"Gaussian {gaussian:.4f}; counts {least:.4f} to {counts['ECE as published'].max():.4f}; a "
            f"calibrated model of {n:,} rows stays below {chance:.3f} in 99 of 100 samples",
        ),
        Claim(
            "CCE is near zero for all four, as each is the truth.",
            FIGURE_13,
            bool((table["p"] > 0.05 / len(table)).all()),
            "; ".join(
                f"{name} {row['mean CCE']:.4f} (expected if true {row['expected if true']:.4f}, p = {row['p']:.2f})"
                for name, row in table.iterrows()
            ),
        ),
        Claim(
            "The ECE is an insufficient measure for counts because their PIT cannot be uniform.",
            FIGURE_13,
            bool((table["ECE with randomised PIT"] > chance).any()),
            f"the non-randomised PIT is what fails: with randomised PIT values, which are uniform for true counts, the "
            f"ECE is {counts['ECE with randomised PIT'].min():.4f} to {counts['ECE with randomised PIT'].max():.4f}, "
            f"as small as chance allows ({chance:.3f})",
        ),
    )
    figures = {"figure-13": calibration_columns(fits, pits, x, errors, said)}
    notes = (
        "ECE as published: 50 levels, weights by frequency, PIT at the top of each jump.",
        "The negative binomial is read as mean x and variance x + 0.1; as printed its mean would be x^2 / 0.9.",
    )
    return Outcome("counts-ece", "ECE on counts", "CCE", claims, table.reset_index(), figures, notes)


def count_truths(rows: int, seed: int) -> dict[str, Distribution]:
    """Return the truths of Young et al. (2025, figure 13) at x ~ U(1, 10): mean and variance x, epsilon = 0.1.

    The negative binomial has x^2 / epsilon successes, and here mean x and variance x + epsilon; with the probability
    1 - epsilon that is printed its mean would be x^2 / (1 - epsilon), and not "identical".
    """
    x = np.random.default_rng(seed).uniform(1.0, 10.0, rows)
    return {
        "Gaussian": Normal(x, np.sqrt(x)),
        "Poisson": Poisson(x),
        "Negative binomial": NegativeBinomial(x, 0.1 / x**2),
        "Double Poisson": DoublePoisson(x, np.ones(rows)),
    }


def rejection(options: Options) -> Outcome:
    """A Gaussian network; CCE at the test inputs from the validation split, without the test targets."""
    n = options.size(2000, 300)
    rng = np.random.default_rng(options.seed)
    rows, validation, (x, y) = (rejected_rows(n, rng) for _ in range(3))
    epochs, hidden = options.size(40, 10), (64, 64)
    network = train("gaussian", rows, validation, hidden=hidden, epochs=epochs, standardise=True, seed=options.seed)
    model = network.predict(x)
    result = conditional_congruence_error(
        *validation, network.predict(validation[0]), query=x, input_kernel=RBF(0.5), regularization=0.001
    )
    losses = {"MAE": absolute_error(y, model), "NLL": negative_log_likelihood(y, model)}
    found = {name: rejection_curve(result.values, loss) for name, loss in losses.items()}
    table = pd.DataFrame({"withheld": SHARES})
    claims = []
    for name, curve in found.items():
        at = [int(np.argmin(np.abs(curve.withheld - share))) for share in SHARES]
        table[f"{name} kept"], table[f"{name} at random"] = curve.kept_loss[at], curve.random_loss
        best = int(np.argmin(curve.kept_loss[: at[-1] + 1]))
        claims.append(
            Claim(
                f"The {name} of the kept part falls as the CCE threshold falls, below random rejection.",
                FIGURE_7,
                bool(curve.kept_loss[at[2]] < curve.random_low[at[2]] and curve.gain > 0),
                f"{name} "
                + ", ".join(f"{value:.3f}" for value in curve.kept_loss[at])
                + " with 0, 20, 40, 60, 80 % withheld; at random "
                + f"{curve.random_loss:.3f} [{curve.random_low[at[2]]:.3f}, {curve.random_high[at[2]]:.3f}] at 40 %; "
                + f"lowest {curve.kept_loss[best]:.3f} at {curve.withheld[best]:.0%} (CCE ranks the misfit of the "
                + "distribution, not the size of the noise, so nothing makes it fall all the way)",
            )
        )
    notes = ("lambda 0.001: at 0.1 the smoothing over x hides where a well trained network errs.",)
    figures = {"figure-7": rejection_pictures(found)}
    return Outcome("rejection", "Rejection by CCE", "CCE", tuple(claims), table, figures, notes)


def rejected_rows(rows: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return rows of N(x cos^2 x - sqrt(|x| + 3), (2 |2 - x| + 1) / 8), x ~ U(0, 2 pi) (appendix C.1)."""
    x = rng.uniform(0.0, 2.0 * np.pi, rows)
    return x[:, None], rng.normal(x * np.cos(x) ** 2 - np.sqrt(np.abs(x) + 3.0), (2.0 * np.abs(2.0 - x) + 1.0) / 8.0)


def nll_map(options: Options) -> Outcome:
    """Counts on a square; a Double Poisson that is right but in one corner, where its mean is too low."""
    n = options.size(1500, 300)
    rng = np.random.default_rng(options.seed)
    (x, y), (x_test, y_test) = _counts_on_a_square(n, rng), _counts_on_a_square(n, rng)
    wrong = _in_corner(x_test)
    error, nll = _cce(x, y, x_test), _nll(x_test, y_test)
    finite = np.isfinite(nll)
    shown = np.where(finite, nll, nll[finite].max())
    found = {"NLL": shown, "CCE": error}
    neighbour = NearestNeighbors(n_neighbors=2).fit(x_test).kneighbors(x_test, return_distance=False)[:, 1]
    table = pd.DataFrame(
        [
            {
                "measure": name,
                "AUC of the wrong region": roc_auc_score(wrong, values),
                "rank correlation with the nearest point": float(
                    pd.Series(values).corr(pd.Series(values[neighbour]), method="spearman")
                ),
                "undefined": int((~finite).sum()) if name == "NLL" else 0,
            }
            for name, values in found.items()
        ]
    ).set_index("measure")
    auc, smooth = table["AUC of the wrong region"], table["rank correlation with the nearest point"]
    moved = _moved_by_an_outlier((x, y), (x_test, y_test))
    claims = (
        Claim(
            "CCE illuminates the region in which the model is least congruent, better than NLL.",
            FIGURE_14,
            bool(auc["CCE"] > auc["NLL"] and auc["CCE"] > 0.9),
            f"area under the ROC curve for the wrong region: CCE {auc['CCE']:.3f}, NLL {auc['NLL']:.3f} "
            f"({wrong.mean():.0%} of {n:,} points; standard error about {0.5 / np.sqrt(wrong.sum()):.3f} at .5)",
        ),
        Claim(
            "NLL is sensitive to outliers and discontinuous over the inputs; CCE is neither.",
            FIGURE_14,
            bool(smooth["CCE"] > 0.8 > smooth["NLL"] + 0.3 and moved["NLL"] > 3.0 > moved["CCE"]),
            f"rank correlation of a point's value with its nearest neighbour's: CCE {smooth['CCE']:.2f}, NLL "
            f"{smooth['NLL']:.2f}; one target at the origin set to {TRIALS} moves the NLL there by {moved['NLL']:.1f} "
            f"standard deviations of NLL over the map, and the CCE there (one of the reference targets) by "
            f"{moved['CCE']:.2f} of CCE's; NLL undefined at {int((~finite).sum())} points",
        ),
    )
    figures = {"figure-14": maps(x_test, {"target": y_test, "NLL": shown, "CCE": error})}
    notes = (
        "A square with a known distribution stands for the paper's t-SNE map of faces, so that the wrong region is "
        "known; `image-regression` draws the map of embedded images.",
        "CCE at unlabelled test points, from the validation rows, lambda 0.001.",
    )
    return Outcome("nll-map", "NLL and CCE on a map", "CCE", claims, table.reset_index(), figures, notes)


def _cce(x: Array, y: Array, at: Array) -> Array:
    return conditional_congruence_error(
        x, y, _wrong_in_a_corner(x), query=at, input_kernel=RBF(5.0), regularization=0.001
    ).values


def _nll(x: Array, y: Array) -> Array:
    return negative_log_likelihood(y, _wrong_in_a_corner(x), infinite="keep")


def _moved_by_an_outlier(reference: tuple[Array, Array], test: tuple[Array, Array]) -> dict[str, float]:
    """How far one wild target moves NLL and CCE where it lies, in standard deviations of each over the test points."""
    found = {}
    measures: dict[str, tuple[tuple[Array, Array], Callable[[Array], Array]]] = {
        "NLL": (test, lambda y: _nll(test[0], y)),
        "CCE": (reference, lambda y: _cce(reference[0], y, test[0])),
    }
    for name, ((x, y), measure) in measures.items():
        wild, at = y.copy(), int(np.argmin(np.hypot(test[0][:, 0], test[0][:, 1])))
        wild[int(np.argmin(np.hypot(x[:, 0], x[:, 1])))] = TRIALS
        before, after = measure(y), measure(wild)
        found[name] = float(abs(after[at] - before[at]) / before[np.isfinite(before)].std())
    return found


def _share(x: Array) -> Array:
    return np.asarray(0.15 + 0.35 * (x[:, 0] + 1.0) * (1.2 + x[:, 1]) / 2.2)


def _counts_on_a_square(n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    x = rng.uniform(-1.0, 1.0, (n, 2))
    y = Binomial(np.full(n, TRIALS), _share(x)).sample(1, seed=rng)[:, 0]
    return x, y


def _in_corner(x: Array) -> Array:
    return np.asarray(np.hypot(x[:, 0] - 1.0, x[:, 1] - 1.0) < RADIUS)


def _wrong_in_a_corner(x: Array) -> Distribution:
    share = _share(x)
    mean = TRIALS * share
    return DoublePoisson(mean * np.where(_in_corner(x), 0.85, 1.0), 1.0 / (1.0 - share))


if __name__ == "__main__":
    main(gaussian_trap, counts_ece, rejection, nll_map)
