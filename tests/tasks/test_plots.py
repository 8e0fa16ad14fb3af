"""Pictures of arrays and of evaluations: the numbers of the definition, on the axes that are given, laid out once."""

import inspect
import io
import re
from concurrent.futures import ThreadPoolExecutor

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from PIL import Image

from congruence.kernels import (
    RBF,
    Normal,
    Poisson,
    count_frequencies,
    interpret_pit,
    local_distribution,
    local_reading,
    pit_values,
    prepare,
    rejection_curve,
)
from congruence.kernels.errors import InvalidInputError
from congruence.tasks import plots
from congruence.tasks.plots.comparison import versions_figure
from congruence.tasks.plots.evaluation import cce_histogram, evaluation_figures, extreme_rows
from congruence.tasks.plots.style import figure_of, new_figure, png
from congruence.tasks.scores.evaluation import metric_list_digest
from congruence.tasks.scores.summary import rejection_curves

N = 400
RNG = np.random.default_rng(5)
X = RNG.uniform(-1.0, 1.0, (N, 2))
Y = X[:, 0] + np.exp(X[:, 1]) * RNG.normal(size=N)
LAW = Normal(X[:, 0], np.ones(N))
PIT = pit_values(Y, LAW)
PREPARED = prepare(X, input_kernel=RBF(1.0))
RESULT = PREPARED.conditional_congruence_error(Y, LAW)
EXPECTED = RESULT.band
READING = local_reading(PREPARED.smoother, PIT)
RATE = np.exp(X[:, 0])
COUNTS = RNG.poisson(RATE).astype(float)
CURVE = rejection_curve(RESULT.values, LAW.crps(Y))
IMAGES = RNG.uniform(size=(N, 6, 6))
SLICES = {"low": X[:, 1] < 0.0, "high": np.flatnonzero(X[:, 1] >= 0.0)}
MEASURED = {"CCE": {"model 1": plots.Measured(0.1, (0.08, 0.12), (0.02, 0.05)), "model 2": plots.Measured(0.3)}}

ON_AXES = {
    "congruence_histogram": lambda **on: plots.congruence_histogram(RESULT, expected=EXPECTED, **on),
    "inputs_histogram": lambda **on: plots.inputs_histogram(RESULT, 0.1, **on),
    "congruence_along": lambda **on: plots.congruence_along(X[:, 1], RESULT, reading=READING, **on),
    "predictions_along": lambda **on: plots.predictions_along(X[:, 0], Y, LAW, **on),
    "pit_histogram": lambda **on: plots.pit_histogram(PIT, **on),
    "reliability_diagram": lambda **on: plots.reliability_diagram(PIT, **on),
    "local_reliability": lambda **on: plots.local_reliability(
        local_distribution(PREPARED.smoother, PIT), 3, image=IMAGES[3], **on
    ),
    "embedding_map": lambda **on: plots.embedding_map(X, RESULT, expected=EXPECTED, **on),
    "fault_map": lambda **on: plots.fault_map(X, READING, labels=("a", "b"), **on),
    "rootogram": lambda **on: plots.rootogram(count_frequencies(COUNTS, Poisson(RATE)), **on),
    "rejection_panel": lambda **on: plots.rejection_panel(CURVE, "CRPS", **on),
}
ON_FIGURES = {
    "pit_interpretation": lambda **on: plots.pit_interpretation(interpret_pit(PIT, resamples=5), **on),
    "order_maps": lambda **on: plots.order_maps(X, READING, **on),
    "rejection_curves": lambda **on: plots.rejection_curves({"CRPS": CURVE, "MAE": CURVE}, **on),
    "cce_by_slice": lambda **on: plots.cce_by_slice(RESULT, SLICES, pit=PIT, label="model 1", **on),
    "extremes": lambda **on: plots.extremes(RESULT, IMAGES, y=Y, predictive=LAW, count=3, **on),
    "versions": lambda **on: plots.versions(MEASURED, logarithmic=["CCE"], **on),
}


def test_every_picture_is_tried_here() -> None:
    assert {*ON_AXES, *ON_FIGURES} == {name for name in plots.__all__ if inspect.isfunction(getattr(plots, name))}


@pytest.mark.parametrize("name", ON_AXES)
def test_axes_in_and_out(name: str) -> None:
    before = dict(mpl.rcParams)
    figure = new_figure(8.0, 4.0)
    left, right = figure.subplots(1, 2)
    assert ON_AXES[name](axes=right) is right
    assert right.has_data()
    assert not left.has_data()
    own = ON_AXES[name]()
    assert isinstance(own, Axes)
    assert figure_of(own) is not figure
    assert len(png(figure)) > 5_000
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("name", ON_FIGURES)
def test_figure_in_and_out(name: str) -> None:
    figure = new_figure(8.0, 4.0)
    assert ON_FIGURES[name](figure=figure) is figure
    assert all(axes.has_data() or axes.images for axes in figure.axes)
    assert isinstance(ON_FIGURES[name](), Figure)
    assert len(png(figure)) > 5_000


