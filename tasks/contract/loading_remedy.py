"""What to do about a model that cannot be loaded: MLflow's own refusals first, then missing packages."""

from __future__ import annotations

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
