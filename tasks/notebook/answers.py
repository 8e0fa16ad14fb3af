"""What a call answers: it prints as verdict and sentences, shows as its report in a cell, and is saved and logged."""

from __future__ import annotations

import html
import importlib
import re
import sys
import webbrowser
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import too_few_rows
from congruence.kernels.errors import InvalidInputError
from congruence.tasks.comparison.versions import Comparison
from congruence.tasks.scores.evaluation import Evaluation, MetricValue
from congruence.tasks.scores.metrics.definitions import TARGET
from congruence.tasks.scores.metrics.registry import metric_of
from congruence.tasks.sentences.calibration import with_p_value
from congruence.tasks.settings.sections import TrackingSettings

_HEIGHT = 760
"""Pixels of a report in a cell; it scrolls within."""

_IN_THE_UNIT = re.compile(r"(redictions are [\d.,e-]+|targets lie [\d.,e-]+)(?= too | away )")


def with_unit(evaluation: Evaluation, unit: str) -> Evaluation:
    """The same, whose sentences say in which unit of the targets a size is."""
    if evaluation.wrong is None or not unit:
        return evaluation
    said = [_IN_THE_UNIT.sub(lambda size: f"{size[0]} {unit}", each) for each in evaluation.wrong.sentences]
    return replace(evaluation, wrong=replace(evaluation.wrong, sentences=tuple(said)))


