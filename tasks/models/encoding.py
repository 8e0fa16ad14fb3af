"""A predictive distribution as named arrays and a description, and back: exactly, for every family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution, Mixture
from congruence.kernels.distributions.normal_score_map import NormalScoreMap
from congruence.kernels.distributions.recalibrated import Recalibrated, RecalibratedCount
from congruence.tasks.contract.settings import families, family_name


def describe(distribution: Distribution) -> tuple[dict[str, Any], dict[str, Array]]:
    """The family and the names of its parameters in the constructor's order, and the arrays under those names.

    The components of a mixture are stacked along axis 1 where they are of one family and shape, so that a mixture has
    as many arrays as its component has parameters; else component k has arrays ``component_k.NAME``.
    """
    arrays: dict[str, Array] = {}
    return _describe(distribution, arrays, ""), arrays


def restore(description: Mapping[str, Any], arrays: Mapping[str, Array]) -> Distribution:
    """The distribution that ``describe`` described.

    Raises:
        KeyError, InvalidInputError: description and arrays do not belong together.
    """
    return _restore(description, arrays, "")


def _describe(distribution: Distribution, arrays: dict[str, Array], prefix: str) -> dict[str, Any]:
    if isinstance(distribution, Recalibrated | RecalibratedCount):
        score_map = distribution.score_map
        for name in ("shift", "factor", "levels", "shares"):
            arrays[f"{prefix}map.{name}"] = getattr(score_map, name)
        return {"recalibrated": _describe(distribution.base, arrays, f"{prefix}base.")}
    family = family_name(type(distribution))
    if isinstance(distribution, Mixture):
        arrays[f"{prefix}weights"] = distribution.weights
        return {"family": family, **_describe_components(distribution, arrays, prefix)}
    parameters = distribution.parameters()
    arrays |= {f"{prefix}{name}": values for name, values in parameters.items()}
    return {"family": family, "parameters": list(parameters)}


def _describe_components(mixture: Mixture, arrays: dict[str, Array], prefix: str) -> dict[str, Any]:
    components = mixture.components
    if _are_alike(mixture):
        parts = [component.parameters() for component in components]
        arrays |= {f"{prefix}component.{name}": np.stack([part[name] for part in parts], 1) for name in parts[0]}
        return {"stacked": family_name(type(components[0])), "parameters": list(parts[0])}
    listed = [_describe(part, arrays, f"{prefix}component_{k}.") for k, part in enumerate(components)]
    return {"components": listed}


def _are_alike(mixture: Mixture) -> bool:
    components, rows = mixture.components, len(mixture)
    if isinstance(components[0], Mixture) or len({type(component) for component in components}) > 1:
        return False
    shapes = [{name: values.shape for name, values in part.parameters().items()} for part in components]
    by_row = all(shape[:1] == (rows,) for shape in shapes[0].values())  # not so the levels of quantiles
    return by_row and rows > 0 and all(shape == shapes[0] for shape in shapes)


def _restore(description: Mapping[str, Any], arrays: Mapping[str, Array], prefix: str) -> Distribution:
    if "recalibrated" in description:
        base = _restore(description["recalibrated"], arrays, f"{prefix}base.")
        parts = (arrays[f"{prefix}map.{name}"] for name in ("shift", "factor", "levels", "shares"))
        kept: Any = RecalibratedCount if base.is_discrete else Recalibrated
        return kept(base, NormalScoreMap(*parts))  # type: ignore[no-any-return]
    known = families()
    if "stacked" in description:
        stacked = [arrays[f"{prefix}component.{name}"] for name in description["parameters"]]
        weights = arrays[f"{prefix}weights"]
        kind: Any = known[description["stacked"]]
        return Mixture(weights, [kind(*(values[:, k] for values in stacked)) for k in range(weights.shape[1])])
    if "components" in description:
        listed = enumerate(description["components"])
        return Mixture(
            arrays[f"{prefix}weights"], [_restore(part, arrays, f"{prefix}component_{k}.") for k, part in listed]
        )
    family: Any = known[description["family"]]
    return family(*(arrays[f"{prefix}{name}"] for name in description["parameters"]))  # type: ignore[no-any-return]
