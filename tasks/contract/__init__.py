"""The model contract: which registered models can be evaluated, how to log them, load them and check them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from congruence.tasks.contract.log import load_predictive_model as load_predictive_model
    from congruence.tasks.contract.log import log_predictive_model as log_predictive_model
    from congruence.tasks.contract.model import METADATA_KEY as METADATA_KEY
    from congruence.tasks.contract.model import ContractReport as ContractReport
    from congruence.tasks.contract.model import PredictiveModel as PredictiveModel
    from congruence.tasks.contract.model import check_contract as check_contract
    from congruence.tasks.contract.reading import describe_distribution as describe_distribution
    from congruence.tasks.contract.reading import distribution_columns as distribution_columns
    from congruence.tasks.contract.reading import read_distribution as read_distribution
    from congruence.tasks.runtime.errors import ContractError as ContractError
    from congruence.tasks.settings.sections import PredictionSettings as PredictionSettings
else:
    from congruence.kernels.lazy_exports import lazy_exports

    __getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
