"""Log a model so that its metadata says how to read its output: callables, scikit-learn, torch and pyfunc models.

And load one into this process, as MLflow has it.
"""

from __future__ import annotations

import inspect
import logging
import re
import shutil
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import packages_distributions, version
from typing import Any

import mlflow
import pandas as pd
from mlflow.models import infer_signature
from mlflow.models.model import ModelInfo
from mlflow.pyfunc import load_model, log_model
from mlflow.pyfunc.model import PythonModel

from congruence.kernels.distributions.base import Distribution
from congruence.tasks.contract.model import (
    FETCHED,
    METADATA_KEY,
    PredictiveModel,
    failure_text,
    fetch,
    settings_in,
)
from congruence.tasks.contract.predictors import (
    CallablePredictor,
    EstimatorPredictor,
    FramePredictor,
    ModulePredictor,
    NativePredictor,
    Preprocess,
    QuantilePredictor,
    returns_std,
)
from congruence.tasks.contract.reading import as_frame, describe_distribution, output_columns, read_distribution
from congruence.tasks.contract.signature import exposed, exposure_in, without_categories
from congruence.tasks.mlflow.connection import point_mlflow_at
from congruence.tasks.models.registry import resolve
from congruence.tasks.readers.base import UnreadableOutputError, is_of
from congruence.tasks.readers.read import is_columns, known, read_output
from congruence.tasks.runtime.errors import ContractError
from congruence.tasks.runtime.files import default_home, home_store
from congruence.tasks.settings.sections import AUTO, Column, PredictionSettings, Transform

logger = logging.getLogger(__name__)

EXAMPLE_ROWS = 5
_MEANS = {"poisson": "rate", "negative_binomial": "mean", "double_poisson": "mean"}
"""The parameter of a family of counts that a regressor predicts."""


def log_predictive_model(
    model: Any,
    *,
    name: str | None = None,
    input_example: pd.DataFrame,
    family: str | None = None,
    columns: Mapping[str, Column] | None = None,
    transforms: Mapping[str, Transform] | None = None,
    levels: Sequence[float] | None = None,
    method: str | None = None,
    component: str | None = None,
    exposure: str | None = None,
    preprocess: Preprocess | None = None,
    registered_model_name: str | None = None,
    tags: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    pip_requirements: Sequence[str] | None = None,
    code_paths: Sequence[str] | None = None,
) -> ModelInfo:
    """Log (and register) ``model`` with the signature and metadata that ``load_predictive_model`` reads.

    ``model`` is one of
      - a function of the input frame that returns a ``Distribution``, or an object of scipy.stats, torch, NumPyro,
        skpro, NGBoost, GluonTS or TabPFN (family and columns follow from it), or a DataFrame or dict of columns;
      - a fitted scikit-learn regressor: with ``return_std`` in its ``predict`` it is normal; else its output is column
        ``loc``, or "0", "1", ... for several outputs (``columns={"scale": 2.0}`` gives a constant scale). Of a family
        of counts it is the mean: ``family="poisson"``, or ``family="negative_binomial", columns={"dispersion": 0.3}``;
      - a fitted model of NGBoost, skpro, statsmodels, CatBoost (with uncertainty, several quantiles), XGBoost (quantile
        levels), quantile-forest, crepes, MAPIE or TabPFN, a scikit-learn regressor with ``return_std``, one with a
        Poisson loss: nothing more need be said (``congruence.tasks.readers``). Of others, ``method``
        names what to ask, such as "predict_quantiles(alpha=[0.1, 0.5, 0.9])";
      - a mapping {level: fitted regressor}: quantiles;
      - a ``torch.nn.Module`` that takes a float tensor (or what ``preprocess`` makes of the frame) and returns a
        matrix, a dict of tensors or a ``torch.distributions`` object;
      - any ``mlflow.pyfunc.PythonModel``.

    MLflow's page of models compares logged models by ``name``, which is that of the registered model unless another is
    given.

    A model of rates becomes one of counts by ``exposure``, the column of the rows that its rate is multiplied by
    (insured years, kilometres): ``log_predictive_model(glm, family="poisson", exposure="Exposure", ...)``. The example
    holds that column; a model that was fitted without it is not given it.

    It goes to the MLflow that was set (``mlflow.set_tracking_uri``, MLFLOW_TRACKING_URI, an active run), else to the
    database in the home folder, where `congruence evaluate` looks.

    The model is asked for the distributions of ``input_example`` first, so a wrong description is refused before it is
    logged. The remaining arguments are those of ``PredictionSettings`` and of ``mlflow.pyfunc.log_model``.

    Raises:
        ContractError: the output does not fit the family, or no family is known.
    """
    name = name or logged_model_name(registered_model_name or "model")
    predictor = _predictor(model, preprocess, method, family)
    exposures = None if exposure is None else exposure_in(input_example, exposure)
    if exposure in input_example.columns:
        rest = input_example.drop(columns=exposure)
        with suppress(Exception):  # whatever a model raises that was fitted with it
            _ask(predictor, rest)
            input_example = rest
    kinds = input_example.dtypes.items()
    predictor.categories = {str(name): kind for name, kind in kinds if isinstance(kind, pd.CategoricalDtype)}
    defaults = _known_settings(model, predictor, input_example)
    given: dict[str, Any] = {
        "family": family,
        "columns": dict(columns or {}) or None,
        "transforms": dict(transforms or {}) or None,
    }
    given |= {"levels": None if levels is None else list(levels), "component": component, "exposure": exposure}
    chosen = {key: value for key, value in given.items() if value is not None}
    output = _ask(predictor, input_example)
    if "family" not in chosen and "family" not in defaults:
        try:
            read_output(output, len(input_example), levels=levels)
        except UnreadableOutputError as error:
            example = "family='normal', columns={'loc': 'mu', 'scale': 'sigma'}"
            raise ContractError(f"{name}: give family=..., for example {example}: {error}") from error
        defaults = {"family": AUTO}
    # An explicit family replaces what follows from the model altogether; without one its details may be refined.
    settings = PredictionSettings.model_validate(chosen if "family" in chosen else {**defaults, **chosen})
    if isinstance(predictor, EstimatorPredictor) and list(output.columns) == ["loc"] and settings.family in _MEANS:
        mean = {_MEANS[settings.family]: "loc"}  # a regressor's one output is the mean of a family of counts
        settings = settings.model_copy(update={"columns": mean | settings.columns})
    law = read_distribution(output, settings, len(input_example))
    if exposures is not None:
        exposed(law, exposures)
    if not mlflow.is_tracking_uri_set() and mlflow.active_run() is None:  # type: ignore[no-untyped-call]
        home = default_home()  # as the commands do, where nobody has pointed MLflow anywhere
        home.mkdir(parents=True, exist_ok=True)
        point_mlflow_at(home_store(home))
        logger.warning(
            "MLflow was pointed nowhere: logging to %s, as `congruence evaluate` will read", home_store(home)
        )
    plain = without_categories(input_example)
    columns_told = as_frame(output_columns(output, len(plain))) if is_columns(output) else None  # else read when asked
    with without_notices():
        info: ModelInfo = log_model(
            name=name,
            python_model=predictor,
            input_example=plain.head(EXAMPLE_ROWS),
            signature=infer_signature(plain, columns_told),
            registered_model_name=registered_model_name,
            tags=dict(tags) if tags else None,
            metadata={**(metadata or {}), METADATA_KEY: settings.model_dump(exclude_defaults=True)},
            pip_requirements=list(pip_requirements) if pip_requirements is not None else _requirements(predictor),
            code_paths=list(code_paths) if code_paths else None,
        )
    return info


