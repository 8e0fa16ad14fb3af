"""scipy's frozen distributions, and its new ones (``scipy.stats.Normal``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from congruence.tasks.readers.base import (
    Array,
    Asked,
    Reader,
    Spec,
    as_array,
    broadcast,
    by_quantiles,
    kinds,
    negative_binomial,
    spec,
)


class ScipyReader(Reader):
    """A frozen distribution, or a random variable of the new infrastructure."""

    def read(self, output: Any, rows: int, asked: Asked) -> Spec | None:
        if hasattr(output, "dist") and hasattr(output, "kwds") and hasattr(output.dist, "_parse_args"):
            shapes, loc, scale = output.dist._parse_args(*output.args, **output.kwds)
            names = [name.strip() for name in (output.dist.shapes or "").split(",") if name.strip()]
            given = dict(zip(names, shapes, strict=True)) | {"loc": loc, "scale": scale}
            exact = _named(output.dist.name, {name: broadcast(value, rows) for name, value in given.items()})
            return exact or _by_masses(output, rows) or by_quantiles(output.ppf, rows, output.dist.name)
        if "_ProbabilityDistribution" in kinds(output):
            return _new_style(output, rows)
        return None


_MOVED: dict[str, Callable[[Mapping[str, Array]], Spec]] = {
    "norm": lambda g: spec("normal", loc=g["loc"], scale=g["scale"]),
    "laplace": lambda g: spec("laplace", loc=g["loc"], scale=g["scale"]),
    "logistic": lambda g: spec("logistic", loc=g["loc"], scale=g["scale"]),
    "uniform": lambda g: spec("uniform", loc=g["loc"], scale=g["scale"]),
    "t": lambda g: spec("student_t", df=g["df"], loc=g["loc"], scale=g["scale"]),
    "cauchy": lambda g: spec("student_t", df=np.ones_like(g["loc"]), loc=g["loc"], scale=g["scale"]),
    "truncnorm": lambda g: spec("truncated_normal", loc=g["loc"], scale=g["scale"],
                                lower=g["loc"] + g["a"] * g["scale"], upper=g["loc"] + g["b"] * g["scale"]),
    "halfnorm": lambda g: spec("truncated_normal", loc=g["loc"], scale=g["scale"], lower=g["loc"],
                               upper=np.full_like(g["loc"], np.inf)),
}  # fmt: skip
_AT_ZERO: dict[str, Callable[[Mapping[str, Array]], Spec | None]] = {
    "lognorm": lambda g: spec("log_normal", s=g["s"], scale=g["scale"]),
    "gamma": lambda g: spec("gamma", a=g["a"], scale=g["scale"]),
    "erlang": lambda g: spec("gamma", a=g["a"], scale=g["scale"]),
    "expon": lambda g: spec("gamma", a=np.ones_like(g["scale"]), scale=g["scale"]),
    "chi2": lambda g: spec("gamma", a=g["df"] / 2.0, scale=2.0 * g["scale"]),
    "beta": lambda g: spec("beta", a=g["a"], b=g["b"]) if np.all(g["scale"] == 1.0) else None,
    "poisson": lambda g: spec("poisson", rate=g["mu"]),
    "nbinom": lambda g: negative_binomial(g["n"], 1.0 - g["p"]),
    "binom": lambda g: spec("binomial", n=g["n"], p=g["p"]),
    "bernoulli": lambda g: spec("binomial", n=np.ones_like(g["p"]), p=g["p"]),
    "zipoisson": lambda g: spec("zero_inflated_poisson", rate=g["mu"], inflation=g["w"]),  # statsmodels
}


def _named(name: str, given: Mapping[str, Array]) -> Spec | None:
    """The distribution of scipy's name and parameters; None where no family here is the same."""
    g = {"loc": np.zeros(1), "scale": np.ones(1), **given}
    make = _MOVED.get(name) or (None if np.any(g["loc"] != 0.0) else _AT_ZERO.get(name))
    return None if make is None else make(g)


def _by_masses(found: Any, rows: int) -> Spec | None:
    """A law of counts that has no family here, by its mass at 0, 1, 2, ... as far as all but 1e-12 of it lies."""
    if not hasattr(found, "pmf") or not hasattr(found.dist, "_pmf"):
        return None
    most = float(np.max(found.ppf(1.0 - 1e-12)))
    if not most <= 1e5:
        return None
    least = min(0.0, float(np.min(found.ppf(1e-12))))
    support = np.arange(least, most + 1.0)
    weights = np.broadcast_to(found.pmf(support[:, None]), (len(support), rows)).T
    weights = weights / weights.sum(axis=1, keepdims=True)
    return spec("weighted_samples", support=support, weights=weights).noted(
        f"{found.dist.name} has no family here: read as its mass at {least:g} to {most:g}"
    )


def _new_style(found: Any, rows: int) -> Spec | None:
    kind = type(found).__name__
    if kind == "Mixture" and hasattr(found, "weights"):
        parts = tuple(part for part in (_new_style(one, rows) for one in found.components) if part is not None)
        weights = np.broadcast_to(as_array(found.weights), (rows, len(parts)))
        return Spec("mixture", {"weights": weights}, parts)
    inner = _parts_of(found, rows)
    exact = None if inner is None else _named(*inner)
    return exact or by_quantiles(found.icdf, rows, kind)


_OLD_NAMES = {
    "Normal": "norm", "Logistic": "logistic", "Uniform": "uniform", "Binomial": "binom", "Gamma": "gamma", "T": "t",
    "StudentT": "t", "Laplace": "laplace", "LogNormal": "lognorm", "Lognorm": "lognorm", "Beta": "beta",
    "Exponential": "expon", "Expon": "expon", "Chi2": "chi2", "Poisson": "poisson", "NBinom": "nbinom",
}  # fmt: skip


def _parts_of(found: Any, rows: int) -> tuple[str, dict[str, Array]] | None:
    """scipy's old name and parameters of a new-style distribution, moved and scaled as it may be."""
    if type(found).__name__ == "ShiftedScaledDistribution" and np.all(np.asarray(found.scale) > 0):
        if (inner := _parts_of(found._dist, rows)) is None:
            return None
        loc, scale, given = broadcast(found.loc, rows), broadcast(found.scale, rows), inner[1]
        return inner[0], {**given, "loc": loc + scale * given.get("loc", 0.0), "scale": scale * given.get("scale", 1.0)}
    name = repr(found).partition("(")[0]
    if name not in _OLD_NAMES:
        return None
    given = {key: broadcast(value, rows) for key, value in found._parameters.items()}
    if name == "Normal":
        return "norm", {"loc": given.get("mu", np.zeros(rows)), "scale": given.get("sigma", np.ones(rows))}
    if name == "Uniform":
        return "uniform", {"loc": given["a"], "scale": given["b"] - given["a"]}
    return _OLD_NAMES[name], given