class Page(ABC):
    """An answer that has an HTML page of its own."""

    @property
    @abstractmethod
    def page(self) -> str:
        """The page: one file that needs no network."""

    def _repr_html_(self) -> str:
        """The page in a frame, so that neither its style nor the notebook's touches the other."""
        return (
            f'<iframe srcdoc="{html.escape(self.page)}" style="width:100%;height:{_HEIGHT}px;border:0" '
            'sandbox="allow-scripts allow-popups allow-downloads"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write the page to a file and return its path."""
        file = Path(path)
        file.write_text(self.page, encoding="utf-8")
        return file

    def show(self) -> None:
        """Show the page: in the cell of a notebook, else in the browser."""
        if "ipykernel" in sys.modules:
            importlib.import_module("IPython.display").display(self)
            return
        with NamedTemporaryFile("w", suffix=".html", prefix="congruence-", delete=False, encoding="utf-8") as file:
            file.write(self.page)
        webbrowser.open(Path(file.name).as_uri())


@dataclass(frozen=True, repr=False)
class EvaluatedPrediction(Page):
    """One prediction on some rows.

    Attributes:
        evaluation: all that the pipeline knows of a version on a split.
        notes: what was done to columns and rows before.
        protocol: under which it was measured, in a sentence.
        unit: of the targets, as in "mm"; "" where it is not known.
    """

    evaluation: Evaluation = field(repr=False)
    notes: tuple[str, ...] = ()
    protocol: str = ""
    unit: str = ""

    @property
    def name(self) -> str:
        """Of the prediction."""
        return self.evaluation.model.label

    @property
    def verdict(self) -> str:
        """ "no fault found", "wrong" or "not judged"."""
        return self.evaluation.verdict.state

    @property
    def p_value(self) -> float | None:
        """The p-value of "this prediction is the truth"; None where it is not judged."""
        return self.evaluation.verdict.p_value

    @property
    def sentences(self) -> tuple[str, ...]:
        """What is wrong, and where; none where nothing was found."""
        wrong = self.evaluation.wrong
        return () if wrong is None else wrong.sentences

    @property
    def metrics(self) -> dict[str, MetricValue]:
        """Every metric by name, with its interval where it has one."""
        return dict(self.evaluation.metrics)

    def to_frame(self) -> pd.DataFrame:
        """Returns a row for each row of X: key, target, CCE, NLL, CRPS, PIT, and what was found around it."""
        return self.evaluation.scores.copy()

    @cached_property
    def page(self) -> str:
        """The report."""
        from congruence.tasks.report.evaluation import evaluation_report

        page = evaluation_report(self.evaluation)
        return page.replace(TARGET, html.escape(self.unit)) if self.unit else page

    def log(self, tracking: TrackingSettings | None = None) -> str:
        """Log to MLflow what the pipeline would, and return the run's id; the same answer is logged once.

        Args:
            tracking: where; by default where MLflow points.
        """
        log_evaluation = _mlflow("congruence.tasks.mlflow.evaluations").log_evaluation
        return str(log_evaluation(self.evaluation, tracking or TrackingSettings()))

    def __repr__(self) -> str:
        split = self.evaluation.split
        rows = f"{split.rows:,} rows"
        if split.valid_rows < split.rows:
            rows = f"{split.valid_rows:,} of {rows}"
        judged = with_p_value(self.evaluation.verdict, self.p_value)
        said = [f"{self.name} on {split.name} ({rows}): {judged}", *self.sentences]
        return "\n".join([*said, *self._numbers(), *self.notes, self.protocol])

    def _numbers(self) -> list[str]:
        """The scores that people know, in a line: NLL of quantiles is that of the lines that we draw through them."""
        names = ("crps_mean", "mae") if self.evaluation.stated == "quantiles" else ("crps_mean", "mae", "nll_mean")
        found = [metric_of(name) for name in names if name in self.evaluation.metrics]
        units = [f" {self.unit}" if self.unit and metric.unit == TARGET else "" for metric in found]
        said = [f"{metric.label} {self.evaluation.metrics[metric.name]}{unit}"
                for metric, unit in zip(found, units, strict=True)]  # fmt: skip
        valid = self.evaluation.valid_scores
        if "nll" in valid and (impossible := int(np.isinf(valid["nll"]).sum())):
            said.append(f"NLL infinite: {impossible:,} of the targets given no probability")
        effective = self.evaluation.metrics.get("effective_rows")
        if effective is not None and (why := too_few_rows(effective.value, self.evaluation.split.valid_rows)):
            said.append(f"without intervals: {why}")
        return [f"{', '.join(said)}."] if said else []


class EvaluatedPredictions(dict[str, EvaluatedPrediction]):
    """Several predictions on the same rows, by name."""

    def to_frame(self) -> pd.DataFrame:
        """Returns a row for each prediction: verdict, p-value and metrics."""
        records = {
            name: {"verdict": one.verdict, "p_value": np.nan if one.p_value is None else one.p_value}
            | {key: metric.value for key, metric in one.metrics.items() if key != "p_value"}
            for name, one in self.items()
        }
        return pd.DataFrame.from_dict(records, orient="index")

    def _repr_html_(self) -> str:
        table = self.to_frame()
        shown = ("verdict", "p_value", "cce_mean", "nll_mean", "crps_mean", "mae")
        return str(table[[name for name in shown if name in table]].to_html())

    def __repr__(self) -> str:
        return "\n\n".join(repr(one) for one in self.values())


@dataclass(frozen=True, repr=False)
class ComparedPredictions(Page):
    """Several predictions on the same rows, each beside the baseline.

    Attributes:
        comparison: what the pipeline's comparison holds.
        evaluated: each by name.
    """

    comparison: Comparison = field(repr=False)
    evaluated: EvaluatedPredictions = field(repr=False)

    @property
    def baseline(self) -> str:
        """The name of that with which the others are compared."""
        return self.comparison.baseline.label

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """Who wins, and on what each is better and worse than the baseline."""
        from congruence.tasks.report.comparison import comparison_data

        data = comparison_data(self.comparison)
        return (data.summary, *data.sentences.values())

    def to_frame(self) -> pd.DataFrame:
        """Returns a row for each prediction and metric that was compared: difference, interval, p-value, points won."""
        tables = {label: pair.table() for label, pair in self.comparison.pairs.items()}
        return pd.concat(tables, names=["prediction"]).reset_index(level="prediction").reset_index(drop=True)

    @cached_property
    def page(self) -> str:
        """The comparison's page."""
        from congruence.tasks.report.comparison import comparison_report

        return comparison_report(self.comparison)

    def log(self, tracking: TrackingSettings | None = None) -> str:
        """Log each prediction and the comparison to MLflow, and return the comparison's run id."""
        where = tracking or TrackingSettings()
        runs = {name: one.log(where) for name, one in self.evaluated.items()}
        versions = [replace(version, run_id=runs[version.label]) for version in self.comparison.versions]
        by_label = {version.label: version for version in versions}
        logged = replace(self.comparison, versions=versions, baseline=by_label[self.baseline])
        return str(_mlflow("congruence.tasks.mlflow.comparisons").log_comparison(logged, where).run_id)

    def __repr__(self) -> str:
        said = list(self.sentences)
        for name, one in self.evaluated.items():
            said.append(f"{name}: {with_p_value(one.evaluation.verdict, one.p_value)}")
            said += [f"  {each}" for each in one.sentences[:1] if one.evaluation.verdict.is_wrong]
        return "\n".join([*said, next(iter(self.evaluated.values())).protocol])


def _mlflow(module: str) -> Any:
    """A module that needs MLflow, which a light installation lacks.

    Raises:
        InvalidInputError: MLflow is not installed.
    """
    if find_spec("mlflow") is None:
        raise InvalidInputError("log: MLflow is not installed; run: pip install 'congruence[pipeline]'")
    return importlib.import_module(module)
