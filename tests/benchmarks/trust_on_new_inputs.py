"""Trust on new inputs: planted rows in real tables, pictures that are none, and versions whose faults are known.

``python tests/benchmarks/trust_on_new_inputs.py DATA [part ...]``; DATA is a folder with ``motor-claims``,
``bike-hourly``, ``protein``, ``bccd`` and ``clip-embeddings-aaf``; parts are tables, claims, images and simulated.
The record is trust_on_new_inputs.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from simulations import machine

from congruence.kernels import RBF, Laplace, MultivariateNormal, Normal, Poisson, Polynomial, Samples, prepare
from congruence.kernels.trust.columns import PICTURE_COLUMNS
from congruence.kernels.trust.scorer import InputScores
from congruence.kernels.trust.support import Support
from congruence.tasks.sentences.inputs import Rows, reasons, unusual_reason, withholding_sentence

LABELLED, ORDINARY, PLANTED = 20_000, 4_000, 40
KINDS = ("beyond the range", "unit error (x 100)", "below the range", "category never seen", "missing")
"""Beyond and below by 1.25 times the range: a driver's age of 200; the largest times 100: a bonus-malus of 5000."""

A_THIRD = "below by a third"
"""Of the range, less than any split is promised to find: a vehicle's age of -30."""

COMBINATION = "combination"
"""A cell taken from another row: every value is usual."""


def tables(data: Path) -> dict[str, tuple[pd.DataFrame, list[str]]]:
    """Five tables: numbers and categories as they are read, and which columns are categories."""
    motor = pd.read_csv(data / "motor-claims/motorcycle-claims.csv.gz")
    long = pd.read_csv(data / "motor-claims/claims-of-policies-over-three-years.csv.gz")
    bikes = pd.read_csv(data / "bike-hourly/hour.csv.gz")
    protein = pd.read_csv(data / "protein/data.csv.gz", header=None).add_prefix("F")
    from sklearn.datasets import load_diabetes

    diabetes = load_diabetes(as_frame=True, scaled=False).data
    return {
        "motorcycle claims": (motor[["agarald", "fordald", "bonuskl", "kon", "zon", "mcklass"]], ["kon", "zon"]),
        "policies over three years": (
            long[[name for name in ("agecat", "valuecat", "period") if name in long]].assign(
                rank=np.arange(len(long)) / len(long)
            ),
            ["agecat", "valuecat"],
        ),
        "bikes by the hour": (
            bikes[["hr", "temp", "atemp", "hum", "windspeed", "season", "weathersit"]],
            ["season", "weathersit"],
        ),
        "protein": (protein.select_dtypes("number").iloc[:, 1:], []),
        "diabetes": (diabetes, ["sex"]),
    }


def encoded(table: pd.DataFrame, categories: list[str], known: pd.DataFrame) -> np.ndarray:
    """Standardised numbers, and categories as columns of 0 and 1, by what ``known`` holds."""
    numbers = [name for name in table if name not in categories]
    parts = [table[numbers].astype(float).fillna(known[numbers].mean())]
    parts += [
        pd.DataFrame({f"{name}={value}": table[name] == value for value in known[name].unique()}) for name in categories
    ]
    return pd.concat(parts, axis=1).astype(float).to_numpy()


def planted(table: pd.DataFrame, categories: list[str], rng: np.random.Generator) -> dict[str, pd.DataFrame]:
    """Rows of five kinds, each an ordinary row with one cell changed in one of its columns."""
    numbers = [name for name in table if name not in categories and table[name].std() > 0]
    found = {}
    for kind in (*KINDS, A_THIRD, COMBINATION):
        rows = table.sample(PLANTED, random_state=int(rng.integers(2**31)), replace=True).reset_index(drop=True)
        rows = rows.astype(dict.fromkeys(rows, object))
        for row in range(PLANTED):
            name = numbers[row % len(numbers)]
            low, high = float(table[name].min()), float(table[name].max())
            if kind == "beyond the range":
                rows.loc[row, name] = high + 1.25 * (high - low)
            elif kind == "below the range":
                rows.loc[row, name] = low - 1.25 * (high - low)
            elif kind == A_THIRD:
                rows.loc[row, name] = low - (high - low) / 3
            elif kind == "unit error (x 100)":
                rows.loc[row, name] = 100.0 * high if high > 0 else 100.0 * low
            elif kind == "missing":
                rows.loc[row, name] = np.nan
            elif kind == COMBINATION:
                rows.loc[row, name] = table[name].iloc[int(rng.integers(len(table)))]
            elif categories:
                rows.loc[row, categories[row % len(categories)]] = "?"
        if kind == "category never seen" and not categories:
            continue
        found[kind] = rows.astype(dict.fromkeys(numbers, float))
    return found


