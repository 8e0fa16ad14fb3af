"""What every reader keeps to, whatever its library: an object is read as it is, and what is unknown is named.

What is logged is the matter of test_models.py, how a model is asked that of test_asking.py.
"""

import importlib
import json
import pkgutil
import re
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import torch
import torch.distributions as td
from logged_models import same
from sklearn.linear_model import LinearRegression

from congruence.kernels import distributions as families
from congruence.kernels.distributions import Distribution
from congruence.tasks import readers as folder
from congruence.tasks.contract import ContractError, PredictionSettings, read_distribution
from congruence.tasks.contract.reading import spec_distribution
from congruence.tasks.models.model_process import store
from congruence.tasks.models.processes import _as_output
from congruence.tasks.readers import base
from congruence.tasks.readers import read as reading
from congruence.tasks.readers.base import Asked, Call, Reader, Spec, UnreadableOutputError, parse_call
from congruence.tasks.readers.read import known, output_of, read_output
from congruence.tasks.readers.regressors import MapieReader

N = 4
A, B = np.array([0.5, 1.0, 2.0, 3.5]), np.array([0.7, 1.5, 1.0, 2.0])
P = np.array([0.1, 0.3, 0.5, 0.8])
LEVELS, VALUES = np.array([0.1, 0.5, 0.9]), np.outer(A, [1.0, 2.0, 4.0])
Y = np.array([0.0, 1.0, 2.0, 4.0])


def read(output: Any, rows: int = N, **settings: Any) -> Distribution:
    return read_distribution(output, PredictionSettings(**settings), rows)


def as_here(found: Distribution, expected: Distribution, rtol: float = 1e-12) -> None:
    same(found, expected, Y, rtol, 1e-14)


def tensor(values: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float64)


