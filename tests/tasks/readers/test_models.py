"""What is logged natively, or by our helper, is read from the registry as what it is.

Fitted models are the laws that their package says that they have, objects that functions return are what they say.
What each kind of object is read as is the matter of test_conformance.py.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.special
import scipy.stats
import torch
import torch.distributions as td
from logged_models import Returning, log_by_us, log_natively, newest, predicted, same
from sklearn.datasets import load_diabetes
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LinearRegression, PoissonRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from congruence.kernels import distributions as families
from congruence.kernels.distributions import Distribution
from congruence.tasks.contract import ContractError, check_contract, log_predictive_model
from congruence.tasks.contract.reading import spec_distribution
from congruence.tasks.readers.base import UnreadableOutputError
from congruence.tasks.readers.read import output_of, read_output

X, Y = load_diabetes(return_X_y=True, as_frame=True)
X, Y = X.iloc[:120, :3].reset_index(drop=True), Y.iloc[:120].reset_index(drop=True)
COUNTS = np.round(Y / 20.0)
ASKED = X.iloc[:9]


@dataclass(frozen=True)
class Case:
    """A fitted model, its laws by the package's own words, and MLflow's flavor that logs it."""

    model: Any
    expected: Distribution
    flavor: str = "sklearn"


def ngboost_student_t() -> Case:
    from ngboost import NGBRegressor
    from ngboost.distns import T

    model = NGBRegressor(Dist=T, n_estimators=5, verbose=False).fit(X, Y)
    kwds = model.pred_dist(ASKED).dist.kwds
    assert "df" not in model.pred_dist(ASKED).params  # the trap
    return Case(model, families.StudentT(kwds["df"], kwds["loc"], kwds["scale"]))


def ngboost_in_a_pipeline() -> Case:
    from ngboost import NGBRegressor

    model = make_pipeline(StandardScaler(), NGBRegressor(n_estimators=5, verbose=False)).fit(X, Y)
    dist = model[-1].pred_dist(model[0].transform(ASKED))
    return Case(model, families.Normal(dist.loc, dist.scale))


def ngboost_counts() -> Case:
    from ngboost import NGBRegressor
    from ngboost.distns import Poisson

    model = NGBRegressor(Dist=Poisson, n_estimators=5, verbose=False).fit(X, COUNTS)
    return Case(model, families.Poisson(model.predict(ASKED)))


def skpro_normal() -> Case:
    from skpro.regression.residual import ResidualDouble

    model = ResidualDouble(LinearRegression()).fit(X, Y.to_frame())
    law = model.predict_proba(ASKED)
    return Case(model, families.Normal(law.mean().to_numpy()[:, 0], np.sqrt(law.var().to_numpy()[:, 0])))


def catboost_uncertainty() -> Case:
    from catboost import CatBoostRegressor

    model = CatBoostRegressor(loss_function="RMSEWithUncertainty", iterations=5, verbose=0, allow_writing_files=False)
    raw = model.fit(X, Y).predict(ASKED, prediction_type="RawFormulaVal")  # mean and log sigma
    return Case(model, families.Normal(raw[:, 0], np.exp(raw[:, 1])), "catboost")


def catboost_quantiles() -> Case:
    from catboost import CatBoostRegressor

    loss = "MultiQuantile:alpha=0.1,0.5,0.9"
    model = CatBoostRegressor(loss_function=loss, iterations=5, verbose=0, allow_writing_files=False).fit(X, Y)
    return Case(model, families.Quantiles([0.1, 0.5, 0.9], model.predict(ASKED)), "catboost")


def xgboost_quantiles() -> Case:
    from xgboost import XGBRegressor

    model = XGBRegressor(objective="reg:quantileerror", quantile_alpha=[0.1, 0.5, 0.9], n_estimators=5).fit(X, Y)
    return Case(model, families.Quantiles([0.1, 0.5, 0.9], model.predict(ASKED)), "xgboost")


def lightgbm_counts() -> Case:
    from lightgbm import LGBMRegressor

    model = LGBMRegressor(objective="poisson", n_estimators=5, verbose=-1).fit(X, COUNTS)
    return Case(model, families.Poisson(model.predict(ASKED)), "lightgbm")


def quantile_forest() -> Case:
    from quantile_forest import RandomForestQuantileRegressor

    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    model = RandomForestQuantileRegressor(10, default_quantiles=levels, random_state=0).fit(X, Y)
    return Case(model, families.Quantiles(levels, model.predict(ASKED, quantiles=levels)))


def crepes_predictive_system() -> Case:
    from crepes import WrapRegressor

    model = WrapRegressor(LinearRegression())
    model.fit(X[:60], Y[:60])
    model.calibrate(X[60:], Y[60:], cps=True)
    return Case(model, families.Samples(model.predict_cpds(ASKED)))


def mapie_intervals() -> Case:
    from mapie.regression import SplitConformalRegressor

    model = SplitConformalRegressor(LinearRegression(), confidence_level=[0.5, 0.8, 0.9], prefit=False)
    model.fit(X[:60], Y[:60])
    model.conformalize(X[60:], Y[60:])
    ends = model.predict_interval(ASKED)[1]
    values = np.concatenate([ends[:, 0, ::-1], ends[:, 1]], axis=1)
    return Case(model, families.Quantiles([0.05, 0.1, 0.25, 0.75, 0.9, 0.95], values))


def statsmodels_linear() -> Case:
    import statsmodels.formula.api as smf

    model = smf.ols("y ~ age + bmi", X.assign(y=Y)).fit()
    interval = model.get_prediction(ASKED).summary_frame(alpha=0.5)
    scale = (interval["obs_ci_upper"] - interval["mean"]) / families.StudentT(model.df_resid, 0.0, 1.0).quantile(0.75)
    return Case(model, families.StudentT(model.df_resid, interval["mean"], scale), "statsmodels")


def statsmodels_gamma() -> Case:
    import statsmodels.api as sm
    import statsmodels.formula.api as smf

    family = sm.families.Gamma(sm.families.links.Log())
    model = smf.glm("y ~ age + bmi", X.assign(y=Y), family=family).fit()
    return Case(model, families.Gamma(1.0 / model.scale, model.predict(ASKED) * model.scale), "statsmodels")


def statsmodels_negative_binomial() -> Case:
    import statsmodels.formula.api as smf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = smf.negativebinomial("y ~ age + bmi", X.assign(y=COUNTS)).fit(disp=0)
    return Case(model, families.NegativeBinomial(model.predict(ASKED), model.params["alpha"]), "statsmodels")


def scikit_learn_bayesian_ridge() -> Case:
    model = BayesianRidge().fit(X, Y)
    return Case(model, families.Normal(*model.predict(ASKED, return_std=True)))


def scikit_learn_gaussian_process() -> Case:
    model = GaussianProcessRegressor(alpha=1.0, normalize_y=True).fit(X, Y)
    return Case(model, families.Normal(*model.predict(ASKED, return_std=True)))


def scikit_learn_poisson() -> Case:
    model = PoissonRegressor().fit(X, COUNTS)
    return Case(model, families.Poisson(model.predict(ASKED)))


class Network(torch.nn.Module):
    """Three outputs a row, and what ``law`` makes of them."""

    def __init__(self, law: Callable[..., td.Distribution]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 3).double()
        self.law = law

    def outputs(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.layer(20.0 * rows).unbind(1)

    def forward(self, rows: torch.Tensor) -> td.Distribution:
        return self.law(*self.outputs(rows))


def network(law: Callable[..., td.Distribution]) -> tuple[Network, list[np.ndarray[Any, Any]]]:
    """A network, and its outputs for the rows that are asked."""
    made = Network(law)
    return made, [one.detach().numpy() for one in made.outputs(torch.tensor(ASKED.to_numpy()))]


def student_t_of_one_column(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> td.Distribution:
    return td.Independent(td.StudentT(3.0 + c[:, None].exp(), a[:, None], b[:, None].exp()), 1)


def torch_student_t() -> Case:
    model, (a, b, c) = network(student_t_of_one_column)
    return Case(model, families.StudentT(3.0 + np.exp(c), a, np.exp(b)), "pytorch")


CASES: dict[str, list[Callable[[], Case]]] = {
    "ngboost": [ngboost_student_t, ngboost_in_a_pipeline, ngboost_counts],
    "skpro": [skpro_normal],
    "catboost": [catboost_uncertainty, catboost_quantiles],
    "xgboost": [xgboost_quantiles],
    "lightgbm": [lightgbm_counts],
    "quantile_forest": [quantile_forest],
    "crepes": [crepes_predictive_system],
    "mapie": [mapie_intervals],
    "statsmodels": [statsmodels_linear, statsmodels_gamma, statsmodels_negative_binomial],
    "torch": [torch_student_t],
    "sklearn": [scikit_learn_bayesian_ridge, scikit_learn_gaussian_process, scikit_learn_poisson],
}
EACH = [pytest.param(package, make, id=make.__name__) for package, makes in CASES.items() for make in makes]


@pytest.mark.parametrize(("package", "make"), EACH)
def test_a_model_is_read_as_it_was_logged(package: str, make: Callable[[], Case], registry: str) -> None:
    pytest.importorskip(package)
    made = make()
    native, helped = f"{registry}-{make.__name__}-native", f"{registry}-{make.__name__}"
    log_natively(made.model, native, ASKED, made.flavor)
    log_by_us(made.model, helped, ASKED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = newest(native)
        same(model.predict(ASKED.assign(target=1.0)), made.expected)
        same(predicted(helped, ASKED), made.expected)
    report = check_contract(model, ASKED, COUNTS[: len(ASKED)])
    assert f", read from {type(getattr(made.model, '_final_estimator', made.model)).__name__}" in report.family


def test_other_answers_of_catboost_are_the_same_law() -> None:
    """Raw, the second column is log sigma; of virtual ensembles, columns 2 and 3 add up to the variance."""
    pytest.importorskip("catboost")
    made = catboost_uncertainty()
    for method in ("predict", "predict(prediction_type='RawFormulaVal')"):
        same(spec_distribution(output_of(made.model, ASKED, method), len(ASKED)), made.expected)
    asked = "virtual_ensembles_predict(prediction_type='TotalUncertainty', virtual_ensembles_count=2)"
    parts = made.model.virtual_ensembles_predict(ASKED, "TotalUncertainty", virtual_ensembles_count=2)
    expected = families.Normal(parts[:, 0], np.sqrt(parts[:, 1] + parts[:, 2]))
    same(spec_distribution(output_of(made.model, ASKED, asked), len(ASKED)), expected)


def test_a_covariance_for_each_row_is_refused_with_remedies_that_work(registry: str) -> None:
    ngboost = pytest.importorskip("ngboost")
    both = np.column_stack([Y, Y + X["bmi"] * 1000.0])
    law = ngboost.distns.MultivariateNormal(2)
    model = ngboost.NGBRegressor(Dist=law, n_estimators=3, verbose=False).fit(X.to_numpy(), both)
    for made, name in (
        (model.pred_dist(ASKED.to_numpy()), "ngboost's MultivariateNormal"),
        (td.MultivariateNormal(torch.zeros(9, 2), torch.eye(2)), "torch's MultivariateNormal"),
        (scipy.stats.multivariate_normal([0.0, 1.0], np.eye(2)), "scipy's multivariate_normal_frozen"),
    ):
        with pytest.raises(UnreadableOutputError, match=rf"{name}, with a covariance.*\(1\) its draws.*\(2\).*\(3\)"):
            read_output(made, len(ASKED))

    def draws(x: pd.DataFrame) -> families.Samples:
        return families.Samples(np.swapaxes(model.pred_dist(x.to_numpy()).sample(500), 0, 1))

    def first(x: pd.DataFrame) -> families.Normal:
        made = model.pred_dist(x.to_numpy())
        return families.Normal(made.loc[:, 0], np.sqrt(made.cov[:, 0, 0]))

    for function, dimension in ((draws, 2), (first, 1)):
        name = f"{registry}-{function.__name__}"
        log_by_us(function, name, ASKED)
        found = predicted(name, ASKED)
        assert found.dimension == dimension
        mean = model.pred_dist(ASKED.to_numpy()).loc[:, :dimension]
        np.testing.assert_allclose(np.reshape(found.mean(), mean.shape), mean, rtol=0.2)


def test_draws_of_mondrian_categories() -> None:
    crepes = pytest.importorskip("crepes")
    for border, kind in ((0.0, families.WeightedSamples), (-9.0, families.Samples)):
        model = crepes.WrapRegressor(LinearRegression())
        model.fit(X[:60], Y[:60])
        model.calibrate(X[60:], Y[60:], cps=True, mc=lambda rows, at=border: (np.asarray(rows)[:, 0] > at).astype(int))
        found = spec_distribution(output_of(model, ASKED), len(ASKED))
        assert type(found) is kind
        for row, draws in enumerate(model.predict_cpds(ASKED)):
            np.testing.assert_allclose(found.cdf(np.full(len(ASKED), 150.0))[row], np.mean(draws <= 150.0), atol=1e-12)
            np.testing.assert_allclose(found.mean()[row], np.mean(draws))


def test_one_quantile_is_no_law_and_a_mean_without_a_law_is_named() -> None:
    smf = pytest.importorskip("statsmodels.formula.api")
    sm = pytest.importorskip("statsmodels.api")
    frame = X.assign(y=Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        median = smf.quantreg("y ~ age + bmi", frame).fit(q=0.5)
        tweedie = smf.glm("y ~ age", frame, family=sm.families.Tweedie(sm.families.links.Log(), 1.5)).fit()
    boosted = GradientBoostingRegressor(loss="quantile", alpha=0.1, n_estimators=2).fit(X, Y)
    for model, method, message in (
        (median, None, r"\(1\) log_predictive_model\(\{0.1: low, 0.9: high\}, ...\) with one model a level"),
        (median, "get_prediction", "QuantReg is one quantile.*log one model a level"),
        (boosted, None, r"\(1\) log_predictive_model\(\{0.1: low"),
        (tweedie, None, r"shape \(9,\) for 9 rows; no family is known for it.*\(1\).*\(3\)"),
    ):
        with pytest.raises(UnreadableOutputError, match=message):
            output_of(model, ASKED, method)


@pytest.mark.parametrize(
    "output",
    [np.ones(7), np.ones((7, 20)), pd.DataFrame({"mean": np.ones(7), "std": 1.0}), pd.Series(np.ones(7))],
    ids=["one", "draws", "frame", "series"],
)
def test_an_answer_of_another_length_is_named_as_such(output: Any) -> None:
    with pytest.raises(UnreadableOutputError, match=r"it has 7 rows for 9 input rows and must have one each$"):
        read_output(output, 9)


ROWS = pd.DataFrame({"a": [0.5, 1.0, 2.0, 3.5, 4.0], "b": [0.7, 1.5, 1.0, 2.0, 0.9]})
A, B = ROWS["a"].to_numpy(), ROWS["b"].to_numpy()
FIVE = [0.05, 0.25, 0.5, 0.75, 0.95]
DRAWS = np.random.default_rng(0).normal(size=40)
SHARES = np.random.default_rng(1).dirichlet(np.ones(3), size=5)


def quantiles(frame: pd.DataFrame) -> Any:
    return frame["a"].to_numpy()[:, None] + frame["b"].to_numpy()[:, None] * scipy.stats.norm.ppf(FIVE)


def scipy_frozen(frame: pd.DataFrame) -> Any:
    return scipy.stats.gamma(frame["a"], scale=frame["b"])


def forecasts(frame: pd.DataFrame) -> Any:
    return [SimpleNamespace(samples=row.a + row.b * DRAWS[:, None]) for row in frame.itertuples()]


def forest_weights(frame: pd.DataFrame) -> Any:
    return {"weights": SHARES[: len(frame)], "y": np.array([0.0, 1.0, 3.0])}


RETURNED: list[tuple[Callable[[pd.DataFrame], Any], Distribution]] = [
    (scipy_frozen, families.Gamma(A, B)),
    (forecasts, families.Samples(A[:, None] + B[:, None] * DRAWS)),
    (forest_weights, families.WeightedSamples([0.0, 1.0, 3.0], SHARES)),
]


@pytest.mark.parametrize(("function", "expected"), RETURNED, ids=lambda made: getattr(made, "__name__", ""))
def test_a_returned_object_is_read_from_the_registry(
    function: Callable[[pd.DataFrame], Any], expected: Distribution, registry: str
) -> None:
    """Logged by MLflow, and by our helper as a function and as a model of MLflow's."""
    name = f"{registry}-{function.__name__}".replace("_", "-")
    log_natively(function, f"{name}-native", ROWS, "pyfunc")
    models = {"function": function, "model": Returning(function)}
    kinds = ["function", "model"] if function is scipy_frozen else ["function"]
    for kind in kinds:
        log_by_us(models[kind], f"{name}-{kind}", ROWS)
    y = np.asarray(expected.mean())[:, None] + np.array([-0.4, 0.3, 1.7])
    y = np.abs(np.round(y, 0 if expected.is_discrete else 3))
    for kind in ("native", *kinds):
        same(predicted(f"{name}-{kind}", ROWS), expected, y)


def test_an_array_needs_a_word() -> None:
    with pytest.raises(ContractError, match=r"give family=.*numpy ndarray of shape \(5, 5\) for 5 rows.*\(1\).*\(3\)"):
        log_predictive_model(quantiles, name="model", input_example=ROWS)


def test_the_page_has_a_row_for_every_package() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "model-formats.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert not [package for package in CASES if not any(f"(`{package}`)" in row for row in rows)]
