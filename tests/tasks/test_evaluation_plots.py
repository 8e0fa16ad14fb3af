"""Every plot is a PNG of its own figure, whatever an evaluation lacks, and drawing in threads is safe."""

from __future__ import annotations

import gc
import io
from concurrent.futures import ThreadPoolExecutor

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from congruence.tasks.plots.evaluation import (
    cce_histogram,
    evaluation_figures,
    evaluation_pictures,
    extreme_rows,
    rejection_curves,
    versions_figure,
)
from congruence.tasks.plots.style import png
from congruence.tasks.scores.evaluation import MetricValue, metric_list_digest

ALL = {
    "cce_histogram",
    "extremes",
    "reliability",
    "pit_interpretation",
    "rejection",
    "cce_by_slice",
}


def is_drawn(data: bytes) -> bool:
    picture = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
    return picture.shape[0] > 200 and picture.std() > 5


def test_every_plot_is_drawn(make_evaluation):
    drawn = {name: png(figure) for name, figure in evaluation_figures(make_evaluation())}
    assert set(drawn) == ALL
    assert all(map(is_drawn, drawn.values()))


def test_pictures_are_those_of_the_figures_and_these_are_gone(make_evaluation):
    """What a figure leaves is collected young: nothing looks at all objects of the process, and none of it stays."""
    evaluation = make_evaluation()
    expected = {name: png(figure) for name, figure in evaluation_figures(evaluation)}
    gc.collect()
    generations: list[int] = []
    figures = sum(isinstance(known, Figure) for known in gc.get_objects())

    def note(phase: str, info: dict[str, int]) -> None:
        generations.append(info["generation"])

    gc.callbacks.append(note)
    try:
        found = evaluation_pictures(evaluation)
    finally:
        gc.callbacks.remove(note)
    assert found == expected
    assert gc.isenabled()
    assert set(generations) <= {0, 1}
    assert sum(isinstance(known, Figure) for known in gc.get_objects()) == figures


def test_a_bare_evaluation_has_the_histogram(make_evaluation):
    full = make_evaluation()
    bare = make_evaluation(
        scores=full.scores[["key", "valid", "reason", "cce", "cce_noise_floor"]],
        slices=pd.DataFrame(), embedding_map=None, thumbnails=None, predictive=None, targets=None,
    )  # fmt: skip
    assert [name for name, _ in evaluation_figures(bare)] == ["cce_histogram"]


def test_a_loss_that_is_infinite_has_no_rejection_curve(make_evaluation):
    """Targets outside the support of a law given by quantiles: the evaluation is drawn, and logged, all the same."""
    scores = make_evaluation().scores.copy()
    scores.loc[3, "nll"] = np.inf
    evaluation = make_evaluation(scores=scores)
    assert set(rejection_curves(evaluation)) == {"absolute_error", "crps"}
    assert {name for name, _ in evaluation_figures(evaluation)} == ALL


def test_extremes_are_the_extremes(make_evaluation):
    evaluation = make_evaluation()
    worst, best = extreme_rows(evaluation, 5)
    cce = evaluation.scores["cce"].to_numpy()
    valid = evaluation.scores["valid"].to_numpy()
    assert cce[worst[0]] == np.nanmax(cce)
    assert cce[best[0]] == np.nanmin(cce)
    assert list(cce[worst]) == sorted(cce[worst], reverse=True)
    assert valid[worst + best].all()


def test_threads_draw_the_same_and_leave_the_global_style_alone(make_evaluation):
    evaluation, before = make_evaluation(), dict(mpl.rcParams)
    alone = png(cce_histogram(evaluation))
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: png(cce_histogram(evaluation)), range(4)))
    assert set(drawn) == {alone}
    assert dict(mpl.rcParams) == before


def test_versions_side_by_side(make_evaluation):
    metrics = {f"angle/{v}": make_evaluation(scale=scale).metrics for v, scale in enumerate((1.0, 0.5, 3.0))}
    assert is_drawn(png(versions_figure(metrics)))


def test_the_verdict_is_by_the_tests_that_were_made(make_evaluation):
    assert str(make_evaluation().verdict).startswith("no fault found in ")
    assert str(make_evaluation(bias=2.0).verdict) == "wrong"
    tested = make_evaluation()
    assert make_evaluation(metrics={**tested.metrics, "cce_p_value": MetricValue(0.01)}).verdict.is_wrong
    assert str(make_evaluation(metrics={"mae": MetricValue(1.0)}).verdict) == "not judged: no test was made"


def test_a_metric_list_has_no_order():
    assert metric_list_digest(["cce_mean", "ece"]) == metric_list_digest(("ece", "cce_mean", "ece"))
    assert metric_list_digest(["cce_mean"]) != metric_list_digest(["cce_mean", "ece"])