def frame_of(names: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(VALUES, columns=names)


FROZEN = {
    "norm": (scipy.stats.norm(A, B), families.Normal(A, B)),
    "t": (scipy.stats.t(5.0, loc=A, scale=B), families.StudentT(np.full(N, 5.0), A, B)),
    "laplace": (scipy.stats.laplace(A, B), families.Laplace(A, B)),
    "logistic": (scipy.stats.logistic(loc=A, scale=B), families.Logistic(A, B)),
    "lognorm": (scipy.stats.lognorm(B, scale=A), families.LogNormal(B, A)),
    "gamma": (scipy.stats.gamma(A, scale=B), families.Gamma(A, B)),
    "expon": (scipy.stats.expon(scale=B), families.Gamma(np.ones(N), B)),
    "beta": (scipy.stats.beta(A, B), families.Beta(A, B)),
    "uniform": (scipy.stats.uniform(A, B), families.Uniform(A, B)),
    "truncnorm": (scipy.stats.truncnorm(-1.0, np.inf, A, B), families.TruncatedNormal(A, B, A - B, np.inf)),
    "poisson": (scipy.stats.poisson(A), families.Poisson(A)),
    "nbinom": (scipy.stats.nbinom(B, P), families.NegativeBinomial(B * (1 - P) / P, 1 / B)),
    "binom": (scipy.stats.binom(7, P), families.Binomial(np.full(N, 7), P)),
}


NEW = {
    "Normal": (lambda d: d.Normal(mu=A, sigma=B), families.Normal(A, B)),
    "Uniform": (lambda d: d.Uniform(a=A, b=A + B), families.Uniform(A, B)),
    "Binomial": (lambda d: d.Binomial(n=np.full(N, 7), p=P), families.Binomial(np.full(N, 7), P)),  # from 1.16 on
    "scaled": (lambda d: 2.0 * d.make_distribution(d.gamma)(a=A), families.Gamma(A, np.full(N, 2.0))),
    "moved": (lambda d: 3.0 * d.Normal(mu=A, sigma=B) + 1.0, families.Normal(3 * A + 1, 3 * B)),
    "Mixture": (
        lambda d: d.Mixture([d.Normal(mu=0.0, sigma=1.0), d.Normal(mu=1.0, sigma=2.0)], weights=[0.3, 0.7]),
        families.Mixture([0.3, 0.7], [families.Normal(np.full(N, k), np.full(N, k + 1.0)) for k in (0.0, 1.0)]),
    ),
}
if not hasattr(scipy.stats, "Binomial"):
    del NEW["Binomial"]


TORCH = {
    "Normal": (td.Normal(tensor(A), tensor(B)), families.Normal(A, B)),
    "one column": (td.Normal(tensor(A)[:, None], tensor(B)[:, None]), families.Normal(A, B)),
    "Independent": (td.Independent(td.Normal(tensor(A)[:, None], tensor(B)[:, None]), 1), families.Normal(A, B)),
    "StudentT": (td.StudentT(tensor(A + 2), tensor(A), tensor(B)), families.StudentT(A + 2, A, B)),
    "LogNormal": (td.LogNormal(tensor(A), tensor(B)), families.LogNormal(B, np.exp(A))),
    "Gamma": (td.Gamma(tensor(A), tensor(B)), families.Gamma(A, 1 / B)),
    "Beta": (td.Beta(tensor(A), tensor(B)), families.Beta(A, B)),
    "Poisson": (td.Poisson(tensor(A)), families.Poisson(A)),
    "NegativeBinomial by logits": (
        td.NegativeBinomial(tensor(B), logits=tensor(A)), families.NegativeBinomial(B * np.exp(A), 1 / B)
    ),
    "NegativeBinomial by probs": (
        td.NegativeBinomial(tensor(B), probs=tensor(P)), families.NegativeBinomial(B * P / (1 - P), 1 / B)
    ),
    "MixtureSameFamily": (
        td.MixtureSameFamily(
            td.Categorical(logits=tensor(np.log([[0.2, 0.8]] * N))),
            td.Normal(tensor(np.column_stack([A, -A])), tensor(np.column_stack([B, B]))),
        ),
        families.Mixture([0.2, 0.8], [families.Normal(A, B), families.Normal(-A, B)]),
    ),
}  # fmt: skip


TFP = {
    "Normal": (lambda d: d.Normal(A, B), families.Normal(A, B)),
    "one column": (lambda d: d.Independent(d.Normal(A[:, None], B[:, None]), 1), families.Normal(A, B)),
    "StudentT": (lambda d: d.StudentT(A + 2, A, B), families.StudentT(A + 2, A, B)),
    "LogNormal": (lambda d: d.LogNormal(A, B), families.LogNormal(B, np.exp(A))),
    "Gamma": (lambda d: d.Gamma(A, B), families.Gamma(A, 1 / B)),
    "Gamma by log_rate": (lambda d: d.Gamma(A, log_rate=np.log(B)), families.Gamma(A, 1 / B)),
    "Poisson by log_rate": (lambda d: d.Poisson(log_rate=np.log(A)), families.Poisson(A)),
    "NegativeBinomial by logits": (
        lambda d: d.NegativeBinomial(B, logits=A), families.NegativeBinomial(B * np.exp(A), 1 / B)
    ),
    "NegativeBinomial by probs": (
        lambda d: d.NegativeBinomial(B, probs=P), families.NegativeBinomial(B * P / (1 - P), 1 / B)
    ),
    "Binomial by logits": (
        lambda d: d.Binomial(7.0, logits=np.log(P / (1 - P))), families.Binomial(np.full(N, 7), P)
    ),
    "TruncatedNormal": (
        lambda d: d.TruncatedNormal(A, B, A - B, np.full(N, np.inf)), families.TruncatedNormal(A, B, A - B, np.inf)
    ),
    "MixtureSameFamily": (
        lambda d: d.MixtureSameFamily(
            d.Categorical(probs=np.array([[0.2, 0.8]] * N)),
            d.Normal(np.column_stack([A, -A]), np.column_stack([B, B])),
        ),
        families.Mixture([0.2, 0.8], [families.Normal(A, B), families.Normal(-A, B)]),
    ),
    "Mixture": (
        lambda d: d.Mixture(d.Categorical(probs=np.array([[0.2, 0.8]] * N)), [d.Normal(A, B), d.Laplace(-A, B)]),
        families.Mixture([0.2, 0.8], [families.Normal(A, B), families.Laplace(-A, B)]),
    ),
}  # fmt: skip


NUMPYRO = {  # in no extra: it brings jaxlib, 341 MB
    "Normal": (lambda d: d.Normal(A, B), families.Normal(A, B)),
    "NegativeBinomial2": (lambda d: d.NegativeBinomial2(A, B), families.NegativeBinomial(A, 1 / B)),
    "StudentT": (lambda d: d.StudentT(A + 2, A, B).to_event(0), families.StudentT(A + 2, A, B)),
}


COLUMNS = {
    "q0.1": frame_of(["q0.1", "q0.5", "q0.9"]),
    "levels": frame_of([0.1, 0.5, 0.9]),
    "neuralforecast intervals": frame_of(["NHITS-lo-80", "NHITS-median", "NHITS-hi-80"]).assign(unique_id="a"),
    "neuralforecast quantiles": frame_of(["NHITS_ql0.1", "NHITS_ql0.5", "NHITS_ql0.9"]),
    "variable and level": frame_of(pd.MultiIndex.from_product([["y"], [0.1, 0.5, 0.9]])),  # type: ignore[arg-type]
    "not in order": frame_of(["q0.1", "q0.5", "q0.9"])[["q0.9", "q0.1", "q0.5"]],
    "percents": frame_of(["q10", "q50", "q90"]),
    "percentiles": frame_of(["P10", "P50", "P90"]).assign(mean=1.0, std=2.0),
    "percent signs": frame_of(["10%", "50%", "90%"]),
    "alpha": frame_of(["alpha_0.1", "alpha_0.5", "alpha_0.9"]),
    "tau": frame_of(["tau=0.1", "tau=0.5", "tau=0.9"]),
    "ends and a median": frame_of(["lower_80", "median", "upper_80"]),
    "a mapping": {"quantile_0.1": VALUES[:, 0], "quantile_0.5": VALUES[:, 1], "quantile_0.9": VALUES[:, 2]},
}


OBJECTS: dict[str, tuple[str, dict[str, Any], float]] = {
    "scipy": ("", FROZEN, 1e-12),
    "new scipy": ("scipy.stats", NEW, 1e-12),
    "torch": ("", TORCH, 1e-9),
    "TensorFlow Probability": ("tensorflow_probability.substrates.numpy.distributions", TFP, 1e-9),
    "NumPyro": ("numpyro.distributions", NUMPYRO, 1e-5),  # single precision
    "columns": ("", {name: (frame, families.Quantiles(LEVELS, VALUES)) for name, frame in COLUMNS.items()}, 1e-12),
}
"""By library: the module that makes its objects, where they are made when asked for; these; to how many digits."""
EACH = [pytest.param(library, name, id=f"{library}: {name}") for library, made in OBJECTS.items() for name in made[1]]


def made(library: str, name: str) -> Any:
    module, objects, _ = OBJECTS[library]
    if not module:
        return objects[name][0]
    # TensorFlow Probability's substrate of NumPy needs no TensorFlow; other substrates have the same classes.
    pytest.importorskip(module.rpartition(".")[0])
    return objects[name][0](importlib.import_module(module))


def travelled(law: Spec, folder: Path) -> Any:
    """What comes over from the process that read it."""
    said = store(law, str(folder / "output.npz"), base)
    return _as_output(json.loads(json.dumps(said)), folder / "output.npz")


@pytest.mark.parametrize(("library", "name"), EACH)
def test_an_object_is_read_as_it_is_also_in_another_process(library: str, name: str, tmp_path: Path) -> None:
    _, objects, digits = OBJECTS[library]
    output, expected = made(library, name), objects[name][1]
    as_here(read(output), expected, digits)
    as_here(read(travelled(read_output(output, N), tmp_path)), expected, digits)


def test_laws_that_are_no_family_are_read_by_many_quantiles_or_masses_and_say_so() -> None:
    law = read_output(scipy.stats.weibull_min(B, scale=A), N)
    assert "weibull_min has no family here: read as 409 quantiles" in law.note
    weibull = scipy.stats.weibull_min(B, scale=A)
    np.testing.assert_allclose(read(weibull).cdf(Y), weibull.cdf(Y), atol=2e-3)
    masses = read(scipy.stats.betabinom(9, A, B))
    np.testing.assert_allclose(masses.cdf(Y), scipy.stats.betabinom(9, A, B).cdf(Y), atol=1e-12)


def test_a_vector_of_normals_of_torch() -> None:
    found = read(td.Independent(td.Normal(tensor(VALUES), tensor(VALUES)), 1))
    assert isinstance(found, families.MultivariateNormal)
    np.testing.assert_allclose(found.mean(), VALUES)


def test_laws_that_know_their_quantiles_are_read_by_them() -> None:
    a, b = tensor(A), tensor(B)
    laws: dict[Any, Any] = {
        td.Weibull(a, b): scipy.stats.weibull_min(B, scale=A),
        td.Gumbel(a[:, None], b[:, None]): scipy.stats.gumbel_r(A, B),
        td.TransformedDistribution(td.Normal(a, b), [td.ExpTransform()]): scipy.stats.lognorm(B, scale=np.exp(A)),
    }
    for law, expected in laws.items():
        assert "has no family here: read as 409 quantiles" in read_output(law, N).note
        np.testing.assert_allclose(read(law).cdf(Y), expected.cdf(Y), atol=1e-5)
    with pytest.raises(ContractError, match="torch Geometric with attributes"):
        read(td.Geometric(tensor(P)))


def test_distributions_of_skpro_are_their_own_cdfs() -> None:
    skpro = pytest.importorskip("skpro.distributions")
    column = A[:, None]
    laws = [
        skpro.Normal(mu=column, sigma=2.0), skpro.Laplace(mu=column, scale=2.0), skpro.Logistic(mu=column, scale=2.0),
        skpro.TDistribution(mu=column, sigma=2.0, df=4.0), skpro.LogNormal(mu=column, sigma=0.5),
        skpro.Gamma(alpha=column, beta=2.0), skpro.Beta(alpha=column, beta=2.0), skpro.Exponential(rate=column),
        skpro.Uniform(lower=column, upper=5.0), skpro.TruncatedNormal(mu=column, sigma=2.0, l_trunc=0.0, r_trunc=5.0),
        skpro.Poisson(mu=column), skpro.NegativeBinomial(mu=column, alpha=2.0), skpro.Binomial(n=column * 2, p=0.5),
        skpro.Mixture([skpro.Normal(mu=column, sigma=2.0), skpro.Normal(mu=column, sigma=1.0)], weights=[0.3, 0.7]),
        skpro.Empirical(pd.DataFrame({"y": np.arange(12.0)}, index=pd.MultiIndex.from_product([range(3), range(N)]))),
    ]  # fmt: skip
    for law in laws:
        at = Y / 5 if type(law).__name__ == "Beta" else Y
        own = law.cdf(pd.DataFrame(at, index=law.index, columns=law.columns)).to_numpy()[:, 0]
        np.testing.assert_allclose(read(law).cdf(at), own, atol=1e-12, err_msg=type(law).__name__)


class FullSupportBarDistribution:
    """As TabPFN's, which is larger than a test may install: logits and borders are torch's, in single precision."""

    def __init__(self, borders: torch.Tensor) -> None:
        self.borders = borders


def test_the_full_output_of_tabpfn(tmp_path: Path) -> None:
    logits, borders = torch.tensor(np.log(P_BINS), dtype=torch.float32), torch.tensor([-2.0, -1.0, 0.5, 3.0])
    output = {"criterion": FullSupportBarDistribution(borders), "logits": logits, "mean": None, "quantiles": [A, A]}
    as_here(read(output), families.Histogram(borders.numpy(), P_BINS, tail_share=0.5), rtol=1e-6)
    as_here(read(travelled(read_output(output, N), tmp_path)), read(output))
    inner = families.Histogram(borders.numpy(), P_BINS, tail_share=0.5)
    side = torch.distributions.HalfNormal(
        2.5 / torch.distributions.HalfNormal(torch.tensor(1.0)).icdf(torch.tensor(0.5))
    )
    expected = np.log(P_BINS[:, 2]) + side.log_prob(torch.tensor(3.5)).item()  # TabPFN's own log density at 4
    np.testing.assert_allclose(inner.log_prob(4.0), expected, rtol=1e-6)


def test_the_quantiles_of_tabicl() -> None:
    """A class of its package with its ``predict``, whose weights are not on an index of packages."""

    def predict(self: Any, X: Any, output_type: str = "mean", alphas: list[float] | None = None) -> Any:
        assert output_type == "quantiles"
        return scipy.stats.norm(A[:, None], B[:, None]).ppf(np.asarray(alphas)).astype(np.float32)

    model = type("TabICLRegressor", (), {"__module__": "tabicl.sklearn.regressor", "predict": predict})()
    found = known(model)
    law = spec_distribution(found.read(found.call.of(model, None)), N)  # type: ignore[misc, arg-type]
    assert len(law.quantile_levels) == 999
    np.testing.assert_allclose(law.cdf(Y), scipy.stats.norm(A, B).cdf(Y), atol=1e-4)


P_BINS = np.random.default_rng(0).dirichlet(np.ones(3), N)


def test_weights_of_a_distributional_forest() -> None:
    """The classes of drf's wrapper of its R package, which no index of Python packages has: targets are (m, q)."""
    answer = type("predict_output", (), {"__module__": "drf.code"})

    def predict(model: Any, newdata: Any, **predict_params: Any) -> Any:
        found = answer()
        found.weights, found.y = P_BINS[: len(newdata)], np.array([[3.0], [0.0], [1.0]])
        return found

    forest = type("drf", (), {"__module__": "drf.code", "predict": predict})()
    expected = families.WeightedSamples([3.0, 0.0, 1.0], P_BINS)
    as_here(read(predict(forest, Y)), expected)
    as_here(spec_distribution(output_of(forest, pd.DataFrame({"a": A})), N), expected)


def test_forecasts_of_one_horizon_or_each() -> None:
    draws = [np.random.default_rng(k).normal(size=(50, 1)) for k in range(N)]
    as_here(
        read([SimpleNamespace(samples=one) for one in draws]), families.Samples(np.stack([one[:, 0] for one in draws]))
    )
    two = [SimpleNamespace(samples=np.column_stack([one, one + 1.0])) for one in draws[:2]]
    expected = [draws[0][:, 0], draws[0][:, 0] + 1, draws[1][:, 0], draws[1][:, 0] + 1]
    as_here(read(two), families.Samples(np.stack(expected)))
    assert read(two, 2).dimension == 2
    with pytest.raises(ContractError, match="2 forecasts of horizon 2 for 3 input rows; give one row a series"):
        read(two, 3)
    quantiles = [SimpleNamespace(forecast_array=row[:, None], forecast_keys=["0.1", "0.5", "0.9"]) for row in VALUES]
    as_here(read(quantiles), families.Quantiles(LEVELS, VALUES))


SPREADS = [("mean", "std"), ("mu", "sigma"), ("Mean", "SD"), ("y_mean", "y_std"), ("mu", "sd"), ("mean", "var")]


@pytest.mark.parametrize(("mean", "spread"), SPREADS)
def test_columns_that_name_a_mean_and_a_spread(mean: str, spread: str) -> None:
    output = pd.DataFrame({mean: A, "id": range(N), spread: B**2 if spread == "var" else B})
    as_here(read(output), families.Normal(A, B))
    word = "variance" if spread == "var" else "standard deviation"
    said = f"columns {mean!r} and {spread!r} are read as mean and {word} of a normal distribution"
    assert read_output(output, N).note.startswith(said)


def test_percents_of_three_digits_are_thousandths() -> None:
    as_here(read(frame_of(["q025", "q500", "q975"])), families.Quantiles([0.025, 0.5, 0.975], VALUES))


def test_intervals_and_their_coverage() -> None:
    ends = np.stack([VALUES[:, [0]], VALUES[:, [2]]], axis=1)
    law = MapieReader().read((A, ends), N, Asked(Call("predict", (), {"alpha": [0.2]})))
    np.testing.assert_allclose(law.parameters["levels"], [0.1, 0.9])
    columns = pd.MultiIndex.from_tuples([("y", 0.8, "lower"), ("y", 0.8, "upper")])
    as_here(read(pd.DataFrame(VALUES[:, [0, 2]], columns=columns)), families.Quantiles([0.1, 0.9], VALUES[:, [0, 2]]))


def test_torchs_negative_binomial_in_columns_as_lightgbmlss_gives_it() -> None:
    found = read(pd.DataFrame({"total_count": B, "probs": P}))
    np.testing.assert_allclose(found.cdf(Y), scipy.stats.nbinom(B, 1 - P).cdf(Y), rtol=1e-12)


def test_draws_in_either_orientation() -> None:
    draws = np.random.default_rng(1).integers(-9, 9, size=(N, 6)) / 4.0  # which 16 bits hold
    for output in (draws.T, torch.tensor(draws.T), torch.tensor(draws.T, dtype=torch.bfloat16), {"values": draws.T}):
        as_here(read(output, family="samples", draws_axis=0), families.Samples(draws))
    as_here(read(draws, family="samples", draws_axis=1), families.Samples(draws))


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("pred_dist", Call("pred_dist")),
        ("predict(return_std=True)", Call("predict", (), {"return_std": True})),
        ("predict_quantiles(alpha=[0.1, 0.9])", Call("predict_quantiles", (), {"alpha": [0.1, 0.9]})),
        ("sample(100, seed=-1)", Call("sample", (100,), {"seed": -1})),
    ],
)
def test_a_method_is_named_with_literals(text: str, call: Call) -> None:
    assert parse_call(text) == call


