"""Capital Bikeshare: rentals in an hour, in the order of time."""

from pathlib import Path

import pandas as pd
from table import TARGET, TIME, Table

INPUTS = ["season", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit", "temp", "hum", "windspeed"]


def table(data: Path | None) -> Table | None:
    """The last 6,000 hours of 2011 and 2012: models are fitted on the past and judged on what came then."""
    if data is None:
        return None
    rows = pd.read_csv(data / "bike-hourly" / "hour.csv.gz").iloc[-6000:]
    kept = rows[INPUTS].assign(**{TARGET: rows["cnt"], TIME: rows["instant"]})
    return Table("bike-rentals", "Fanaee-T and Gama 2013; rentals in an hour, 1 to 977, in time", "counts", kept)
