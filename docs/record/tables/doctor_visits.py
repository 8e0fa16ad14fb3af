"""The RAND health insurance experiment: visits to a doctor in a year."""

from pathlib import Path

from statsmodels.datasets import randhie
from table import TARGET, Table, shuffled


def table(data: Path | None) -> Table:  # noqa: ARG001
    """20,190 persons and years; a third of the targets are 0."""
    rows = shuffled(randhie.load_pandas().data.rename(columns={"mdvis": TARGET}))
    return Table("doctor-visits", "RAND health insurance (statsmodels); visits to a doctor in a year", "counts", rows)
