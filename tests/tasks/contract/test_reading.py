"""Output columns become distributions, and every way in which they cannot is named."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pydantic import ValidationError

from congruence.kernels.distributions import (
    Histogram,
    Mixture,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    WeightedSamples,
)
from congruence.kernels.distributions.base import Distribution
from congruence.kernels.scores import point_scores
from congruence.tasks.contract import (
    ContractError,
    PredictionSettings,
    describe_distribution,
    distribution_columns,
    read_distribution,
)
from congruence.tasks.report.evaluation import quantiles_read
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.metrics.registry import metric_of
from congruence.tasks.scores.summary import values_of
from congruence.tasks.settings.sections import families
from congruence.tasks.store.objects import describe, restore

LOC, SCALE = np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 2.0])


def read(output: Any, rows: int = 3, *, start: int = 0, **settings: Any) -> Distribution:
    return read_distribution(output, PredictionSettings(**settings), rows, start=start)


def assert_same(found: Distribution, expected: Distribution) -> None:
    assert type(found) is type(expected)
    y = np.array([-1.0, 0.0, 2.0])
    np.testing.assert_allclose(found.cdf(y), expected.cdf(y), atol=1e-12)
    np.testing.assert_allclose(found.mean(), expected.mean(), atol=1e-12)


@pytest.mark.parametrize(
    "output",
    [
        pd.DataFrame({"id": ["a", "b", "c"], "loc": LOC, "scale": SCALE}),
        pd.DataFrame({"loc": pd.array(LOC, dtype="Float64"), "scale": pd.array(SCALE, dtype="double[pyarrow]")}),
        {"loc": LOC, "scale": torch.as_tensor(SCALE)},
        {"loc": LOC[:, None].tolist(), "scale": SCALE.tolist()},
        np.column_stack([LOC, SCALE]),
        torch.as_tensor(np.column_stack([LOC, SCALE])).requires_grad_(),
        np.column_stack([LOC, SCALE]).tolist(),
        pd.DataFrame(np.column_stack([LOC, SCALE])),
    ],
    ids=["frame", "nullable", "dict", "lists", "matrix", "tensor", "nested lists", "unnamed frame"],
)
def test_parameters_come_in_any_container(output: Any) -> None:
    assert_same(read(output, family="normal"), Normal(LOC, SCALE))


def test_columns_constants_and_transforms_spell_the_parameters() -> None:
    output = pd.DataFrame({"mu": LOC, "log_var": np.log(SCALE**2)})
    settings = {"family": "normal", "columns": {"loc": "mu", "scale": "log_var"}}
    assert_same(read(output.assign(log_var=SCALE**2), **settings, transforms={"scale": "sqrt"}), Normal(LOC, SCALE))
    constant = read(output, family="normal", columns={"loc": "mu", "scale": 2})
    assert_same(constant, Normal(LOC, np.full(3, 2.0)))
    assert_same(read({"rate": np.log(LOC)}, family="poisson", transforms={"rate": "exp"}), Poisson(LOC))


def test_samples_are_columns_or_arrays() -> None:
    values = np.arange(12.0).reshape(3, 4)
    expected = Samples(values)
    assert_same(read(values, family="samples"), expected)
    assert_same(read(pd.DataFrame({"draws": list(values)}), family="samples", columns={"values": "draws"}), expected)
    frame = pd.DataFrame(values, columns=["s1", "s2", "s3", "s4"]).assign(note="x")
    assert_same(read(frame, family="samples", columns={"values": ["s1", "s2", "s3", "s4"]}), expected)
    assert_same(read(values[:, :1], family="samples"), Samples(values[:, :1]))
    vectors = read(np.zeros((3, 4, 2)), family="samples")
    assert vectors.mean().shape == (3, 2)


def test_quantiles_go_with_their_levels() -> None:
    levels, values = [0.1, 0.5, 0.9], np.array([[0.0, 1, 2], [1, 2, 3], [2, 3, 4]])
    frame = pd.DataFrame(values, columns=["q10", "q50", "q90"])
    found = read(frame, family="quantiles", levels=levels, columns={"values": ["q10", "q50", "q90"]})
    assert_same(found, Quantiles(np.array(levels), values))
    with pytest.raises(ContractError, match="3 quantiles, but 2 levels"):
        read(frame, family="quantiles", levels=[0.1, 0.9])


def test_a_mixture_has_a_matrix_per_parameter() -> None:
    weights, loc, scale = np.full((3, 2), 0.5), np.column_stack([LOC, -LOC]), np.ones((3, 2))
    expected = Mixture(weights, [Normal(LOC, np.ones(3)), Normal(-LOC, np.ones(3))])
    numbered = {f"{n}_{k}": m[:, k] for n, m in (("weights", weights), ("loc", loc), ("scale", scale)) for k in (0, 1)}
    assert_same(read(pd.DataFrame(numbered), family="mixture", component="normal"), expected)
    arrays = {"pi": list(np.zeros((3, 2))), "mu": list(loc)}
    columns = {"weights": "pi", "loc": "mu", "scale": 1.0}
    settings = {"family": "mixture", "component": "normal", "columns": columns, "transforms": {"weights": "softmax"}}
    assert_same(read(pd.DataFrame(arrays), **settings), expected)


MASSES = np.column_stack([LOC / 4, 1 - LOC / 4])
DESCRIBED = {
    "samples": Samples(np.outer(LOC, [0.5, 1.0, 1.5])),
    "quantiles": Quantiles(np.array([0.2, 0.5, 0.8]), np.outer(LOC, [0.5, 1.0, 1.5])),
    "histogram": Histogram(np.array([0.0, 1.0, 3.0]), MASSES, tail_share=0.5),
    "weighted_samples": WeightedSamples(np.array([0.5, 4.0]), MASSES),
    "mixture": Mixture(np.array([0.3, 0.7]), [Normal(LOC, SCALE), Normal(-LOC, SCALE)]),
}
"""By family, those that more than the names of parameters describe."""


@pytest.mark.parametrize("family", DESCRIBED)
@pytest.mark.parametrize("rows", [1, 3])
def test_columns_written_are_columns_read(family: str, rows: int) -> None:
    law = DESCRIBED[family][:rows]
    settings = describe_distribution(law)
    assert settings.family == family
    again = read_distribution(distribution_columns(law), settings, rows)
    np.testing.assert_array_equal(again.mean(), law.mean())


ONE_IN_TWO, SMALL, FEW = np.array([0.25, 0.5]), np.array([0.1, 0.2]), np.array([3.0, 4.0])
SPECIAL = {"upper": np.array([np.inf, 9.0]), "lower": np.array([0.5, -np.inf]), "trials": FEW, "n": FEW, "df": FEW}


@pytest.mark.parametrize("family", sorted(families().keys() - DESCRIBED))
def test_every_family_is_read_by_its_parameters_names(family: str) -> None:
    parameters = PredictionSettings(family=family).parameters
    values = {name: SPECIAL.get(name, SMALL if "prob" in name or "inflation" in name else FEW) for name in parameters}
    if family == "binomial" or family.endswith("_binomial"):
        values = {name: SPECIAL.get(name, ONE_IN_TWO) for name in parameters}
    if family.startswith("multivariate"):
        values = {name: list(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])) for name in parameters}
    found = read(pd.DataFrame(values), 2, family=family)
    again = read_distribution(distribution_columns(found), describe_distribution(found), 2)
    assert found.family == again.family == family
    np.testing.assert_array_equal(found.mean(), again.mean())


@pytest.mark.parametrize(
    ("output", "settings", "message"),
    [
        (
            {"loc": LOC},
            {},
            r"'scale' for parameter 'scale' is missing; the output has 'loc'; .*predictions.columns.scale",
        ),
        ({"loc": LOC, "scale": [1, -2, 1]}, {}, r"Normal.scale: row 1 is -2, .*loc from column 'loc'"),
        ({"loc": LOC, "scale": [1, np.nan, 1]}, {}, r"'scale': row 1 is nan \(1 of 3 rows are\)"),
        ({"loc": [1, np.inf, 1], "scale": SCALE}, {}, r"Normal.loc: .*row 1 \(inf\).*loc from column 'loc'"),
        ({"loc": LOC, "scale": ["1", "x", "2"]}, {}, "'scale' holds .*, expected numbers"),
        ({"loc": LOC, "scale": [1, None, 2]}, {}, "'scale': row 1 is nan|'scale': row 1 is None"),
        ({"loc": LOC[:2], "scale": SCALE}, {}, r"'loc' has shape \(2,\) for 3 input rows"),
        ({"loc": LOC, "scale": [[1], [2, 3], [4]]}, {}, r"'scale': row 1 has shape \(2,\), but row 0 has \(1,\)"),
        (pd.DataFrame([[1, 2, 3]] * 3, columns=["loc", "loc", "scale"]), {}, "'loc' occurs more than once"),
        (np.float64(3), {}, r"'0' has shape \(\) for 3 input rows"),
        ("text", {}, "has shape"),
        (object(), {}, "has shape"),
        ({"loc": LOC, "scale": -SCALE}, {"transforms": {"scale": "sqrt"}}, r"sqrt of -0.5 in row 0 is not finite"),
    ],
)
def test_a_broken_output_is_named(output: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError, match=message):
        read(output, family="normal", **settings)


def test_rows_are_numbered_as_in_the_split() -> None:
    with pytest.raises(ContractError, match="row 1001 is nan"):
        read({"loc": LOC, "scale": [1, np.nan, 1]}, start=1000, family="normal")
    with pytest.raises(ContractError, match="rows are counted from row 1000 of the split"):
        read({"loc": LOC, "scale": [1, 0, 1]}, start=1000, family="normal")


@pytest.mark.parametrize("spelled", ["log_normal", "lognormal", "LogNormal", "log-normal"])
def test_a_family_is_found_however_it_is_spelled(spelled: str) -> None:
    settings = PredictionSettings.model_validate({"family": spelled})
    assert settings == PredictionSettings(family="log_normal")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"family": "gaussian"}, "family: 'gaussian' is not a family here; choose one of .*normal"),
        ({"family": "normal", "columns": {"sigma": "s"}}, "columns.sigma: normal has no such parameter"),
        ({"family": "normal", "transforms": {"scale": "log"}}, "transforms.scale"),
        ({"family": "quantiles"}, "levels"),
        ({"family": "quantiles", "levels": [0.5, 0.1]}, "must increase"),
        ({"family": "mixture"}, "component"),
        ({"family": "normal", "component": "normal"}, "only a mixture has one"),
        ({"family": "normal", "column": {}}, "Extra inputs"),
    ],
)
def test_settings_are_checked_before_any_work(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        PredictionSettings.model_validate(settings)


LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]


def boosted(rows=400, seed=3):
    """Targets, and quantiles of a normal law with the noise of one booster a level: most rows cross."""
    rng = np.random.default_rng(seed)
    quantiles = np.quantile(rng.standard_normal(100_000), LEVELS)
    return rng.standard_normal(rows), quantiles + rng.normal(0.0, 0.9, (rows, len(LEVELS)))


def sorted_of(values, **settings):
    frame = pd.DataFrame(values, columns=[f"q{level}" for level in LEVELS])
    return read_distribution(frame, PredictionSettings(family="quantiles", levels=LEVELS, **settings), len(values))


def test_crossing_quantiles_are_sorted_and_their_share_is_a_number_of_the_version():
    y, values = boosted()
    crossing = np.any(np.diff(values, axis=1) < 0, axis=1)
    assert 0.5 < crossing.mean() < 0.95
    law = sorted_of(values)
    np.testing.assert_array_equal(law.values, np.sort(values, axis=1))
    points = point_scores(law, y)
    assert np.isfinite(points["nll"]).all()
    shares = values_of((), Rows(points, y, law))
    assert shares["quantile_crossing_share"].value == crossing.mean()
    beyond = np.mean((y < law.values[:, 0]) | (y > law.values[:, -1]))
    assert shares["beyond_quantiles_share"].value == pytest.approx(beyond)
    assert all(metric_of(name).reading for name in shares)
    said = quantiles_read(shares, law)
    assert said == (
        f"The predicted quantiles crossed in {100 * crossing.mean():.0f} % of the rows and were sorted there. "
        f"{100 * beyond:.0f} % of the targets lie beyond the outer quantiles, where 10 % are predicted and the "
        "predictions have normal tails."
    )
    assert quantiles_read({}, law) == ""


def test_a_file_may_ask_to_refuse_them():
    _, values = boosted()
    with pytest.raises(ContractError, match=r"row \d+ falls from .* leave out predictions.crossing"):
        sorted_of(values, crossing="refuse")
    assert not sorted_of(np.sort(values, axis=1), crossing="refuse").crossed.any()


@pytest.mark.parametrize("tails", ["exponential", "none", "normal"])
def test_tails_are_those_of_the_file_and_outlive_a_store(tails):
    _, values = boosted(20)
    law = sorted_of(values, tails=tails)
    assert law.tails == tails
    assert describe_distribution(law).tails == tails
    again = read_distribution(distribution_columns(law), describe_distribution(law), len(law))
    assert isinstance(again, Quantiles)
    assert again.tails == tails
    arrays: dict[str, np.ndarray] = {}
    restored = restore(describe(law, arrays), arrays)
    assert restored.tails == tails
    np.testing.assert_array_equal(restored.crossed, law.crossed)
    np.testing.assert_array_equal(restored.log_prob(0.3), law.log_prob(0.3))


def test_settings_of_quantiles_belong_to_quantiles_and_to_their_digest():
    for name, value in (("crossing", "sort"), ("tails", "none")):
        with pytest.raises(ValueError, match=f"{name}: is given with family 'quantiles'"):
            PredictionSettings(family="normal", **{name: value})
    given = {"family": "quantiles", "levels": LEVELS}
    assert PredictionSettings(**given).digested() != PredictionSettings(**given, tails="none").digested()
    assert "tails" not in PredictionSettings(family="normal").digested()


def test_levels_in_percent_are_refused_with_their_shares() -> None:
    with pytest.raises(ValueError, match=r"inside \(0, 1\); of percentages give the shares \[0.05, 0.5, 0.95\]"):
        PredictionSettings(family="quantiles", levels=[5, 50, 95])
    with pytest.raises(ValueError, match=r"levels: \[0.9, 0.1\] must increase strictly and lie inside \(0, 1\) "):
        PredictionSettings(family="quantiles", levels=[0.9, 0.1])
