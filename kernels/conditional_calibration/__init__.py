"""Is a model calibrated given its inputs? PIT scores smoothed over them: a test, a local reading, a correction."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.calibration.pit_scores import ORDERS
    from congruence.kernels.conditional_calibration.effects import Effect
    from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
    from congruence.kernels.conditional_calibration.result import ConditionalCalibrationTest
    from congruence.kernels.conditional_calibration.settings import CalibrationSettings
    from congruence.kernels.conditional_calibration.test import conditional_calibration_test
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "ORDERS",
    "CalibrationSettings",
    "ConditionalCalibrationTest",
    "Effect",
    "PreparedCalibration",
    "conditional_calibration_test",
    "prepare_calibration",
]
