"""`congruence validate`: everything that a run checks before its long work, and what that work would be."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from congruence.flows.cli.console import results
from congruence.flows.evaluation.existing_results import asked_versions, divide, protocol_name
from congruence.flows.evaluation.keys import encoder_protocol
from congruence.flows.evaluation.splits import open_planned, with_fitted_encoder
from congruence.flows.evaluation.tracking import use_tracking
from congruence.kernels.errors import CongruenceError
from congruence.tasks.contract import check_contract, load_predictive_model
from congruence.tasks.data import Split
from congruence.tasks.encoders.identity import encoder_identity
from congruence.tasks.mlflow.connection import persist
from congruence.tasks.models.contract_rows import contract_rows
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.settings.evaluation import EvaluationSettings

CONTRACT_ROWS = 8


@dataclass(frozen=True)
class CheckedVersion:
    """What a run would do with a version on a split: nothing (``found``), evaluate it (``to do``), or fail.

    ``said`` is the family of its predictions, or why it cannot be evaluated; ``warnings`` what is worth knowing.
    """

    label: str
    split: str
    status: str
    said: str = ""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Validation:
    """What a run of an evaluation file would do.

    Attributes:
        splits: rows of each split by name.
        protocol: name and digest, with the encoder and the reference split.
        versions: each version on each split.
    """

    splits: dict[str, int]
    protocol: str
    versions: list[CheckedVersion] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing would fail."""
        return all(version.status != "fails" for version in self.versions)


def validate(settings: EvaluationSettings) -> Validation:
    """Check data, encoder, models and gate of an evaluation, each as the run would, and start nothing.

    Every row of the splits is read once, as the run would have to; each version that is not evaluated yet is loaded,
    which runs its author's code, and asked for the distributions of a few rows.

    Raises:
        CongruenceError: data, an encoder, a model's name or a gate with which no version could be evaluated.
    """
    use_tracking(settings)
    versions = asked_versions(settings)
    if settings.gate is not None:
        from congruence.flows.operations.gate import require_baselines

        require_baselines(settings)
    settings = with_fitted_encoder(settings)
    encoder = encoder_identity(settings.encoder, settings.home_folder / "encoders")
    protocol = encoder_protocol(settings, encoder)
    result = Validation({}, protocol_name(protocol))
    for split_settings in settings.splits:
        split = open_planned(split_settings, settings)
        result.splits[split.name] = split.rows
        found, missing = divide(settings, split, protocol, versions)
        result.versions.extend(CheckedVersion(item.label, split.name, item.status, item.error or "") for item in found)
        result.versions.extend(_try(settings, split, missing))
    return result


def _try(settings: EvaluationSettings, split: Split, versions: list[ModelVersion]) -> list[CheckedVersion]:
    """Load each version and ask it for a few rows."""
    if not versions:
        return []
    frame, targets = contract_rows(split, CONTRACT_ROWS)
    checked = []
    for version in versions:
        try:
            model = persist(
                f"loading {version.label}",
                lambda version=version: load_predictive_model(version.uri, settings.predictions),  # type: ignore[misc]
                settings.tracking,
            )
            report = check_contract(model, frame, targets)
            checked.append(CheckedVersion(version.label, split.name, "to do", report.family, report.warnings))
        except CongruenceError as error:
            checked.append(CheckedVersion(version.label, split.name, "fails", str(error)))
    return checked


def validation_json(result: Validation) -> dict[str, Any]:
    """What was found, as JSON."""
    return {
        "splits": result.splits,
        "protocol": result.protocol,
        "versions": [vars(version) | {"warnings": list(version.warnings)} for version in result.versions],
    }


def print_validation(result: Validation) -> None:
    """Print what a run would do."""
    out = results()
    splits = ", ".join(f"'{name}' ({rows:,} rows)" for name, rows in result.splits.items())
    _line(out, f"splits {splits}; protocol {result.protocol}")
    for version in result.versions:
        said = f": {version.said}" if version.said else ""
        _line(out, f"{version.status:<6} {version.label} on {version.split}{said}")
        for warning in version.warnings:
            _line(out, f"       {warning}")
    counts = {
        status: sum(item.status == status for item in result.versions)
        for status in ("to do", "found", "left out", "fails")
    }
    _line(out, "; ".join(f"{count} {status}" for status, count in counts.items() if count))


def _line(out: Any, text: str) -> None:
    out.print(text, soft_wrap=True, markup=False)