def test_a_table_gives_the_picture_of_its_result() -> None:
    errors, reading = RESULT.to_frame(), READING.to_frame()
    columns = {name: list(reading[name]) for name in reading}
    pairs = [
        (plots.congruence_histogram(RESULT), plots.congruence_histogram(errors)),
        (plots.fault_map(X, READING), plots.fault_map(X, columns)),
        (
            plots.congruence_along(X[:, 0], RESULT, reading=READING),
            plots.congruence_along(X[:, 0], dict(errors), reading=reading),
        ),
    ]
    assert all(png(figure_of(first)) == png(figure_of(second)) for first, second in pairs)


def test_cce_along_an_input_is_the_root_mean_square_of_neighbours() -> None:
    axes = plots.congruence_along(X[:, 1], RESULT, neighbours=40)
    floor, cce = (line.get_xydata() for line in axes.lines)
    order = np.argsort(X[:, 1])
    for first in (0, 100, N - 40):
        rows = order[first : first + 40]
        assert np.allclose(cce[first], [X[rows, 1].mean(), np.sqrt(np.mean(RESULT.values[rows] ** 2))])
        assert np.isclose(floor[first, 1], np.sqrt(np.mean(RESULT.noise_floor_values[rows] ** 2)))
    every = plots.congruence_along(X[:, 1], RESULT, neighbours=1).lines[1].get_xydata()
    assert np.array_equal(every, np.column_stack([X[order, 1], RESULT.values[order]]))


def test_predictions_along_are_the_laws_own_quantiles_at_their_inputs() -> None:
    axes = plots.predictions_along(X[:, 0], Y, Normal(X[:, 0], 0.5 + X[:, 0] ** 2), level=0.8)
    order = np.argsort(X[:, 0])
    assert np.allclose(axes.lines[0].get_xydata(), np.column_stack([X[order, 0], X[order, 0]]))
    corners = axes.collections[1].get_paths()[0].vertices
    highest = X[:, 0].max()
    reach = 1.2815515655446004 * (0.5 + highest**2)
    assert np.isclose(corners[:, 1].max(), (X[:, 0] + 1.2815515655446004 * (0.5 + X[:, 0] ** 2)).max())
    assert np.any(np.all(np.isclose(corners, [highest, highest - reach]), axis=1))


def test_slices_of_few_rows_that_are_shown_alone_have_no_intervals() -> None:
    """The highest are the smallest: those with a reading are not among them."""
    worst = np.argsort(-RESULT.values)
    slices = {"worst": worst[:2], "next": worst[2:4], "all": np.arange(N)}
    assert len(plots.cce_by_slice(RESULT, slices, pit=PIT, most=2).axes) == 1
    assert len(plots.cce_by_slice(RESULT, slices, pit=PIT, most=3).axes) == 3


def test_slices_show_their_excess_and_what_their_targets_do() -> None:
    figure = plots.cce_by_slice(RESULT, SLICES, pit=PIT)
    excess, _, factor = figure.axes
    both = RESULT.values, RESULT.noise_floor_values
    means = {name: [values[rows].mean() for values in both] for name, rows in SLICES.items()}
    by_name = {name: np.sqrt(max(0.0, cce**2 - floor**2)) for name, (cce, floor) in means.items()}
    names = [label.get_text() for label in excess.get_yticklabels()]
    assert [name.split()[0] for name in names] == sorted(by_name, key=by_name.__getitem__)
    assert [bar.get_width() for bar in excess.patches] == pytest.approx(sorted(by_name.values()))
    (at,) = (np.asarray(drawn.get_offsets()) for drawn in factor.collections if isinstance(drawn, PathCollection))
    dots = {names[int(place)].split()[0]: value for value, place in at}
    assert dots["low"] < 1.0 < dots["high"]  # exp(x) times as wide as predicted


def test_extremes_are_the_highest_and_the_lowest() -> None:
    figure = plots.extremes(RESULT, IMAGES, y=Y, predictive=LAW, count=3)
    order = np.argsort(RESULT.values)
    expected = [*order[::-1][:3], *order[:3]]
    for axes, point in zip(figure.axes, expected, strict=True):
        assert np.array_equal(axes.images[0].get_array(), IMAGES[point])
        said = axes.get_xlabel()
        assert said == f"CCE {RESULT.values[point]:.3f}\ny = {Y[point]:.4g}\nf: {X[point, 0]:.4g} ± 1"