def logged_model_name(registered: str) -> str:
    """The name of a logged model after that of its registered model, without the signs that MLflow refuses there."""
    return re.sub(r"""[/:.%"']""", "-", registered)


@contextmanager
def without_notices() -> Iterator[None]:
    """Without MLflow's notices when a model is logged, which tell of nothing that is to be done.

    That it checks the example; that pickles run code when loaded, which our docs say; that whole numbers cannot be
    missing, as a row without a finite input is left out before a model is asked; that there is no example; that pip is
    not in this environment, as uv makes them.
    """

    def other(record: logging.LogRecord) -> bool:
        return not re.search("CloudPickle|Validating input example|installed pip version", record.getMessage())

    loggers = [logging.getLogger(name) for name in ("mlflow.pyfunc", "mlflow.utils.environment")]
    for logger in loggers:
        logger.addFilter(other)
    try:
        with warnings.catch_warnings():
            for start in ("Hint: Inferred schema contains integer", ".*An input example was not provided"):
                warnings.filterwarnings("ignore", message=start)
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(other)


def _predictor(model: Any, preprocess: Preprocess | None, method: str | None, family: str | None) -> Any:
    if isinstance(model, PythonModel):
        return model
    if method is not None or (family is None and not is_of(model, "torch", "Module") and known(model) is not None):
        return NativePredictor(model, method, preprocess)
    if isinstance(model, Mapping):
        return QuantilePredictor(model, preprocess)
    if is_of(model, "torch", "Module"):
        return ModulePredictor(model, preprocess)
    if hasattr(model, "predict") and hasattr(model, "get_params"):
        return EstimatorPredictor(model, preprocess)
    if callable(model):
        return CallablePredictor(model, preprocess)
    raise ContractError(
        f"{type(model).__name__} is no model: give a function, a fitted scikit-learn regressor, a torch module or a "
        "PythonModel"
    )


def _ask(predictor: Any, example: pd.DataFrame) -> Any:
    takes_context = "context" in inspect.signature(predictor.predict).parameters
    return predictor.predict(None, example) if takes_context else predictor.predict(example)


