"""Stored predictions come back as they were, for every family, and a damaged file is predicted again."""

from pathlib import Path

import numpy as np
import pytest

from congruence.kernels import (
    Deterministic,
    Distribution,
    DoublePoisson,
    Laplace,
    Mixture,
    NegativeBinomial,
    Normal,
    Poisson,
    Quantiles,
    Samples,
    TruncatedNormal,
    ZeroInflatedPoisson,
)
from congruence.tasks.models.predictions import concatenate, read_distribution, write_distribution

ONES = np.ones(4)
LOC = np.arange(4.0)
FAMILIES: list[Distribution] = [
    Normal(LOC, ONES),
    Laplace(LOC, 2 * ONES),
    Poisson(LOC + 1),
    NegativeBinomial(LOC + 1, 0.3 * ONES),
    DoublePoisson(LOC + 1, 2 * ONES),
    ZeroInflatedPoisson(LOC + 1, 0.2 * ONES),
    TruncatedNormal(LOC, ONES, LOC - 1, np.full(4, np.inf)),
    Samples(np.arange(12.0).reshape(4, 3)),
    Quantiles(np.array([0.1, 0.5, 0.9]), LOC[:, None] + np.array([-1.0, 0.0, 1.0])),
    Deterministic(LOC),
    Mixture(np.tile([0.3, 0.7], (4, 1)), [Normal(LOC, ONES), Laplace(LOC + 3, ONES)]),
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
def test_every_family_comes_back(family: Distribution, tmp_path: Path) -> None:
    write_distribution(tmp_path / "part.npz", family)
    again = read_distribution(tmp_path / "part.npz")
    assert type(again) is type(family)
    np.testing.assert_array_equal(again.sample(5, seed=1), family.sample(5, seed=1))
    np.testing.assert_allclose(concatenate([again, family]).mean(), np.tile(family.mean(), 2), rtol=1e-12)
    assert [path.name for path in tmp_path.iterdir()] == ["part.npz"]


def test_a_damaged_file_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "part.npz"
    write_distribution(path, FAMILIES[0])
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(Exception, match=r".") as caught:
        read_distribution(path)
    assert type(caught.value).__name__ in ("BadZipFile", "ValueError", "KeyError", "EOFError")
