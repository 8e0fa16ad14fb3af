"""Fair's survey of 1974: time spent in extramarital affairs, two thirds of it 0."""

from pathlib import Path

from statsmodels.datasets import fair
from table import TARGET, Table, shuffled


def table(data: Path | None) -> Table:  # noqa: ARG001
    """6,366 women."""
    rows = shuffled(fair.load_pandas().data.rename(columns={"affairs": TARGET}))
    return Table("affairs", "Fair 1978 (statsmodels); time spent in affairs, two thirds of it 0", "real", rows)
