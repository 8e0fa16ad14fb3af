"""What a further version does not do again."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes

from congruence.kernels.conditional_calibration import recalibration
from congruence.kernels.conditional_calibration.local_reading import local_reading
from congruence.kernels.distributions import Normal
from congruence.kernels.engine.spectrum import SpectralSmoother
from congruence.kernels.kernel_functions import RBF
from congruence.kernels.protocol import EXACT
from congruence.kernels.split import prepare
from congruence.tasks.plots.calibration import pit_histogram
from congruence.tasks.plots.style import figure_of, png
from congruence.tasks.scores import correction

RNG = np.random.default_rng(11)
X = RNG.standard_normal((240, 2))
Y = X[:, 0] + RNG.standard_normal(240)
RIGHT, NARROW = Normal(X[:, 0], np.ones(240)), Normal(X[:, 0], np.full(240, 0.4))
KEYS = np.array([f"row {number}" for number in range(240)], dtype=object)


def counted(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, calls: Counter[str]) -> None:
    original = getattr(place, name)

    def count(*arguments: Any, **options: Any) -> Any:
        calls[name] += 1
        return original(*arguments, **options)

    monkeypatch.setattr(place, name, count)


def test_a_preview_makes_the_inputs_systems_once_and_fits_each_shift_and_spread_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: Counter[str] = Counter()
    counted(monkeypatch, correction, "rehearsal_split", calls)
    counted(monkeypatch, recalibration, "fit_moves", calls)
    counted(monkeypatch, recalibration, "fit_shape", calls)
    half = np.arange(240) % 2 == 0
    first = correction.preview(EXACT, X, Y, NARROW, KEYS, half, 5)
    again = correction.preview(EXACT, X, Y, NARROW, KEYS, half, 5)
    assert first == again
    assert calls["rehearsal_split"] == 1
    # 5 folds of 6 shifts, 6 spreads and 6 shapes: shapes, and one of the spreads, move as has been fitted already.
    assert calls["fit_shape"] == 2 * 90
    assert calls["fit_moves"] <= 2 * 60
    correction.preview(EXACT, X[::-1], Y, NARROW, KEYS, half, 5)
    assert calls["rehearsal_split"] == 2


def test_a_second_reading_sums_no_squared_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    smoother = prepare(X, input_kernel=RBF(0.5)).smoother
    direct = np.sum((smoother.synthesis * smoother.filters @ smoother.analysis.T).astype(float) ** 2, axis=1)
    read = local_reading(smoother, RNG.random(240))
    np.testing.assert_allclose(read.null_std[:, 0], np.sqrt(direct), rtol=1e-4)
    monkeypatch.delattr(SpectralSmoother, "squared_weights")
    np.testing.assert_array_equal(local_reading(smoother, RNG.random(240)).null_std, read.null_std)


def test_a_picture_measures_its_texts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    counted(monkeypatch, Axes, "get_tightbbox", calls)
    png(figure_of(pit_histogram(RNG.random(100))))
    assert calls["get_tightbbox"] == 1