def _known_settings(model: Any, predictor: Any, example: pd.DataFrame) -> dict[str, Any]:
    """What the model itself says about its family."""
    if isinstance(predictor, QuantilePredictor):
        return {"family": "quantiles", "levels": list(predictor.estimators)}
    if isinstance(predictor, EstimatorPredictor):
        return {"family": "normal"} if returns_std(model) else {}
    law = predictor.answer(example) if isinstance(predictor, FramePredictor) else None
    return describe_distribution(law).model_dump(exclude_defaults=True) if isinstance(law, Distribution) else {}


@cache
def _installed() -> Mapping[str, list[str]]:
    """The installed packages by what they are imported as, which takes a second to find out."""
    return packages_distributions()


def _requirements(predictor: Any) -> list[str]:
    """What loading needs, at the installed versions: MLflow's own guess loads the model in another process for 10 s.

    That is also the packages that the classes of fitted models come from, steps of pipelines included.
    """
    models = [getattr(predictor, "model", None), *getattr(predictor, "estimators", {}).values()]
    models += [step for model in models for _, step in getattr(model, "steps", ())]
    roots = {type(model).__module__.split(".")[0] for model in models if model is not None}
    names = ["congruence", "mlflow", "numpy", "pandas", "cloudpickle"]
    names += ["scikit-learn"] if isinstance(predictor, (EstimatorPredictor, QuantilePredictor)) else []
    names += sorted({_installed()[root][0] for root in roots if root in _installed()})
    names += ["torch"] if isinstance(predictor, ModulePredictor) else []
    names = list(dict.fromkeys(names))
    return [f"{name}=={re.sub(r'[+].*', '', version(name))}" for name in names]


_REMEDIES = (
    (
        ("untrusted", "UntrustedTypes"),
        "MLflow logs scikit-learn by skops, which loads only types listed as trusted: log the model again with "
        "mlflow.sklearn.log_model(..., skops_trusted_types=[...]) and the types named here, or with "
        'serialization_format="cloudpickle"',
    ),
    (
        ("MLFLOW_ALLOW_MODEL_CODE_EXECUTION",),
        "MLFLOW_ALLOW_MODEL_CODE_EXECUTION is false here, which refuses every pyfunc model: set it to true for models "
        "whose authors you trust",
    ),
    (
        ("MLFLOW_ALLOW_PICKLE_DESERIALIZATION",),
        "set MLFLOW_ALLOW_PICKLE_DESERIALIZATION to true for models whose authors you trust, or log the model again in "
        'a format that holds no code (scikit-learn: serialization_format="skops", torch: "pt2")',
    ),
    (
        ("pt2", "torch.export", "ExportedProgram"),
        "MLflow logs torch modules by torch.export (pt2), which holds neither the module's class nor its methods: log "
        'it again with mlflow.pytorch.log_model(..., serialization_format="pickle") or with log_predictive_model',
    ),
)


def loading_remedy(error: BaseException, uri: str) -> str:
    """What to do, by what the error says."""
    text = f"{type(error).__name__} {error}"
    for signs, remedy in _REMEDIES:
        if any(sign in text for sign in signs):
            return remedy
    return f"install what the model needs (mlflow.pyfunc.get_model_dependencies({uri!r}) lists it)"


def load_predictive_model(uri: str, predictions: PredictionSettings | None = None) -> PredictiveModel:
    """Load the model version behind ``uri``, from the current MLflow registry, into this process.

    See ``registry.resolve`` for the forms of ``uri``.

    Args:
        uri: the model version.
        predictions: how to read its output; by default what its metadata says under the key ``congruence``.

    Raises:
        RegistryError: there is no such version.
        ContractError: the model cannot be loaded, or nobody says how to read its output.
        MlflowException: MLflow does not answer.
    """
    identity = resolve(uri)
    folder = fetch(identity)  # first: what then fails is the model's own failure
    try:
        _forget_code_of_others()
        pyfunc = load_model(str(folder), suppress_warnings=True)
    except (Exception, SystemExit) as error:  # unpickling runs foreign code
        shutil.rmtree(folder, ignore_errors=True)
        raise ContractError(
            f"{identity.label}: loading failed: {failure_text(error)}; {loading_remedy(error, identity.uri)}"
        ) from error
    # Some models open their files when they predict.
    weakref.finalize(pyfunc, shutil.rmtree, folder, ignore_errors=True)
    if predictions is None or predictions.family == AUTO:
        predictions = settings_in(pyfunc.metadata.metadata, identity.label, predictions)
    return PredictiveModel(identity, predictions, pyfunc)


def _forget_code_of_others() -> None:
    """Forget the modules that versions loaded before brought along (``code_paths``).

    MLflow puts each version's folder of code on the path, so a module that two versions have under one name would be
    that of the version loaded first. Objects that were made of such a module keep it.
    """
    sys.path[:] = [path for path in sys.path if f"/{FETCHED}" not in path]
    for name, module in list(sys.modules.items()):
        if f"/{FETCHED}" in str(getattr(module, "__dict__", {}).get("__file__") or ""):  # without waking lazy modules
            del sys.modules[name]
