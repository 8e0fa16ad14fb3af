"""A predictive distribution as named arrays and a description, and back: exactly, for every family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution, Mixture
from congruence.kernels.distributions.normal_score_map import NormalScoreMap
from congruence.kernels.distributions.recalibrated import Recalibrated, RecalibratedCount
from congruence.tasks.contract.settings import families

_MAP = ("shift", "factor", "levels", "shares")
"""Of a ``NormalScoreMap``, in the order of its constructor."""


def describe(distribution: Distribution) -> tuple[dict[str, Any], dict[str, Array]]:
    """The family and the names of its parameters in the constructor's order, and the arrays under those names.

    Component k of a mixture has arrays ``component_k.NAME``.
    """
    arrays: dict[str, Array] = {}
    return _describe(distribution, arrays, ""), arrays


def restore(description: Mapping[str, Any], arrays: Mapping[str, Array], prefix: str = "") -> Distribution:
    """The distribution that ``describe`` described; of a part of it, ``prefix`` begins the names of the arrays.

    Raises:
        KeyError, InvalidInputError: description and arrays do not belong together.
    """
    if "recalibrated" in description:
        base = restore(description["recalibrated"], arrays, f"{prefix}base.")
        kept: Any = RecalibratedCount if base.is_discrete else Recalibrated
        return kept(base, NormalScoreMap(*(arrays[f"{prefix}map.{name}"] for name in _MAP)))  # type: ignore[no-any-return]
    if "components" in description:
        listed = enumerate(description["components"])
        parts = [restore(part, arrays, f"{prefix}component_{k}.") for k, part in listed]
        return Mixture(arrays[f"{prefix}weights"], parts)
    family: Any = families()[description["family"]]
    return family(*(arrays[f"{prefix}{name}"] for name in description["parameters"]))  # type: ignore[no-any-return]


def _describe(distribution: Distribution, arrays: dict[str, Array], prefix: str) -> dict[str, Any]:
    if distribution.recalibration is not None:
        base, score_map = distribution.recalibration
        arrays |= {f"{prefix}map.{name}": getattr(score_map, name) for name in _MAP}
        return {"recalibrated": _describe(base, arrays, f"{prefix}base.")}
    if distribution.mixture is not None:
        weights, components = distribution.mixture
        arrays[f"{prefix}weights"] = weights
        listed = enumerate(components)
        return {"components": [_describe(part, arrays, f"{prefix}component_{k}.") for k, part in listed]}
    parameters = distribution.parameters()
    arrays |= {f"{prefix}{name}": values for name, values in parameters.items()}
    return {"family": distribution.family, "parameters": list(parameters)}
