"""A generalised linear model of the family that the target's values suggest, by statsmodels."""

import statsmodels.api as sm
import statsmodels.formula.api as smf
from table import Table

NAME = "GLM"


def fit(table: Table) -> tuple[object, str]:
    """Least squares, gamma with a logarithmic link, negative binomial or beta regression."""
    x, y = table.fitted
    formula, frame = f"y ~ {' + '.join(x.columns)}", x.assign(y=y)
    if table.target == "positive":
        return smf.glm(formula, frame, family=sm.families.Gamma(sm.families.links.Log())).fit(), "statsmodels"
    if table.target == "counts":
        return smf.negativebinomial(formula, frame).fit(disp=0, maxiter=500), "statsmodels"
    return smf.ols(formula, frame).fit(), "statsmodels"
