"""`congruence score`: the reliability of new inputs, whose labels nobody has, judged by a labelled split.

Embed both, predict both by one version, solve on the labelled split, and evaluate at the new inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from prefect import flow
from rich.console import Console
from rich.table import Table

from congruence.flows.conditions import encoder_protocol
from congruence.flows.evaluate import solve_task
from congruence.flows.gather import SplitData, gather
from congruence.flows.splits import open_planned, with_fitted_encoder
from congruence.flows.tracking import use_tracking
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.clusters import dask_client
from congruence.tasks.contract import check_contract, load_predictive_model
from congruence.tasks.contract.errors import ContractError
from congruence.tasks.embeddings.worker import warm_encoder
from congruence.tasks.errors import SettingsError
from congruence.tasks.report.reliability import REPORT_FILE, write_reliability
from congruence.tasks.scores.evaluation import SplitSummary
from congruence.tasks.scores.points import row_frame
from congruence.tasks.scores.reliability import Reliability, reliability
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.sources import Split, SplitSettings
from congruence.tasks.sources.new_inputs import new_inputs
from congruence.tasks.tracking import log_reliability, place_of

CONTRACT_ROWS = 8


@dataclass(frozen=True)
class ScoredInputs:
    """The reliability of new inputs, the folder that holds scores, report and pictures, and the MLflow run (if any).

    ``place`` says where people find the run: its address, or how to open it.
    """

    reliability: Reliability
    folder: Path
    run_id: str | None = None
    place: str | None = None


@flow(name="score", flow_run_name="score {inputs} by {model}", validate_parameters=True)
def score(
    settings: EvaluationSettings,
    model: str,
    inputs: str,
    split: str | None = None,
    output: Path | None = None,
    log: bool = True,
) -> ScoredInputs:
    """Score new inputs by one version.

    Args:
        settings: the evaluation file's content.
        model: the version's URI.
        inputs: address of the new inputs; their columns are named as the labelled split's. Targets are used where
            they are there.
        split: name of the labelled split; by default ``reference:``, else the first of the file.
        output: folder to write to; by default one under ``scores`` in the home folder.
        log: log a run to MLflow as well, in the experiment ``<experiment>/<labelled split>/scores``.

    Raises:
        CongruenceError: settings, data or a model that cannot be used.
    """
    use_tracking(settings)
    labelled = _labelled(settings, split)
    chosen = with_fitted_encoder(settings).model_copy(update={"metrics": ["cce", "congruence_test"]})
    reference, fresh = open_planned(labelled, chosen), open_planned(new_inputs(labelled, inputs), chosen)
    encoder = warm_encoder(chosen.encoder.model_dump_json(exclude_unset=True))
    protocol = encoder_protocol(chosen, encoder)
    version = load_predictive_model(model, chosen.predictions)
    label = version.identity.label
    first = reference.shards[0]
    frame = reference.frame(first, reference.settings.model_input_columns)
    rows = np.flatnonzero(frame.notna().all(axis=1).to_numpy())[:CONTRACT_ROWS]
    check_contract(version, frame.iloc[rows], reference.targets(first)[rows])
    with dask_client(chosen.cluster) as client:
        known = gather(chosen, reference, encoder, {label: version}, client)
        asked = gather(chosen, fresh, encoder, {label: version}, client)
        for data in (known, asked):
            if label in data.failures:
                raise ContractError(data.failures[label])
        if not asked.valid.any():
            raise InvalidInputError(f"inputs: none of the {fresh.rows} rows at {inputs} can be embedded")
        measurement = solve_task(
            reference.name,
            chosen,
            protocol,
            known.embeddings,
            known.targets,
            {label: known.predictive[label]},
            client,
            asked.embeddings,
        )
    found = reliability(
        version.identity,
        measurement.protocol,
        _summary(reference, known),
        _summary(fresh, asked),
        row_frame(fresh, asked.store, asked.valid),
        measurement.results[label],
        measurement.tests[label],
        asked.predictive[label],
        asked.targets if fresh.settings.target_columns else None,
    )
    folder = output or settings.home_folder / "scores" / f"{label.replace('/', '-')}-{fresh.digest[:12]}"
    files = write_reliability(found, folder)
    if not log:
        return ScoredInputs(found, folder)
    run_id = log_reliability(found, files, settings.tracking)
    return ScoredInputs(found, folder, run_id, place_of(run_id, settings.tracking))


def _labelled(settings: EvaluationSettings, name: str | None) -> SplitSettings:
    if name is None:
        return settings.reference or settings.splits[0]
    for split in settings.splits:
        if split.name == name:
            return split
    raise SettingsError(f"--split: no split '{name}'; there are {', '.join(split.name for split in settings.splits)}")


def _summary(split: Split, data: SplitData) -> SplitSummary:
    return SplitSummary(split.name, split.digest, split.rows, int(data.valid.sum()))


def print_scores(scored: ScoredInputs) -> None:
    """Print what was found, and where everything is."""
    found, out = scored.reliability, Console(highlight=False)
    scores = found.valid_scores
    table = Table(
        title=f"{found.model.label} on new inputs, judged by split '{found.reference.name}'", title_justify="left"
    )
    for name in ("inputs", "CCE", "noise floor", "withhold above", "withheld"):
        table.add_column(name, justify="right")
    threshold = "nothing to withhold" if found.threshold is None else f"{found.threshold:.4g}"
    mean, floor = scores["cce"].mean(), scores["cce_noise_floor"].mean()
    judged = f"{found.inputs.valid_rows:,} of {found.inputs.rows:,}"
    table.add_row(judged, f"{mean:.4g}", f"{floor:.4g}", threshold, f"{found.withheld:,}")
    out.print(table)
    for name, curve in found.curves.items():
        half = int(np.argmin(np.abs(curve.withheld - 0.5)))
        out.print(
            f"{name}: {curve.random_loss:.4g} over all, {curve.kept_loss[half]:.4g} when the worse half is withheld"
        )
    out.print(f"scores, report and pictures: {scored.folder / REPORT_FILE}", soft_wrap=True)
    if scored.place is not None:
        out.print(f"in MLflow: {scored.place}", soft_wrap=True)
