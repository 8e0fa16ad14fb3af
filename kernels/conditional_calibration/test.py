"""The test of calibration given the input in one call; ``prepare_calibration`` serves many versions."""

from __future__ import annotations

from typing import Any

from congruence.kernels.conditional_calibration.prepared import prepare_calibration
from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.settings import CalibrationSettings
from congruence.kernels.distributions import Distribution
from congruence.kernels.kernel_functions import Kernel


def conditional_calibration_test(
    x: Any,
    y: Any,
    predictive: Distribution,
    *,
    input_kernel: Kernel | None = None,
    settings: CalibrationSettings | None = None,
    seed: int = 0,
    keys: Any | None = None,
    groups: Any | None = None,
    time: Any | None = None,
    weights: Any | None = None,
) -> ConditionalCalibrationTest:
    """Test of "given its input, every target follows its predicted law"; exact at every n for every family.

    Args:
        x: inputs, usually embeddings, (n, d).
        y: targets (n,) or (n, q).
        predictive: n predictive distributions; ``Samples`` count as draws from the model's law.
        input_kernel: the protocol's, for a basis of its own.
        settings: hypotheses, draws and null.
        seed: of landmarks, draws and randomised PIT values.
        keys: one name per row, for the randomisation of PIT values (see ``pit_values``).
        groups: of rows that may depend on each other, see ``PreparedCalibration.test_version``.
        time: as ``groups``, of rows in an order.
        weights: what each row counts in the effects.

    Raises:
        InvalidInputError: an input that cannot be evaluated, named by row, field and value.
    """
    prepared = prepare_calibration(x, input_kernel=input_kernel, settings=settings, seed=seed)
    return prepared.test_version(y, predictive, keys=keys, seed=seed, groups=groups, time=time, weights=weights)
