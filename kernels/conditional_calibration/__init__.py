"""Is a model calibrated given its inputs? PIT scores smoothed over them: a test, a local reading, a correction."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.kernels.conditional_calibration.effects import (
        ConditionalCalibrationTest as ConditionalCalibrationTest,
    )
    from congruence.kernels.conditional_calibration.effects import Effect as Effect
    from congruence.kernels.conditional_calibration.prepared import PreparedCalibration as PreparedCalibration
    from congruence.kernels.conditional_calibration.prepared import (
        conditional_calibration_test as conditional_calibration_test,
    )
    from congruence.kernels.conditional_calibration.prepared import prepare_calibration as prepare_calibration
    from congruence.kernels.conditional_calibration.settings import CalibrationSettings as CalibrationSettings
    from congruence.kernels.pit import ORDERS as ORDERS
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