@pytest.mark.parametrize(
    "text", ["os.system('x')", "f(g())", "f(**{'a': 1})", "_private", "f(x)", "1 + 1", "f(", "lambda: 1"]
)
def test_a_method_is_nothing_but_a_name_and_literals(text: str) -> None:
    with pytest.raises(ValueError, match="method: "):
        PredictionSettings(method=text)


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (A, r"numpy ndarray of shape \(4,\) for 4 rows.*columns: \{loc: \"0\", scale: 2.0\}"),
        (VALUES, r"shape \(4, 3\).*quantiles, levels: \[...\]\} with its 3 levels.*\(2\).*samples"),
        (np.zeros((7, 4)), r"shape \(7, 4\).*draws_axis: 0"),
        (pd.DataFrame({"loc": A, "scale": B}), r"with columns 'loc', 'scale'.*columns: \{loc: loc, scale: scale\}"),
        (frame_of(["lower", "median", "upper"]),
         r"\(1\) predictions: .*levels: \[0.05, 0.5, 0.95\], columns: \{values: \[lower, median, upper\]"),
        (frame_of(["yhat_upper", "yhat", "yhat_lower"]), r"\(1\).*levels: .*\[yhat_lower, yhat, yhat_upper\]"),
        (frame_of(["q1", "q2", "q3"]), r"\(1\) predictions: \{family: quantiles, levels: \[...\]\}"),
        (pd.DataFrame({"mean": A, "mu": A, "std": B}), r"columns 'mean', 'mu', 'std'"),
        (SimpleNamespace(alpha=A, beta=B), r"types SimpleNamespace with attributes 'alpha', 'beta'.*\(1\).*method"),
        ((A, B), r"tuple \(numpy ndarray of shape \(4,\), .*return_std=True"),
        (frame_of(["a-lo-80", "a-hi-80", "b-lo-80"]), "quantiles of several models"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_named_with_the_nearest_ways_to_say_it(output: Any, found: str) -> None:
    with pytest.raises((ContractError, UnreadableOutputError), match=found) as error:
        read(output)
    assert "(1)" not in str(error.value) or re.search(r"\(1\) .+; \(2\) .+; \(3\) .+", str(error.value))


FRAME = pd.DataFrame({"a": np.arange(4.0), "b": np.arange(4.0) ** 2})
NAMES = sorted(point.name for point in entry_points(group=reading.GROUP))
FOREIGN = {
    "nothing": None,
    "text": "normal",
    "a number": 3.0,
    "an array": np.ones((N, 2)),
    "a frame": FRAME,
    "a mapping": {"first": np.ones(N), "second": np.ones(N)},
    "a list": [1.0, 2.0, 3.0, 4.0],
    "a tuple": (np.ones(N), np.ones(N)),
    "an object": object(),
    "a class": dict,
    "a plain model": LinearRegression().fit(FRAME, FRAME["a"]),
}


@pytest.fixture
def fresh() -> Iterator[None]:
    """Readers are found anew, and forgotten afterwards."""
    reading.readers.cache_clear()
    yield
    reading.readers.cache_clear()


def test_every_reader_of_the_folder_is_declared_and_every_declared_one_is_there() -> None:
    for module in pkgutil.iter_modules(folder.__path__):
        importlib.import_module(f"{folder.__name__}.{module.name}")
    ours = [kind for kind in Reader.__subclasses__() if kind.__module__.startswith(folder.__name__)]
    written = {f"{kind.__module__}:{kind.__name__}" for kind in ours}
    declared = {value for value in reading.installed_readers().values() if value.startswith(folder.__name__)}
    assert declared == written
    assert len(reading.readers()) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_leaves_alone_what_is_not_its_own(name: str) -> None:
    reader: Reader = entry_points(group=reading.GROUP)[name].load()()
    for kind, found in FOREIGN.items():
        assert reader.known(found) is None, kind
        assert reader.ask(found, Call("predict"), FRAME) is NotImplemented, kind
        for asked in (Asked(), Asked(Call("predict"), found)):
            assert reader.read(found, N, asked) is None, kind


def test_readers_that_go_by_names_and_structure_come_after_those_that_go_by_classes() -> None:
    order = [type(reader).__name__ for reader in reading.readers()]
    assert order[0] == "CorrelatedReader"
    assert order[-2:] == ["ScikitLearnReader", "ColumnsReader"]


ACME = """
import numpy as np
from congruence.tasks.readers.base import Call, Known, Reader, spec

class Forecast:
    def __init__(self, middle, width): self.middle, self.width = middle, width

class Model:
    def ask_oracle(self, rows): return Forecast(np.asarray(rows["a"]), np.asarray(rows["b"]) + 1.0)

class AcmeReader(Reader):
    def known(self, model):
        return Known(Call("ask_oracle"), "its oracle") if isinstance(model, Model) else None

    def read(self, output, rows, asked):
        return spec("laplace", loc=output.middle, scale=output.width) if isinstance(output, Forecast) else None
"""


def test_a_reader_is_one_file_of_any_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    (tmp_path / "acme_congruence.py").write_text(ACME)
    metadata = tmp_path / "acme_congruence-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-congruence\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{reading.GROUP}]\nacme = acme_congruence:AcmeReader\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("acme_congruence").Model()
    found = spec_distribution(reading.output_of(model, FRAME), N)
    assert isinstance(found, families.Laplace)
    np.testing.assert_array_equal(found.loc, FRAME["a"])
    np.testing.assert_array_equal(found.scale, FRAME["b"] + 1.0)
    sys.modules.pop("acme_congruence")


def test_a_reader_that_cannot_be_loaded_is_named_and_the_others_read(
    monkeypatch: pytest.MonkeyPatch, fresh: None, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reading, "_lent", {"broken": "no_such_package_at_all:Reader"})
    np.testing.assert_array_equal(reading.read_output(_poisson(), N).parameters["rate"], np.ones(N))
    assert "the reader broken (no_such_package_at_all:Reader) cannot be loaded" in caplog.text


def test_an_installation_without_readers_says_so(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setattr(reading, "installed_readers", dict)
    with pytest.raises(UnreadableOutputError, match=r"group congruence.readers is empty; install congruence again"):
        reading.read_output(_poisson(), N)


def test_what_readers_give_is_lent_to_processes_that_have_none(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    named = reading.installed_readers()
    monkeypatch.setattr(reading, "installed_readers", dict)
    monkeypatch.setattr(reading, "_lent", {})
    reading.lend(named)
    assert isinstance(reading.read_output(_poisson(), N), Spec)


def _poisson() -> Any:
    return scipy.stats.poisson(np.ones(N))