def test_a_rootogram_has_the_roots_of_frequencies_that_vary_as_the_definition_says() -> None:
    """The frequencies themselves are the matter of the report's page."""
    found, zero = count_frequencies(COUNTS, Poisson(RATE)), np.exp(-RATE)
    assert np.isclose(found.std[0], np.sqrt(np.sum(zero * (1.0 - zero))))
    bars = plots.rootogram(found).patches
    assert [bar.get_height() ** 2 for bar in bars] == pytest.approx(found.observed)


def test_a_fault_on_a_map_is_counted_by_its_side() -> None:
    said = [text.get_text() for text in plots.fault_map(X, READING).get_legend().get_texts()]
    fault = READING.to_frame()["calibration_fault"]
    narrow = (fault == "spread") & (READING.scores[:, 1] > 0)
    assert f"predicted spread too small: {narrow.sum():,}" in said
    assert f"no fault: {(fault == '').sum():,}" in said


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.congruence_histogram(RESULT.values), "cce: got ndarray, expected a CongruenceResult or its"),
        (lambda: plots.congruence_histogram({"cce": [1.0]}), "cce_noise_floor: no such column among cce; give"),
        (lambda: plots.congruence_along(X, RESULT), r"feature: expected shape \(n,\), got \(400, 2\)"),
        (lambda: plots.congruence_along(X[:9, 0], RESULT), "feature: 9 rows for 400 points"),
        (lambda: plots.congruence_along(X[:, 0], RESULT, neighbours=0), "neighbours: is 0, expected a number from 1"),
        (lambda: plots.predictions_along(X[:, 0], LAW, Y), r"the order is \(y, predictive\)"),
        (lambda: plots.predictions_along(X[:, 0], Y, LAW, level=90), r"level: is 90, expected .* \(0, 1\)"),
        (lambda: plots.pit_histogram([0.2, 1.5]), "row 1 is 1.5; PIT values lie in"),
        (lambda: plots.reliability_diagram([0.2, np.nan]), "row 1"),
        (lambda: plots.embedding_map(X[:, :1], RESULT), "place: 1 columns, expected 2"),
        (lambda: plots.embedding_map(X[:7], RESULT), "place: 7 rows for 400 points"),
        (lambda: plots.fault_map(X, RESULT), "calibration_fault: got CongruenceResult, expected a LocalReading"),
        (lambda: plots.local_reliability(local_distribution(PREPARED.smoother, PIT), N), "point: is 400, expected one"),
        (lambda: plots.cce_by_slice(RESULT, {}), "slices: there are none"),
        (lambda: plots.cce_by_slice(RESULT, {"a": X[:, 0] > 2}), r"slices\['a'\]: expected one or more row numbers"),
        (lambda: plots.cce_by_slice(RESULT, {"a": [N]}), r"slices\['a'\]: rows 400 to 400, expected 0 to 399"),
        (lambda: plots.cce_by_slice(RESULT, {"a": X[:7, 0] > 0}), r"slices\['a'\]: 7 rows for 400 points"),
        (lambda: plots.extremes(RESULT, IMAGES[:3]), "images: 3 for 400 points"),
        (lambda: plots.versions({}), "panels: there is no number of any version"),
        (lambda: plots.rejection_curves({}), "curves: there are none"),
        (lambda: count_frequencies(Y, LAW), "predictive: Normal is not of counts; see pit_histogram"),
        (lambda: count_frequencies(COUNTS[:5], Poisson(RATE)), "predictive: 400 rows for 5 targets"),
    ],
)
def test_bad_input_is_one_sentence(call, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as said:
        call()
    assert not re.search(r"\n", str(said.value))


def test_pictures_show_themselves_and_are_saved(tmp_path):
    axes, figure = plots.pit_histogram(PIT), plots.order_maps(X, READING)
    for picture in (axes, figure):
        assert picture._repr_png_().startswith(b"\x89PNG")
        assert picture.save(tmp_path / "picture.svg").read_text().lstrip().startswith("<?xml")
    assert axes.figure.savefig is not None


ALL = {"cce_histogram", "extremes", "reliability", "pit_interpretation", "rejection", "cce_by_slice"}


def is_drawn(data: bytes) -> bool:
    picture = np.asarray(Image.open(io.BytesIO(data)).convert("L"))
    return picture.shape[0] > 200 and picture.std() > 5


def test_every_plot_is_drawn(make_evaluation):
    drawn = {name: png(figure) for name, figure in evaluation_figures(make_evaluation())}
    assert set(drawn) == ALL
    assert all(map(is_drawn, drawn.values()))


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
    curves = rejection_curves(evaluation.valid_scores["cce"], evaluation.valid_scores)
    assert set(curves) == {"absolute_error", "crps"}
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


def test_a_metric_list_has_no_order():
    assert metric_list_digest(["cce_mean", "ece"]) == metric_list_digest(("ece", "cce_mean", "ece"))
    assert metric_list_digest(["cce_mean"]) != metric_list_digest(["cce_mean", "ece"])