def try_tables(data: Path) -> None:
    for name, (table, categories) in tables(data).items():
        try_table(name, table.sample(frac=1, random_state=0).reset_index(drop=True), categories)


def try_table(name: str, table: pd.DataFrame, categories: list[str]) -> None:
    ordinary = min(ORDINARY, len(table) // 3)
    known = table[ordinary : ordinary + LABELLED].reset_index(drop=True)
    raw = encoded(known, categories, known)
    mean, scale = raw.mean(axis=0), np.where(raw.std(axis=0) > 0, raw.std(axis=0), 1.0)
    support = Support.of((raw - mean) / scale, columns=known)

    def unusual(rows: pd.DataFrame) -> float:
        return float(support.at((encoded(rows, categories, known) - mean) / scale, rows).unusual().mean())

    rows = planted(known, categories, np.random.default_rng(0))
    said = ", ".join(f"{kind} {unusual(some):.1%}" for kind, some in rows.items())
    print(f"{name}: {len(known):,} labelled; ordinary called unusual {unusual(table[:ordinary]):.2%}; found: {said}")
    first = rows["beyond the range"][:1]
    x = (encoded(first, categories, known) - mean) / scale
    print("   ", unusual_reason(support, support.at(x, first), 0, Rows((raw - mean) / scale, known), Rows(x, first)))


def try_claims(data: Path) -> None:
    """A version of the motorcycle claims with exposure, in full: planted rows, ordinary rows, and what is withheld."""
    from sklearn.linear_model import PoissonRegressor

    table = pd.read_csv(data / "motor-claims/motorcycle-claims.csv.gz").query("duration > 0")
    table = table.sample(frac=1, random_state=0).reset_index(drop=True)
    inputs, categories = ["agarald", "fordald", "bonuskl", "kon", "zon", "mcklass"], ["kon", "zon"]
    train, labelled = table[:20_000], table[20_000:40_000].reset_index(drop=True)
    ordinary, known = table[40_000:44_000][inputs], table[:20_000][inputs]

    def at(rows: pd.DataFrame) -> np.ndarray:
        return encoded(rows.reset_index(drop=True), categories, known)

    mean, scale = at(known).mean(axis=0), at(known).std(axis=0)
    x = {"train": (at(known) - mean) / scale, "labelled": (at(labelled[inputs]) - mean) / scale}
    model = PoissonRegressor(alpha=1e-4).fit(x["train"], train["antskad"] / train["duration"],
                                             sample_weight=train["duration"])  # fmt: skip
    law = Poisson(model.predict(x["labelled"]) * labelled["duration"].to_numpy())
    split = prepare(unit(x["labelled"]), input_kernel=Polynomial(3, 1.0, 1.0), regularization=0.1, landmarks=400)
    scorer = split.input_scorer(labelled["antskad"], law, raw=x["labelled"], columns=labelled[inputs])

    def scored(rows: pd.DataFrame) -> InputScores:
        raw, columns = (at(rows) - mean) / scale, rows.reset_index(drop=True)
        found = scorer.score(unit(raw), raw=raw, columns=columns)
        labelled_rows = Rows(x["labelled"], labelled[inputs])
        return replace(found, reason=reasons(scorer.support, found, labelled_rows, Rows(raw, columns)))

    found = scored(ordinary)
    print(f"motorcycle claims, a Poisson regression with exposure: {withholding_sentence(found.judgement)}")
    print(f"  ordinary: unusual {found.support.unusual().mean():.2%}, withheld {found.withhold.mean():.2%}")
    for kind, rows in planted(labelled[inputs], categories, np.random.default_rng(1)).items():
        found = scored(rows)
        first = next(iter(found.reason[found.withhold]), "")
        print(f"  {kind}: withheld {found.withhold.mean():.1%}; {first}")
    others = {"agarald": 200.0, "bonuskl": 5000.0, "fordald": -30.0}
    for name, value in others.items():
        rows = labelled[inputs].sample(21, random_state=2).astype({name: float}).assign(**{name: value})
        found = scored(rows)
        print(f"  {name} {value:g} in 21 rows: withheld {int(found.withhold.sum())}; {found.reason[0]}")


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def try_images(data: Path) -> None:
    """Pictures that are none among rotated digits (compact CLIP), blood cells (an untrained ViT-B-32 and the compact
    CLIP, which knows digits only), and embeddings of other encoders among faces (CLIP ViT-B-32, laion2b)."""
    from PIL import Image
    from sklearn.datasets import load_digits, load_sample_images

    from congruence.tasks.digits.dataset import digit_rows, draw

    rng = np.random.default_rng(0)
    cells = [Image.open(path).convert("RGB") for path in sorted((data / "bccd/images").glob("*.jpg"))]
    rows = digit_rows("test", 3000)
    digits = [draw(int(base), float(angle)) for base, angle in zip(rows.base, rows.angle, strict=True)]
    places = zip(rng.integers(0, 180, 20), rng.integers(0, 300, 20), strict=True)
    corners = list(places)
    scenes = [picture(scene[top : top + 240, left : left + 320]) for scene in load_sample_images().images
              for top, left in corners]  # fmt: skip

    def strange(width: int, height: int) -> dict[str, list[Any]]:
        return {
            "noise": [picture(rng.integers(0, 256, (height, width, 3))) for _ in range(40)],
            "blank": [picture(np.full((height, width, 3), shade)) for shade in np.linspace(0, 255, 40)],
            "scenes": scenes,
        }

    compact, untrained = (Embedder(model) for model in (None, "ViT-B-32"))
    try_vectors("rotated digits, compact CLIP", compact(digits),
                {name: compact(some) for name, some in (strange(64, 64) | {"blood cells": cells[:80]}).items()},
                groups=rows.base)  # fmt: skip
    others = strange(320, 240) | {"digits": [picture(255 - 15 * digit) for digit in load_digits().images[:40]]}
    seen = {name: untrained(some) for name, some in others.items()}
    embedded = untrained(cells)
    try_vectors("blood cells, untrained ViT-B-32", embedded, seen)
    try_vectors("blood cells, compact CLIP", compact(cells), {name: compact(some) for name, some in others.items()})
    faces = np.load(data / "clip-embeddings-aaf/probcal_aaf_val_clip.npz")["embeddings"]
    length = np.linalg.norm(faces, axis=1).mean()
    alien = {f"{name}, untrained ViT-B-32": some.vectors for name, some in (seen | {"blood cells": embedded}).items()}
    alien |= {f"{name}, at the length of faces": length * unit(some) for name, some in alien.items()}
    alien |= {
        "normalised by mistake": unit(faces[:60]),
        "features in another order": faces[:60][:, rng.permutation(faces.shape[1])],
        "zeros": np.zeros((5, faces.shape[1]), faces.dtype),
    }
    others_of_faces = {name: Pictures(some) for name, some in alien.items()}
    try_vectors("faces, CLIP ViT-B-32 laion2b", Pictures(faces[60:]), others_of_faces)


def picture(pixels: np.ndarray) -> Any:
    from PIL import Image

    return Image.fromarray(np.asarray(pixels, dtype=np.uint8)).convert("RGB")


class Embedder:
    """Pictures to vectors as they leave the encoder."""

    def __init__(self, model: str | None) -> None:
        from congruence.tasks.encoders.loading import load_encoder
        from congruence.tasks.settings.sections import EncoderSettings

        self.encoder = load_encoder(EncoderSettings(model=model, pretrained=None if model is None else "random"))

    def __call__(self, pictures: list[Any]) -> Pictures:
        from congruence.tasks.data.usable import measured_picture
        from congruence.tasks.digits.dataset import encode_png

        ready = [self.encoder.preprocess(encode_png(one)) for one in pictures]
        made = [self.encoder.encode(ready[start : start + 32]) for start in range(0, len(ready), 32)]
        looks = pd.DataFrame(np.stack([measured_picture(one) for one in pictures]), columns=list(PICTURE_COLUMNS))
        return Pictures(np.concatenate(made), looks)


@dataclass(frozen=True)
class Pictures:
    """Their vectors, and what their pixels are like (of embeddings that others made, nothing)."""

    vectors: np.ndarray
    looks: pd.DataFrame | None = None

    def of(self, rows: np.ndarray) -> Pictures:
        return Pictures(self.vectors[rows], None if self.looks is None else self.looks[rows].reset_index(drop=True))


def try_vectors(name: str, known: Pictures, others: dict[str, Pictures], groups: np.ndarray | None = None) -> None:
    """Two thirds of the pictures are labelled, a third are ordinary inputs; ten such choices."""
    ordinary, shares = [], []
    for seed in range(10):
        values = np.arange(len(known.vectors)) if groups is None else groups
        place = np.random.default_rng(seed).permutation(int(values.max()) + 1)[values]
        new = place < np.quantile(place, 1 / 3)
        rows = known.of(~new)
        support = Support.of(
            rows.vectors, columns=rows.looks, groups=None if groups is None else groups[~new], seed=seed
        )
        fresh = known.of(new)
        ordinary.append(support.at(fresh.vectors, fresh.looks).unusual().mean())
        shares.append([support.at(some.vectors, some.looks).unusual().mean() for some in others.values()])
    found = ", ".join(f"{other} {share:.1%}" for other, share in zip(others, np.mean(shares, axis=0), strict=True))
    labelled = f"{len(support.neighbours)} + {len(support.held_out)} labelled"
    spread = f"{np.mean(ordinary):.2%} [{np.min(ordinary):.2%}, {np.max(ordinary):.2%}]"
    print(f"{name}: {labelled}; ordinary called unusual {spread}; found: {found}", flush=True)
    for other, some in list(others.items())[:2]:
        read, given = support.at(some.vectors, some.looks), Rows(some.vectors, some.looks)
        print(f"    {other}: {unusual_reason(support, read, 0, Rows(rows.vectors, rows.looks), given)}")


FAMILIES: dict[str, tuple[int, int, Any, Any]] = {}
"""By name: labelled rows, features, a function of rng and x that gives the law, and targets of it with a fault of
``size`` in some rows, and which rows are in the region that may be wrong."""


def beyond(x: np.ndarray) -> np.ndarray:
    """21 % of the inputs."""
    return np.asarray(x[:, 0] > 0.8)


def corner(x: np.ndarray) -> np.ndarray:
    """10 % of the inputs."""
    return np.asarray((x[:, 0] > 0.5) & (x[:, 1] > 0.5))


def disc(x: np.ndarray) -> np.ndarray:
    """26 % of the inputs, right ones on all sides."""
    return np.asarray((x[:, :2] ** 2).sum(axis=1) < 0.6)


def family(name: str, rows: int, features: int, region: Any = beyond) -> Any:
    def add(make: Any) -> Any:
        FAMILIES[name] = (rows, features, make, region)
        return make

    return add


def means(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.sin(x[:, 0]) + 0.3 * x[:, -1], 0.3 + 0.2 * (x[:, -1] > 0)


@family("normal, off by a spread, 1,000 rows", 1000, 2)
@family("normal, off by a spread, 3,000 rows", 3000, 2)
@family("normal, off by a spread, 3,000 rows of 6 features", 3000, 6)
@family("normal, off by a spread, 3,000 rows of 10 features", 3000, 10)
@family("normal, off by a spread, 1,000 rows of one feature", 1000, 1)
@family("normal, off by a spread in a corner, 3,000 rows", 3000, 2, corner)
@family("normal, off by a spread in a corner, 3,000 rows of 4 features", 3000, 4, corner)
@family("normal, off by a spread in a disc, 3,000 rows", 3000, 2, disc)
def shifted(rng: np.random.Generator, x: np.ndarray, fault: np.ndarray) -> Any:
    law = Normal(*means(x))
    return law, law.mean() + law.std() * (rng.normal(size=len(x)) + fault)


@family("normal, off by half a spread, 10,000 rows", 10_000, 2)
def shifted_by_half(rng: np.random.Generator, x: np.ndarray, fault: np.ndarray) -> Any:
    return shifted(rng, x, 0.5 * fault)


@family("normal, spread 1.8 times as large, 3,000 rows", 3000, 2)
def spread(rng: np.random.Generator, x: np.ndarray, fault: np.ndarray) -> Any:
    law = Normal(*means(x))
    return law, law.mean() + law.std() * rng.normal(size=len(x)) * (1.0 + 0.8 * fault)


@family("Laplace, off by a spread, 3,000 rows", 3000, 2)
def heavy(rng: np.random.Generator, x: np.ndarray, fault: np.ndarray) -> Any:
    mean, scale = means(x)
    law = Laplace(mean, scale)
    return law, mean + rng.laplace(size=len(x)) * scale + fault * law.std()


@family("Poisson, rate 1.6 times as large, 3,000 rows", 3000, 2)
def counts(rng: np.random.Generator, x: np.ndarray, fault: np.ndarray) -> Any:
    rate = np.exp(1.0 + 0.5 * np.sin(x[:, 0]) + 0.2 * x[:, 1])
    return Poisson(rate), rng.poisson(rate * (1.0 + 0.6 * fault)).astype(float)


@family("Poisson of mean .4, rate twice as large, 3,000 rows", 3000, 2)
def sparse_counts(rng: np.random.Generator, x: np.ndarray, fault: np.ndarray) -> Any:
    rate = np.exp(-1.0 + 0.4 * x[:, 0])
    return Poisson(rate), rng.poisson(rate * (1.0 + fault)).astype(float)


@family("two targets, off by a spread, 3,000 rows", 3000, 2)
def vectors(rng: np.random.Generator, x: np.ndarray, fault: np.ndarray) -> Any:
    mean, scale = means(x)
    law = MultivariateNormal(np.stack([mean, -mean], axis=1), np.stack([scale, scale], axis=1))
    return law, law.mean() + scale[:, None] * (rng.normal(size=(len(x), 2)) + fault[:, None])


@family("ensemble of 50, off by a spread, 2,000 rows", 2000, 2)
def ensemble(rng: np.random.Generator, x: np.ndarray, fault: np.ndarray) -> Any:
    mean, scale = means(x)
    members = mean[:, None] + scale[:, None] * rng.normal(size=(len(x), 50))
    return Samples(members), mean + scale * (rng.normal(size=len(x)) + fault)


def try_simulated(seeds: range = range(100, 105)) -> None:
    """Versions that are wrong in one region, and the truth, on splits that no rule was chosen by."""
    for name, (rows, features, make, region) in FAMILIES.items():
        for size in (1.0, 0.0):
            found = np.array([simulated(rows, features, make, region, size, seed) for seed in seeds])
            inside, precision, unusual, chosen, helps = found.T
            shares = (
                f"of the region withheld {inside.mean():.0%} [from {inside.min():.0%}]; of what is withheld for a "
                f"fault, outside the region {1 - np.nanmean(precision):.1%} [up to {1 - np.nanmin(precision):.1%}]; "
                if size and chosen.any()
                else ""
            )
            print(
                f"{name}; {'wrong' if size else 'true'}: {shares}withheld for a fault {chosen.sum():.0f}, helps in "
                f"{helps.sum():.0f} of {len(seeds)}; unusual {unusual.mean():.2%} [up to {unusual.max():.2%}]",
                flush=True,
            )


def simulated(rows: int, features: int, make: Any, region: Any, size: float, seed: int) -> tuple[float, ...]:
    rng = np.random.default_rng(seed)
    x, new = (rng.normal(size=(n, features)) for n in (rows, 2000))
    law, y = make(rng, x, size * region(x))
    gamma = 0.5 if features <= 2 else 0.1
    found = prepare(x, input_kernel=RBF(gamma), regularization=1e-3).score_inputs(new, y, law)
    unusual, inside = found.support.unusual(), region(new)
    chosen = found.withhold & ~unusual
    precision = chosen[inside].sum() / chosen.sum() if chosen.any() else np.nan
    return chosen[inside].mean(), precision, unusual.mean(), chosen.sum(), float(found.judgement.helps)


if __name__ == "__main__":
    folder, parts = Path(sys.argv[1]), sys.argv[2:] or ["tables", "claims", "images", "simulated"]
    machine()
    for part in parts:
        print(f"== {part}")
        if part == "simulated":
            try_simulated()
        else:
            {"tables": try_tables, "claims": try_claims, "images": try_images}[part](folder)
