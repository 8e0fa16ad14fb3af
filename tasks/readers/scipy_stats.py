"""scipy's frozen distributions, and its new ones (``scipy.stats.Normal``)."""

from __future__ import annotations

from collections.abc import Mapping
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


def _named(name: str, given: Mapping[str, Array]) -> Spec | None:
    """The law of scipy's name and parameters, loc and scale included; None where no family here is the same."""
    g = dict(given)
    loc, scale = g.get("loc", np.zeros(1)), g.get("scale", np.ones(1))
    if name in ("norm", "laplace", "logistic", "uniform"):
        family = {"norm": "normal"}.get(name, name)
        return spec(family, loc=loc, scale=scale)
    if name == "t":
        return spec("student_t", df=g["df"], loc=loc, scale=scale)
    if name == "cauchy":
        return spec("student_t", df=np.ones_like(loc), loc=loc, scale=scale)
    if name == "truncnorm":
        return spec("truncated_normal", loc=loc, scale=scale, lower=loc + g["a"] * scale, upper=loc + g["b"] * scale)
    if name == "halfnorm":
        return spec("truncated_normal", loc=loc, scale=scale, lower=loc, upper=np.full_like(loc, np.inf))
    if np.any(loc != 0.0):
        return None
    if name == "lognorm":
        return spec("log_normal", s=g["s"], scale=scale)
    if name in ("gamma", "erlang"):
        return spec("gamma", a=g["a"], scale=scale)
    if name == "expon":
        return spec("gamma", a=np.ones_like(scale), scale=scale)
    if name == "chi2":
        return spec("gamma", a=g["df"] / 2.0, scale=2.0 * scale)
    if name == "beta" and np.all(scale == 1.0):
        return spec("beta", a=g["a"], b=g["b"])
    return _counts(name, g)


def _counts(name: str, g: Mapping[str, Array]) -> Spec | None:
    if name == "poisson":
        return spec("poisson", rate=g["mu"])
    if name == "nbinom":
        return negative_binomial(g["n"], 1.0 - g["p"])
    if name == "binom":
        return spec("binomial", n=g["n"], p=g["p"])
    if name == "bernoulli":
        return spec("binomial", n=np.ones_like(g["p"]), p=g["p"])
    if name == "zipoisson":  # statsmodels
        return spec("zero_inflated_poisson", rate=g["mu"], inflation=g["w"])
    return None


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
    if kind == "ShiftedScaledDistribution" and np.all(np.asarray(found.scale) > 0):
        loc, scale = broadcast(found.loc, rows), broadcast(found.scale, rows)
        inner = _parts_of(found._dist, rows)
        if inner is not None:
            name, given = inner
            own_loc, own_scale = given.get("loc", np.zeros(rows)), given.get("scale", np.ones(rows))
            moved = {**given, "loc": loc + scale * own_loc, "scale": scale * own_scale}
            if (exact := _named(name, moved)) is not None:
                return exact
    elif (inner := _parts_of(found, rows)) is not None and (exact := _named(*inner)) is not None:
        return exact
    return by_quantiles(found.icdf, rows, kind)


_OLD_NAMES = {
    "Normal": "norm", "Logistic": "logistic", "Uniform": "uniform", "Binomial": "binom", "Gamma": "gamma", "T": "t",
    "StudentT": "t", "Laplace": "laplace", "LogNormal": "lognorm", "Lognorm": "lognorm", "Beta": "beta",
    "Exponential": "expon", "Expon": "expon", "Chi2": "chi2", "Poisson": "poisson", "NBinom": "nbinom",
}  # fmt: skip


def _parts_of(found: Any, rows: int) -> tuple[str, dict[str, Array]] | None:
    """scipy's old name and parameters of a new-style distribution."""
    name = repr(found).partition("(")[0]
    if name not in _OLD_NAMES:
        return None
    given = {key: broadcast(value, rows) for key, value in found._parameters.items()}
    if name == "Normal":
        return "norm", {"loc": given.get("mu", np.zeros(rows)), "scale": given.get("sigma", np.ones(rows))}
    if name == "Uniform":
        return "uniform", {"loc": given["a"], "scale": given["b"] - given["a"]}
    return _OLD_NAMES[name], given
