"""Young et al. (2024, 2025), the discrete wave: four trained heads on counts that are under- and overdispersed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from congruence.kernels import (
    RBF,
    Distribution,
    congruence_test,
    expected_calibration_error,
    negative_log_likelihood,
    prepare,
)
from congruence.kernels.arrays import Array
from congruence.tasks.reproduction.laws import discrete_wave as draw
from congruence.tasks.reproduction.outcome import Claim, Outcome, Plan, judged
from congruence.tasks.reproduction.pictures import bands_and_errors
from congruence.tasks.reproduction.training import train
from congruence.tasks.reproduction.wave_checkpoints import published_network

SOURCE = "Young et al. 2025, section 4.1, figure 2; Young et al. 2024, figure 4"
DATA = "discrete-wave-and-published-results"
HEADS = {
    "Gaussian": "gaussian",
    "Poisson": "poisson",
    "Negative binomial": "negative_binomial",
    "Double Poisson": "double_poisson",
}
FIT, UNFIT = ("Gaussian", "Double Poisson"), ("Poisson", "Negative binomial")
PUBLISHED = {"Gaussian": 0.038, "Poisson": 0.135, "Negative binomial": 0.137, "Double Poisson": 0.041}


def discrete_wave(plan: Plan) -> Outcome:
    """800 rows to train, 100 to validate; CCE on 1,000 new rows; and of the authors' networks on their rows."""
    train_rows, validation, test = (draw(n, plan.seed + k) for k, n in enumerate((800, 100, plan.size(1000, 200))))
    networks = {
        name: train(
            head,
            (train_rows.x[:, None], train_rows.y),
            (validation.x[:, None], validation.y),
            hidden=(32, 32) if plan.quick else (128, 128, 128, 64),
            epochs=plan.size(200, 15),
            batch=plan.size(32, 64),
            seed=plan.seed,
        )
        for name, head in HEADS.items()
    }
    laws = {name: network.predict(test.x[:, None]) for name, network in networks.items()}
    rows, picture = _evaluated("own training", test.x, test.y, laws, plan)
    figures = {"figure-2": picture}
    published = plan.file(DATA)
    if published is not None:
        with np.load(published / "discrete_sine_wave.npz") as held:
            x, y = held["X_test"].astype(float)[:, 0], held["y_test"].astype(float)
        authors = {name: published_network(published, head, x[:, None]) for name, head in HEADS.items()}
        more, figures["figure-2-authors"] = _evaluated("authors' checkpoints", x, y, authors, plan)
        rows += more
    table = pd.DataFrame(rows)
    claims = [
        claim
        for trained in table["trained"].unique()
        for claim in _claims(str(trained), table[table["trained"] == trained].set_index("model"))
    ]
    notes = [
        "Published CCE (retrained networks, ten bootstraps of 100 validation rows): "
        + ", ".join(f"{name} {value:.3f}" for name, value in PUBLISHED.items())
        + "; means of so few rows hold more noise, so compare orders.",
    ]
    if published is None:
        notes.append(f"The authors' checkpoints ({DATA}) are not here; --data names the folder that holds them.")
    return Outcome("discrete-wave", "The discrete wave", "CCE", tuple(claims), table, figures, tuple(notes))


def _evaluated(
    trained: str, x: Array, y: Array, laws: Mapping[str, Distribution], plan: Plan
) -> tuple[list[dict[str, object]], Figure]:
    results = prepare(x, input_kernel=RBF(0.5)).congruence_errors(y, laws, uncertainty=True)
    rows: list[dict[str, object]] = []
    said = {}
    for name, result in results.items():
        test = congruence_test(x, y, laws[name], input_kernel=RBF(0.5), draws=plan.size(999, 199))
        nll = float(np.mean(negative_log_likelihood(y, laws[name], infinite="keep")))
        ece = expected_calibration_error(y, laws[name])
        said[name] = f"CCE {result.mean:.3f}, ECE {ece:.3f}, NLL {nll:.2f}"
        low, high = result.interval()
        rows.append(
            {
                "trained": trained,
                "model": name,
                "mean CCE": result.mean,
                "low": low,
                "high": high,
                "on [0, pi]": float(result.values[x < np.pi].mean()),
                "on [pi, 2 pi]": float(result.values[x >= np.pi].mean()),
                "expected if true": test.expected,
                "p": test.p_value,
                "ECE": ece,
                "ECE as published": expected_calibration_error(y, laws[name], pit="nonrandomized", weights="frequency"),
                "NLL": nll,
            }
        )
    return rows, bands_and_errors(x, y, laws, {name: result.values for name, result in results.items()}, said)


def _claims(trained: str, table: pd.DataFrame) -> list[Claim]:
    cce, low, high = table["mean CCE"], table["on [0, pi]"], table["on [pi, 2 pi]"]
    nll = table["NLL"]
    return [
        judged(
            f"{trained}: Gaussian and Double Poisson achieve the best fit, with a CCE near zero.",
            SOURCE,
            bool(cce[list(FIT)].max() < 0.6 * cce[list(UNFIT)].min()),
            "; ".join(
                f"{name} {row['mean CCE']:.4f} [{row['low']:.4f}, {row['high']:.4f}] (expected if true "
                f"{row['expected if true']:.4f}, p = {row['p']:.3f})"
                for name, row in table.iterrows()
            )
            + "; near zero, and where p is small still not the truth",
            **{f"cce_{str(name).lower().replace(' ', '_')}": float(value) for name, value in cce.items()},
        ),
        judged(
            f"{trained}: Poisson and negative binomial struggle most on [pi, 2 pi], where the targets hardly vary.",
            SOURCE,
            all(bool(high[name] > low[name]) for name in UNFIT),
            "; ".join(f"{name} {low[name]:.3f} on [0, pi], {high[name]:.3f} on [pi, 2 pi]" for name in UNFIT),
        ),
        judged(
            f"{trained}: NLL suggests a similar ranking of the models.",
            SOURCE,
            bool(nll[list(FIT)].max() < nll[list(UNFIT)].min()),
            ", ".join(f"{name} {value:.3f}" for name, value in nll.items()),
        ),
    ]
