"""Directions of the inputs along which PIT scores are looked at: leading eigenvectors U of kernel matrices K_h.

A constant (is anything wrong on average), the protocol's kernel, RBF kernels at several bandwidths (is it wrong
somewhere), and an RBF kernel on a version's own quantiles: what a model says of its targets is a function of x too, and
calibration given the prediction is the hypothesis of the kernel calibration error (Widmann et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, array_namespace, on_card, require_matrix, to_numpy
from congruence.kernels.conditional_calibration.null import row_blocks
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.congruence.prepared import PreparedCongruence
from congruence.kernels.distributions import Distribution, Samples
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.gram.columns import LandmarkColumns
from congruence.kernels.gram.landmarks import choose_landmarks
from congruence.kernels.gram.operator import RegularizedGram, centered
from congruence.kernels.gram.spectrum import GramSpectrum, gram_spectrum, landmark_spectrum
from congruence.kernels.kernel_functions import RBF, Kernel
from congruence.kernels.scores import matched_targets
from congruence.kernels.streams import stream

LANDMARKS_PER_DIRECTION = 2
OWN = "own quantiles"
_RIDGE = 1e-3  # of operators whose spectrum alone is asked for
_PAIRS = 20_000


@dataclass(frozen=True)
class InputBasis:
    """k directions of the inputs: K_h ~ U diag(n eigenvalues) U'.

    Attributes:
        name: of the kernel h, for reports.
        eigenvalues: of K_h / n, decreasing, (k,).
        vectors: U, (n, k), in single precision.
    """

    name: str
    eigenvalues: Array = field(repr=False)
    vectors: Array = field(repr=False)


def distance_name(share: float) -> str:
    """The name of an RBF basis at so many median distances."""
    return f"RBF at {share:g} median distance{'s' if share > 1 else ''}"


def shared_bases(
    inputs: PreparedCongruence | Any, settings: CalibrationSettings, *, input_kernel: Kernel | None, seed: int
) -> tuple[InputBasis, ...]:
    """The bases that all versions of a split share; those of constant kernels but the first are left out.

    Args:
        inputs: a prepared split, or x (n, d).
        settings: which.
        input_kernel: of the protocol, where ``inputs`` are x.
        seed: of the landmarks and of the pairs that the median distance is read off.

    Raises:
        InvalidInputError: inputs that cannot be evaluated.
    """
    if isinstance(inputs, PreparedCongruence):
        n = inputs.operator.n
    else:
        inputs = require_matrix(inputs, "x")
        n = len(inputs)
    if n < 2:
        raise InvalidInputError("x: one row cannot show what depends on the inputs; give at least two rows")
    found = _spectra(inputs, settings, input_kernel, seed)
    # One array for all, filled as they come: a list of bases joined at the end would be in memory twice.
    width = 1 + settings.directions * (len(settings.distances) + 1)
    vectors = np.empty((n, min(width, 1 + n * (len(settings.distances) + 1))), dtype=np.float32)
    vectors[:, 0] = n**-0.5
    bases = [InputBasis("constant", np.ones(1), vectors[:, :1])]
    start = 1
    for name, spectrum in found:
        stop = start + min(settings.directions, len(spectrum.eigenvalues))
        vectors[:, start:stop] = spectrum.vectors(stop - start)
        bases.append(InputBasis(name, spectrum.eigenvalues[: stop - start] / n, vectors[:, start:stop]))
        start = stop
    return tuple(bases)


def stacked(bases: tuple[InputBasis, ...]) -> Array:
    """The directions of all bases side by side, (n, k): a view where ``shared_bases`` made them."""
    width = sum(basis.vectors.shape[1] for basis in bases)
    whole = bases[0].vectors.base
    if whole is not None and all(basis.vectors.base is whole for basis in bases):
        return np.asarray(whole[:, :width])
    return np.concatenate([basis.vectors for basis in bases], axis=1)


def own_quantiles(y: Any, predictive: Distribution, levels: Sequence[float]) -> Array | None:
    """What a version says of every row, for its own basis: quantiles at ``levels``, (n, q); None for no levels.

    Of draws (``Samples``) those of the target and the l draws together. Given the draws alone, the place of the target
    among them is not uniform under the truth (wide draws leave it in their middle); given all l + 1 values it is.
    """
    if not levels:
        return None
    wanted = np.asarray(levels)[None, :]
    if not isinstance(predictive, Samples):
        return np.asarray(predictive.predictive_quantile(wanted))
    values, targets = predictive.values, matched_targets(predictive, y)
    return np.concatenate(
        [
            Samples(np.column_stack([values[rows], targets[rows]])).predictive_quantile(wanted)
            for rows in row_blocks(len(targets))
        ]
    )


def own_basis(quantiles: Array, settings: CalibrationSettings, *, seed: int) -> InputBasis | None:
    """The basis of a version's own quantiles (n, q); None where they do not depend on the input.

    Raises:
        InvalidInputError: quantiles that are not finite, by row.
    """
    points = require_matrix(quantiles, "predictive quantiles").astype(np.float64)
    gamma = typical_gamma(points, seed)
    if gamma is None:
        return None
    spectrum = _spectrum(points - np.median(points, axis=0), RBF(gamma), settings.own_directions, seed)
    keep = min(settings.own_directions, len(spectrum.eigenvalues))
    return InputBasis(OWN, spectrum.eigenvalues[:keep] / len(points), spectrum.vectors(keep).astype(np.float32))


def _spectra(
    inputs: PreparedCongruence | Any, settings: CalibrationSettings, input_kernel: Kernel | None, seed: int
) -> Iterator[tuple[str, GramSpectrum]]:
    """Names and spectra, one at a time: each holds columns of a kernel matrix."""
    if isinstance(inputs, PreparedCongruence):
        yield "protocol's kernel", inputs.spectrum
        operator = inputs.operator
        x = operator.x if isinstance(operator, RegularizedGram) else operator.rows(np.arange(operator.n))
        if operator.has_card:
            x = on_card(x)
    else:
        x = inputs
        if input_kernel is not None:
            yield "protocol's kernel", _spectrum(x, input_kernel, settings.directions, seed)
    gamma = typical_gamma(x, seed)
    if gamma is None:
        return
    x = centered(x, RBF(gamma).center(x))
    indices = None
    for share in sorted(settings.distances):
        operator = RegularizedGram(x, RBF(gamma / share**2), _RIDGE)
        if indices is None:  # the landmarks of the narrowest kernel cover the inputs for the wider ones
            indices = choose_landmarks(operator, LANDMARKS_PER_DIRECTION * settings.directions, seed=seed)
        columns = LandmarkColumns.of(operator.columns(indices), indices)
        yield distance_name(share), landmark_spectrum(operator, columns)


def _spectrum(x: Any, kernel: Kernel, directions: int, seed: int) -> GramSpectrum:
    return gram_spectrum(RegularizedGram(x, kernel, _RIDGE), LANDMARKS_PER_DIRECTION * directions, seed=seed)


def typical_gamma(x: Any, seed: int) -> float | None:
    """1 / (2 d^2) with d the median distance of random pairs of rows; where most are equal, their root mean square.

    None where all rows are equal.
    """
    first, second = stream(seed, "median distance").integers(x.shape[0], size=(2, _PAIRS))
    apart = first != second
    xp = array_namespace(x)
    difference = x[xp.asarray(first[apart])] - x[xp.asarray(second[apart])]
    squares = to_numpy(xp.einsum("ij,ij->i", difference, difference)).astype(np.float64)
    typical = float(np.median(squares)) or float(np.mean(squares))
    return 0.5 / typical if typical > 0 else None
