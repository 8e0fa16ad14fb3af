"""The evaluation file's ``tracking:``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated

from pydantic import Field, field_validator

from congruence.tasks.settings.parts import Strict


class TrackingSettings(Strict):
    """Where and how evaluations are logged to MLflow.

    Attributes:
        uri: MLflow tracking server or database; MLflow's current one by default.
        registry_uri: the model registry, where it is another server.
        experiment: evaluations go to the experiment ``<experiment>/evaluations``, with a view for each split;
            comparisons and decisions of the gate to ``<experiment>/comparisons``, new inputs to
            ``<experiment>/new-inputs``.
        artifact_location: folder or bucket of new experiments; for an SQLite database ``mlartifacts`` beside it.
        headline_split: the split whose numbers stand in the tags ``cce``, ``cce_status`` and ``what_is_wrong`` of a
            model version; by default the one evaluated last.
        source_run_metrics: write the headline metrics also to the run that trained the version (``<split>/cce_mean``)
            if no other version came from that run: MLflow's page that compares versions reads only those runs.
        report: log the HTML report and the plots.
        performance_report: log Dask's report of what its workers did (``dask-report.html``, an artifact of the run of
            the last version); needs Bokeh, here and where the scheduler runs.
        table_rows: points in each part of the small table that MLflow shows.
        patience: seconds for which a server that does not answer is asked again.
        link: base address of the MLflow page for people (``https://mlflow.example``), for links in tags; by default the
            tracking server's own.
    """

    uri: Annotated[str | None, Field(repr=False)] = None
    registry_uri: Annotated[str | None, Field(repr=False)] = None
    experiment: str = Field(default="congruence", min_length=1)
    artifact_location: str | None = None
    headline_split: str | None = None
    source_run_metrics: bool = True
    report: bool = True
    performance_report: bool = False
    table_rows: int = Field(default=50, ge=1, le=200)
    patience: float = Field(default=120.0, ge=0)
    link: str | None = None

    @field_validator("performance_report")
    @classmethod
    def _can_be_drawn(cls, asked: bool) -> bool:
        if asked and find_spec("bokeh") is None:
            raise ValueError(
                "Dask draws it with Bokeh, which is not installed; install it here and where the scheduler runs "
                "(pip install -c constraints.txt bokeh), or leave the key out"
            )
        return asked

    @property
    def evaluations(self) -> str:
        """The experiment of evaluations."""
        return f"{self.experiment}/evaluations"

    @property
    def comparisons(self) -> str:
        """The experiment of comparisons and of the gate's decisions, so that the columns of evaluations stay clear."""
        return f"{self.experiment}/comparisons"

    @property
    def new_inputs(self) -> str:
        """The experiment of new inputs that were judged by a split."""
        return f"{self.experiment}/new-inputs"
