"""The model contract: which registered models can be evaluated, how to log them, load them and check them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.contract.check import ContractReport, check_contract
    from congruence.tasks.contract.errors import ContractError
    from congruence.tasks.contract.log import log_predictive_model
    from congruence.tasks.contract.model import METADATA_KEY, PredictiveModel, load_predictive_model
    from congruence.tasks.contract.reading import describe_distribution, distribution_columns, read_distribution
    from congruence.tasks.contract.settings import PredictionSettings
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "METADATA_KEY",
    "ContractError",
    "ContractReport",
    "PredictionSettings",
    "PredictiveModel",
    "check_contract",
    "describe_distribution",
    "distribution_columns",
    "load_predictive_model",
    "log_predictive_model",
    "read_distribution",
]
