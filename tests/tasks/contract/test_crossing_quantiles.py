"""Quantiles that cross, as boosted trees with one model a level predict them: sorted and counted, or refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from congruence.kernels import Quantiles
from congruence.kernels.scores import point_scores
from congruence.tasks.contract import ContractError, PredictionSettings, read_distribution
from congruence.tasks.contract.reading import describe_distribution, distribution_columns
from congruence.tasks.models.predictions import describe, restore
from congruence.tasks.report.evaluation import quantiles_read
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.metrics.registry import metric_of
from congruence.tasks.scores.summary import values_of

LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]


def boosted(rows=400, seed=3):
    """Targets, and quantiles of a normal law with the noise of one booster a level: most rows cross."""
    rng = np.random.default_rng(seed)
    quantiles = np.quantile(rng.standard_normal(100_000), LEVELS)
    return rng.standard_normal(rows), quantiles + rng.normal(0.0, 0.9, (rows, len(LEVELS)))


def read(values, **settings):
    frame = pd.DataFrame(values, columns=[f"q{level}" for level in LEVELS])
    return read_distribution(frame, PredictionSettings(family="quantiles", levels=LEVELS, **settings), len(values))


def test_crossing_quantiles_are_sorted_and_their_share_is_a_number_of_the_version():
    y, values = boosted()
    crossing = np.any(np.diff(values, axis=1) < 0, axis=1)
    assert 0.5 < crossing.mean() < 0.95
    law = read(values)
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
        read(values, crossing="refuse")
    assert not read(np.sort(values, axis=1), crossing="refuse").crossed.any()


@pytest.mark.parametrize("tails", ["exponential", "none", "normal"])
def test_tails_are_those_of_the_file_and_outlive_a_store(tails):
    _, values = boosted(20)
    law = read(values, tails=tails)
    assert law.tails == tails
    assert describe_distribution(law).tails == tails
    again = read_distribution(distribution_columns(law), describe_distribution(law), len(law))
    assert isinstance(again, Quantiles)
    assert again.tails == tails
    restored = restore(*describe(law))
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
