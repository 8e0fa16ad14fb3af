"""The excess risk of coverage: 0 if a version is right, a bound below what is wrong; none where it says nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from congruence.kernels.distributions import Normal, Poisson
from congruence.tasks.scores import coverage_risk as module
from congruence.tasks.scores.coverage_risk import coverage_risk

N = 2_000


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"age": rng.uniform(-1, 1, N), "city": rng.choice(list("abc"), N)})


def test_without_the_packages_there_is_no_such_number(table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_available", lambda: False)
    assert coverage_risk(table, np.zeros(N), Normal(np.zeros(N), np.ones(N)), 0) == {}


def test_it_is_0_if_right_and_below_the_distance_of_the_coverage_if_wrong(table: pd.DataFrame) -> None:
    scale = np.exp(0.8 * table["age"].to_numpy())
    y = Normal(np.zeros(N), scale).sample(1, seed=1)[:, 0]
    blind = Normal(np.zeros(N), np.ones(N))
    right = coverage_risk(table, y, Normal(np.zeros(N), scale), 0)["ert_90"].value
    wrong = coverage_risk(table, y, blind, 0)["ert_90"].value
    ends = blind.quantile(np.array([[0.05, 0.95]]))
    inside = Normal(np.zeros(N), scale).cdf(ends) @ np.array([-1.0, 1.0])
    distance = float(np.mean(np.abs(inside - 0.9)))
    assert abs(right) < 0.015
    assert 0.5 * distance < wrong < distance + 0.015
    gaps = table.assign(age=table["age"].where(table["age"] > -0.9))
    assert coverage_risk(gaps, y, blind, 0)["ert_90"].value == pytest.approx(wrong, abs=0.02)
    assert coverage_risk(table, np.zeros(N), Poisson(np.ones(N)), 0) == {}
    assert coverage_risk(table.head(100), y[:100], blind[slice(0, 100)], 0) == {}
