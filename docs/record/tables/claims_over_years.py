"""A portfolio of policies over three years: claims that depend within a policy."""

from pathlib import Path

import pandas as pd
from table import GROUPS, TARGET, Table


def table(data: Path | None) -> Table | None:
    """2,000 policies of three years each."""
    if data is None:
        return None
    rows = pd.read_csv(data / "motor-claims" / "claims-of-policies-over-three-years.csv.gz").sort_values("policyID")
    kept = rows[["agecat", "valuecat", "period"]].assign(**{TARGET: rows["numclaims"], GROUPS: rows["policyID"]})
    about = "De Jong and Heller 2008; claims of a policy in a year, three years a policy"
    return Table("claims-over-years", about, "counts", kept.iloc[:6000])
