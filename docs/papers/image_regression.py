"""Young et al. (2025), sections 4.2 and 4.3: seven heads on one backbone over embedded images with counts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pandas as pd
from counted_images import (
    CountedImages,
    Encode,
    blurred,
    colours_and_textures,
    counted_digits,
    embedded,
    mixed,
    read_blood_cells,
)
from experiment import Array, Claim, Options, Outcome, main, published_ece
from matplotlib.figure import Figure
from networks import HeadedNetwork, train
from pictures import curves, example_images, maps
from sklearn.manifold import TSNE

from congruence.kernels import (
    Distribution,
    Normal,
    Polynomial,
    congruence_test,
    expected_calibration_error,
    negative_log_likelihood,
    prepare,
)

PAPER = "Young et al. 2025"
SEVEN = ("poisson", "negative_binomial", "double_poisson", "gaussian", "faithful", "natural", "beta_gaussian")
PERTURBED = ("poisson", "beta_gaussian", "double_poisson")
KERNEL = Polynomial(degree=3, gamma=1.0, coef0=1.0)
TRIALS = 5
SHOWN = 6
TRUE = "true distribution"
PROTOCOL = "Protocol of the public code: unit norm, (x.x' + 1)^3, lambda 0.1, one draw per input, five trials."
Means = Mapping[str, tuple[float, float]]
Shifts = Mapping[str, tuple[Array, Mapping[str, list[tuple[float, float]]]]]
"""By kind of shift: its levels, and for each head the mean and standard deviation of CCE at each level."""


def study_heads(
    fitted: CountedImages, held: CountedImages, test: CountedImages, options: Options, *, encode: Encode, epochs: int
) -> tuple[pd.DataFrame, list[Claim], dict[str, Figure]]:
    """Seven heads trained on embedded images: table 1, figures 3 to 5, and the map of figure 14, with their claims."""
    x_fitted, x_held, x = (encode(part.images) for part in (fitted, held, test))
    networks = {
        head: train(
            head,
            (x_fitted, fitted.y),
            (x_held, held.y),
            hidden=(64, 64),
            epochs=epochs,
            batch=32,
            standardise=True,
            seed=options.seed,
        )
        for head in SEVEN
    }
    table = _compared(x, test, networks, options)
    curves_of = _perturbed(x, test, networks, options, encode)
    figures = {"figure-3": _shifts_picture(curves_of), **_point_wise((x_held, held.y), x, test, networks, options)}
    return table, [*_table_claims(table.set_index("model")), *_shift_claims(curves_of)], figures


def _trials(x: Array, y: Array, models: Mapping[str, Distribution], seed: int) -> Means:
    """Mean and standard deviation of the mean CCE over five trials of one draw per input."""
    prepared = prepare(x, input_kernel=KERNEL)
    found = [
        {name: result.mean for name, result in prepared.evaluate(y, models, samples=1, seed=seed + k, draws=0).items()}
        for k in range(TRIALS)
    ]
    by_name = {name: np.array([trial[name] for trial in found]) for name in models}
    return {name: (float(values.mean()), float(values.std(ddof=1))) for name, values in by_name.items()}


def _compared(x: Array, test: CountedImages, networks: Mapping[str, HeadedNetwork], options: Options) -> pd.DataFrame:
    models = {name: network.predict(x) for name, network in networks.items()}
    if test.truth is not None:
        models = {TRUE: test.truth, **models}
    trials = _trials(x, test.y, models, options.seed)
    exact = prepare(x, input_kernel=KERNEL).evaluate(test.y, models, draws=0)
    rows = []
    for name, distribution in models.items():
        tested = congruence_test(x, test.y, distribution, input_kernel=KERNEL, draws=options.size(999, 99))
        rows.append(
            {
                "model": name,
                "ECE": expected_calibration_error(test.y, distribution),
                "ECE as published": published_ece(test.y, distribution),
                "NLL": float(np.mean(negative_log_likelihood(test.y, distribution, infinite="keep"))),
                "CCE of 5 trials": trials[name][0],
                "std": trials[name][1],
                "CCE, exact means": exact[name].mean,
                "expected if true": tested.expected,
                "band low": tested.band[0],
                "band high": tested.band[1],
                "p": tested.p_value,
            }
        )
    return pd.DataFrame(rows)


def _table_claims(table: pd.DataFrame) -> list[Claim]:
    heads = table.drop(index=TRUE, errors="ignore")
    agreement = heads[["ECE", "NLL", "CCE, exact means"]].corr(method="spearman")
    cce = agreement["CCE, exact means"]
    best, rank = str(heads["CCE, exact means"].idxmin()), heads.rank()
    known = TRUE in table.index
    shown = table.to_dict("index")[TRUE if known else best]
    reference = (
        f"{'the true distribution' if known else best} has {shown['CCE of 5 trials']:.3f} by draws and "
        f"{shown['CCE, exact means']:.3f} exactly (expected if true {shown['expected if true']:.3f}, p = "
        f"{shown['p']:.2f})"
    )
    return [
        Claim(
            "There is broad agreement among CCE, ECE and NLL over the seven heads.",
            f"{PAPER}, section 4.2.2, tables 1 and 2",
            bool(cce["ECE"] > 0.3 and cce["NLL"] > 0.3),
            f"rank correlation of CCE with ECE {cce['ECE']:.2f}, with NLL {cce['NLL']:.2f} (of seven heads, by "
            f"chance up to 0.71 either way); CCE of the heads {heads['CCE, exact means'].min():.3f} to "
            f"{heads['CCE, exact means'].max():.3f}, where chance alone makes {heads['band low'].min():.3f} to "
            f"{heads['band high'].max():.3f} of a true one, so some ranks are chance; by CCE '{best}' is best, by NLL "
            f"number {rank['NLL'][best]:.0f}, by ECE number {rank['ECE'][best]:.0f}",
        ),
        Claim(
            "CCE by single draws varies little over five trials.",
            f"{PAPER}, section 4.2.2, tables 1 and 2",
            bool(heads["std"].median() < heads["CCE of 5 trials"].median() / 3.0),
            f"standard deviations {heads['std'].min():.4f} to {heads['std'].max():.4f} of means "
            f"{heads['CCE of 5 trials'].min():.3f} to {heads['CCE of 5 trials'].max():.3f}; {reference}: "
            "a small CCE by single draws holds the noise of the draws",
        ),
    ]


def _perturbed(
    x: Array, test: CountedImages, networks: Mapping[str, HeadedNetwork], options: Options, encode: Encode
) -> Shifts:
    """By kind of shift: its levels, and for each head the mean and standard deviation of CCE at each level."""
    rng = np.random.default_rng([options.seed, 5])
    noise = rng.standard_normal(len(test.y))
    radii = np.array((0.0, 4.0) if options.quick else (0.0, 1.0, 2.0, 3.0, 4.0, 6.0))
    shares = np.array((0.0, 0.5) if options.quick else (0.0, 0.1, 0.2, 0.3, 0.4, 0.5))
    shifts = np.array((1.0, 5.0) if options.quick else (1.0, 2.0, 3.0, 4.0, 5.0))
    data: dict[str, tuple[Array, list[tuple[Array, Array]]]] = {
        "blur": (radii, [(encode(blurred(test.images, r)) if r else x, test.y) for r in radii]),
        "label noise": (shifts, [(x, test.y + mean + noise) for mean in shifts]),
        "mixup": (shares, []),
    }
    for share in shares:
        pictures, y = mixed(test.images, test.y, float(share), options.seed)
        data["mixup"][1].append((encode(pictures) if share else x, y))
    found = {}
    for kind, (levels, parts) in data.items():
        each: dict[str, list[tuple[float, float]]] = {head: [] for head in PERTURBED}
        for inputs, y in parts:
            models = {head: networks[head].predict(inputs) for head in PERTURBED}
            for head, means in _trials(inputs, y, models, options.seed).items():
                each[head].append(means)
        found[kind] = levels, each
    return found


def _shift_claims(found: Shifts) -> list[Claim]:
    claims = []
    for kind, (levels, each) in found.items():
        falls = [
            (before[0] - after[0]) / max(np.hypot(before[1], after[1]), 1e-12)
            for means in each.values()
            for before, after in pairwise(means)
        ]
        rise = min(
            (means[-1][0] - means[0][0]) / max(np.hypot(means[0][1], means[-1][1]), 1e-12) for means in each.values()
        )
        claims.append(
            Claim(
                f"CCE rises smoothly with the level of {kind}, whatever the model.",
                f"{PAPER}, section 4.2.1, figure 3",
                bool(rise > 2.0 and max(falls) < 2.0),
                "; ".join(f"{head} " + ", ".join(f"{mean:.3f}" for mean, _ in means) for head, means in each.items())
                + f" at {', '.join(f'{level:g}' for level in levels)}; standard deviations up to "
                + f"{max(std for means in each.values() for _, std in means):.4f}; the least rise from the first level "
                + f"to the last is {rise:.1f} of them, the largest fall from one level to the next "
                + f"{max(max(falls), 0.0):.1f}",
            )
        )
    return claims


def _shifts_picture(found: Shifts) -> Figure:
    panels = [
        (kind, "level", "mean CCE", {head: (levels, np.array([mean for mean, _ in m])) for head, m in each.items()})
        for kind, (levels, each) in found.items()
    ]
    return curves(panels)


def _point_wise(
    reference: tuple[Array, Array],
    x: Array,
    test: CountedImages,
    networks: Mapping[str, HeadedNetwork],
    options: Options,
) -> dict[str, Figure]:
    """Images of least and largest CCE by the validation rows, and the map of targets, NLL and CCE."""
    figures = {}
    prepared = prepare(reference[0], query=x, input_kernel=KERNEL)
    names = ("beta_gaussian", "poisson")
    errors = prepared.evaluate(reference[1], {name: networks[name].predict(reference[0]) for name in names}, draws=0)
    for name, result in errors.items():
        order = np.argsort(result.values)
        chosen = {"least CCE": order[:SHOWN], "largest CCE": order[-SHOWN:]}
        figures[f"figure-4-5-{name}"] = example_images(
            {said: [(f"{result.values[i]:.3f}", test.images[i]) for i in places] for said, places in chosen.items()}
        )
    places = TSNE(random_state=options.seed, perplexity=min(30, len(x) // 4), max_iter=options.size(1000, 250))
    nll = negative_log_likelihood(test.y, networks["poisson"].predict(x), infinite="keep")
    layers = {"target": test.y, "NLL (Poisson)": nll, "CCE (Poisson)": errors["poisson"].values}
    figures["figure-14"] = maps(places.fit_transform(x), layers)
    return figures


def image_regression(options: Options) -> Outcome:
    """Counts on handwritten digits, splits 70/10/20; table 1, figures 3 to 5, and the map of figure 14."""
    n = options.size(3000, 200)
    rows = counted_digits(n, options.seed)
    first, second = round(0.7 * n), round(0.8 * n)
    parts = rows[:first], rows[first:second], rows[second:]
    table, claims, figures = study_heads(*parts, options, encode=embedded, epochs=options.size(60, 3))
    notes = (
        "Digits with counts of a known distribution stand for the private faces and crowds, a frozen shipped CLIP "
        "for the fine-tuned backbones; heads and losses are those of the papers.",
        PROTOCOL,
    )
    return Outcome("image-regression", "Image regression with seven heads", "CCE", tuple(claims), table, figures, notes)


def blood_cells(options: Options) -> Outcome:
    """Red cells in the photographs of BCCD, by its own splits; table 1, figures 3 to 5, and the map of figure 14."""
    fitted, held, test = read_blood_cells(options.require("bccd")).values()
    encode = colours_and_textures(fitted.images)
    table, claims, figures = study_heads(fitted, held, test, options, encode=encode, epochs=options.size(400, 6))
    blind = Normal(np.full(len(test.y), fitted.y.mean()), np.full(len(test.y), fitted.y.std(ddof=1)))
    notes = (
        f"{len(fitted.y)} photographs to train on and {len(test.y)} to test on, where the paper has thousands: a "
        f"distribution that ignores the photograph has an NLL of {-blind.log_prob(test.y).mean():.3f}, the best head "
        f"one of {table['NLL'].min():.3f}. Where little is learnt, blurred or mixed photographs can spoil little.",
        "Embedded by shares of colours and powers of frequencies: no network that knows photographs is shipped.",
        PROTOCOL,
    )
    return Outcome("blood-cells", "Blood cells with seven heads", "CCE", tuple(claims), table, figures, notes)


if __name__ == "__main__":
    main(image_regression, blood_cells)
