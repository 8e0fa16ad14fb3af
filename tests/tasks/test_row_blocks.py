"""By row blocks as in memory: the same numbers however rows are cut, whoever works on them, and honest refusals."""

import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from cut_rows import CutRows

from congruence.kernels import (
    RBF,
    Distribution,
    Mixture,
    MultivariateNormal,
    NegativeBinomial,
    Normal,
    Poisson,
    Samples,
    prepare,
)
from congruence.kernels.arrays import mean_one
from congruence.kernels.engine import driver as block_driver
from congruence.kernels.engine.blocks import Columns
from congruence.kernels.engine.driver import HeldSplit
from congruence.kernels.engine.landmarks import Accuracy
from congruence.kernels.engine.plan import Ask
from congruence.kernels.engine.results import CongruenceResult
from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.kernels.protocol import EXACT, PREPRINT
from congruence.kernels.rng import row_choices, row_signs, row_uniforms, stream
from congruence.tasks.dask.clusters import ClusterSettings, dask_client
from congruence.tasks.settings.parts import SolverSettings
from congruence.tasks.solving import pass_runner
from congruence.tasks.solving.pass_runner import VersionMeasurement, measure_blocks
from congruence.tasks.solving.solve import accuracy_of, is_held
from congruence.tasks.solving.tiled_cholesky import TiledCholesky

COLUMNS = ("cce", "noise_floor", "p_value", "statistic", "influence", "influence_squared")


@dataclass(frozen=True)
class FatalRows(CutRows):
    """The second block ends the process that reads it, as long as a file is there."""

    fatal: Path | None = None

    def inputs(self, block: int) -> np.ndarray:
        if self.fatal is not None and block == 1 and self.fatal.exists():
            self.fatal.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().inputs(block)


@dataclass(frozen=True)
class Written:
    """Columns in files, as workers write them."""

    folder: Path

    def __call__(self, block: int, version: str, columns: dict[str, np.ndarray]) -> None:
        for name, values in columns.items():
            np.save(self.folder / f"{version}-{name}-{block}.npy", values)

    def whole(self, found: dict[str, VersionMeasurement], blocks: CutRows) -> dict[str, CongruenceResult]:
        """What was measured, with its columns."""
        made = {}
        for version, measurement in found.items():
            assert measurement.rows == blocks.cuts[-1]
            names = {path.name.split("-")[1] for path in self.folder.glob(f"{version}-*-*.npy")}
            made[version] = measurement.whole({name: self.column(version, name, blocks) for name in names}).result
        return made

    def column(self, version: str, name: str, blocks: CutRows) -> np.ndarray:
        filled = [block for block, size in enumerate(blocks.sizes) if size]
        return np.concatenate([np.load(self.folder / f"{version}-{name}-{block}.npy") for block in filled])


@pytest.fixture(autouse=True)
def _workers_find_the_tests(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def threads():
    with dask_client(ClusterSettings(kind="threads", workers=1)) as client:
        yield client


@pytest.fixture(scope="module")
def processes():
    """Two workers that are processes, of which one may die and come back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2])
        with dask_client(ClusterSettings(kind="local", workers=2)) as client:
            yield client


def split(n: int, d: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d)).astype(np.float32)
    mean = 10.0 + 2.0 * x[:, 0].astype(np.float64)
    return x, rng.normal(mean, 1.0), mean


def version(family: str, mean: np.ndarray, y: np.ndarray) -> Distribution:
    rng = np.random.default_rng(5)
    ones = np.ones(len(mean))
    return {
        "normal": Normal(mean + 0.2, ones),
        "counts": NegativeBinomial(np.maximum(mean, 1.0), 0.1 * ones),
        "ensemble": Samples(rng.normal(mean[:, None], 1.0, size=(len(mean), 7))),
        "mixture": Mixture(np.array([0.3, 0.7]), (Normal(mean, ones), Normal(mean + 1.0, 2.0 * ones))),
    }[family]


def true(x: np.ndarray, y: np.ndarray, mean: np.ndarray, *cuts: int) -> CutRows:
    """Rows with the version that is right, in blocks between ``cuts``: two halves by default."""
    n = len(y)
    return CutRows(x, y, {"a": Normal(mean, np.ones(n))}, cuts=cuts or (0, n // 2, n))


def measured(
    client, blocks: CutRows, folder: Path, *, protocol=EXACT, accuracy=None, draws=None, tested=True, **kwargs
):
    """What is found of each version, by 60 landmarks if nothing else is asked for."""
    folder.mkdir(exist_ok=True)
    asked = Ask(list(blocks.models), draws=draws, tested=tested)
    found = measure_blocks(
        client, blocks, protocol, asked, Written(folder), accuracy=accuracy or Accuracy.of(60), **kwargs
    )
    return Written(folder).whole(found, blocks)


def landmarks_of(result: CongruenceResult) -> int:
    return int(result.solver.removeprefix("Nystrom on ").removesuffix(" landmarks"))


def share_of(result: CongruenceResult) -> float:
    """The certificate as a share of the mean CCE, or of its noise floor where that is larger."""
    return result.mean_error_bound / max(result.mean, result.noise_floor)


def bits(run) -> list[object]:
    """All numbers, to the last bit."""
    return [
        (
            (said.mean, said.noise_floor, said.error_bound, said.mean_error_bound, said.interval(), repr(said.band)),
            (said.test.p_value, said.test.null_statistics.tobytes(), said.uncertainty.influence.noise.tobytes()),
        )
        for said in run.values()
    ]


@pytest.mark.parametrize("family", ["normal", "counts", "ensemble", "weighted"])
@pytest.mark.parametrize(("n", "tight"), [(4300, 1e-10), (5400, 5e-6)])
def test_every_number_is_that_of_a_split_in_memory(threads, tmp_path, family, n, tight):
    weights = mean_one(np.random.default_rng(9).exponential(size=n), n) if family == "weighted" else None
    family = "normal" if family == "weighted" else family
    x, y, mean = split(n)
    y = np.maximum(np.round(y), 0.0) if family == "counts" else y
    model = version(family, mean, y)
    blocks = CutRows(x, y, {"a": model}, weights, cuts=[0, 700, 700, 3111, n])
    run = measured(threads, blocks, tmp_path / "columns", draws=99)
    said, written = run["a"], Written(tmp_path / "columns")

    held = prepare(
        EXACT.apply(x.astype(np.float64 if n <= 5000 else np.float32)),
        input_kernel=EXACT.input_kernel,
        regularization=0.1,
        landmarks=60,
        weights=weights,
    )
    result = held.evaluate(y, {"a": model}, draws=99)["a"]
    of = {name: written.column("a", name, blocks) for name in COLUMNS}

    np.testing.assert_allclose(of["cce"], result.values, atol=tight * result.values.max())
    assert said.mean == pytest.approx(result.mean, rel=tight)
    # The features' error is a sum of eigenvalues at rounding; and single precision is checked at other random points.
    assert said.mean_error_bound == pytest.approx(result.mean_error_bound, rel=1e-5 if n <= 5000 else 1e-2)
    assert said.error_bound == pytest.approx(result.error_bound, rel=1e-5 if n <= 5000 else 1e-2)
    np.testing.assert_allclose(of["noise_floor"], result.noise_floor_values, rtol=1e-7 if n <= 5000 else 1e-4)
    assert said.noise_floor == pytest.approx(result.noise_floor, rel=1e-10 if n <= 5000 else 1e-6)
    # What follows is made in single precision in both.
    known = result.uncertainty
    for column, there in (("influence", known.influence.root), ("influence_squared", known.influence.squared)):
        np.testing.assert_allclose(of[column], there, atol=5e-6 * np.abs(there).max())
    assert said.uncertainty.influence.squared_mean == pytest.approx(known.influence.squared_mean, rel=1e-5)
    for name in ("standard_error", "squared_standard_error", "noise_standard_error"):
        assert getattr(said.uncertainty, name) == pytest.approx(getattr(known, name), rel=1e-5)

    there, test = result.band, result.test
    assert (said.band.mean, said.band.low, said.band.high) == pytest.approx(
        (there.mean, there.low, there.high), rel=1e-5
    )
    assert (said.test.statistic, said.test.p_value) == pytest.approx((test.statistic, test.p_value), rel=1e-5)
    np.testing.assert_allclose(said.test.null_statistics, test.null_statistics, rtol=1e-5)
    # A point's count may move by one where a drawn statistic is the observed one up to rounding.
    assert np.abs(of["p_value"] - test.point_p_values).max() <= 1.01 / 100
    assert np.mean(of["p_value"] != test.point_p_values) < 1e-2


def test_numbers_do_not_depend_on_cuts_or_workers(processes, tmp_path):
    n = 4300
    x, y, mean = split(n)
    models = {name: version(name, mean, y) for name in ("normal", "mixture")}
    runs, columns = [], []
    even = [0, 1000, 2000, 3000, n]
    for number, (threads, cuts) in enumerate([(1, even), (0, even), (2, [0, 17, 1024, 1025, 4000, n])]):
        blocks, folder = CutRows(x, y, models, cuts=cuts), tmp_path / str(number)
        started = dask_client(ClusterSettings(kind="threads", workers=threads)) if threads else nullcontext(processes)
        with started as client:
            runs.append(measured(client, blocks, folder, draws=49))
        columns.append({(v, c): Written(folder).column(v, c, blocks) for v in models for c in COLUMNS})
    assert bits(runs[0]) == bits(runs[1])
    for key, values in columns[0].items():
        np.testing.assert_array_equal(columns[1][key], values)
        if key[1] != "p_value":
            np.testing.assert_allclose(columns[2][key], values, atol=5e-6 * np.abs(values).max())
    for name in models:
        one, other = runs[0][name], runs[2][name]
        assert one.mean == pytest.approx(other.mean, rel=1e-10)
        assert one.mean_error_bound == pytest.approx(other.mean_error_bound, rel=1e-5)
        assert one.band.high == pytest.approx(other.band.high, rel=1e-5)
        assert one.test.p_value == other.test.p_value
        assert one.uncertainty.standard_error == pytest.approx(other.uncertainty.standard_error, rel=1e-5)


def test_a_lost_worker_costs_its_own_blocks(processes, tmp_path):
    n = 2000
    x, y, mean = split(n)
    fatal = tmp_path / "fatal"
    blocks = FatalRows(x, y, {"a": Normal(mean, np.ones(n))}, cuts=[0, 500, 1000, 1500, n])
    whole = measured(processes, blocks, tmp_path / "whole", draws=19)
    fatal.touch()
    again = measured(processes, replace(blocks, fatal=fatal), tmp_path / "again", draws=19)
    assert not fatal.exists()
    assert bits(whole) == bits(again)


def test_a_sample_of_the_rows_says_with_how_many_landmarks_to_begin(threads, tmp_path, monkeypatch):
    x, y, mean = split(3000, d=4)
    blocks = true(x, y, mean)

    def run(accuracy, blocks=blocks):
        said: list[str] = []
        found = measured(threads, blocks, tmp_path, accuracy=accuracy, tested=False, announce=said.append)
        return found["a"], sum(" rows in " in line for line in said)

    accuracy = Accuracy(first=10, largest=400, exact_rows=0)
    every, tries = run(accuracy)
    monkeypatch.setattr(block_driver, "SAMPLED", 500)
    one, straight = run(accuracy)
    assert (tries, straight) == (3, 1)
    assert one.solver == every.solver
    assert one.mean == every.mean
    # A sample in which a rare count never comes says nothing; the whole split is measured all the same.
    rare = np.zeros(3000)
    seen = stream(0, "rows of a first try").choice(3000, 500, replace=False)
    rare[np.setdiff1d(np.arange(3000), seen)[:2]] = 1.0
    counts = replace(blocks, y=rare, models={"a": Poisson(np.full(3000, 1e-3))})
    assert landmarks_of(run(Accuracy(first=40, largest=80, exact_rows=0), counts)[0])
    # Out of reach is seen on the sample, too, and the answer is that of the last try that was worth it.
    hopeless = Accuracy(share=1e-9, first=4, largest=16, exact_rows=0)
    far, straight = run(hopeless)
    assert (straight, share_of(far) > hopeless.share, landmarks_of(far)) == (1, True, 8)


def test_landmarks_are_doubled_until_the_certificate_holds(threads, tmp_path):
    x, y, mean = split(3000, d=4)
    blocks, said = true(x, y, mean), list[str]()
    accuracy = Accuracy(first=20, largest=400, exact_rows=0)  # the kernel's rank is 35
    run = measured(threads, blocks, tmp_path, accuracy=accuracy, tested=False, announce=said.append)
    assert share_of(run["a"]) <= 1e-3
    assert 20 < landmarks_of(run["a"]) <= 40
    assert "20 landmarks" in said[0]
    assert run["a"].test is None
    exact = prepare(EXACT.apply(x.astype(float)), input_kernel=EXACT.input_kernel, regularization=0.1)
    mean_cce = exact.conditional_congruence_error(y, Normal(mean, np.ones(3000))).mean
    bound = run["a"].mean_error_bound
    assert bound <= 1e-3 * mean_cce
    assert abs(run["a"].mean - mean_cce) <= bound
    few = measured(threads, blocks, tmp_path, accuracy=Accuracy.of(12), draws=9)
    assert share_of(few["a"]) > 1e-3


@pytest.mark.parametrize("scale", ["residual", "multiscale"])
def test_output_scales_are_those_of_a_split_in_memory(threads, tmp_path, scale):
    n = 3000
    x, y, mean = split(n, d=4)
    protocol = replace(EXACT, output_scale=scale)
    blocks = true(x, y, mean, 0, 1000, n)
    run = measured(threads, blocks, tmp_path, protocol=protocol, draws=19)
    driver = HeldSplit(x.astype(float), y).driver(protocol, blocks.models, 0)
    there = driver.solve(Ask(["a"], tested=False), 60, Columns()).answers[0].version.kernel.describe()
    here = run["a"].output_kernel
    if scale == "residual":
        assert here["gamma"] == pytest.approx(there["gamma"], rel=1e-6)
    else:
        assert here["parts"][0]["gamma"] == pytest.approx(there["parts"][0]["gamma"], rel=1e-9)


def test_vector_targets_by_features_whose_error_is_measured_on_all(threads, tmp_path):
    n = 3000
    x, _, mean = split(n, d=4)
    y = np.random.default_rng(3).normal(np.stack([mean, -mean], axis=1), 1.0)
    model = MultivariateNormal(np.stack([mean, -mean], axis=1), np.ones((n, 2)))
    blocks = CutRows(x, y, {"a": model}, cuts=[0, 1000, n])
    said = measured(threads, blocks, tmp_path / "near", draws=19)["a"]
    held = prepare(EXACT.apply(x.astype(float)), input_kernel=EXACT.input_kernel, regularization=0.1, landmarks=60)
    there = held.evaluate(y, {"a": model}, draws=0)["a"]
    assert abs(said.mean - there.mean) <= said.mean_error_bound + there.mean_error_bound
    assert said.mean == pytest.approx(there.mean, rel=1e-4)
    narrow = replace(EXACT, output_kernel=RBF(200.0))
    with pytest.raises(BudgetError, match="features, chosen on sampled rows, miss"):  # of a short split they are exact
        measured(threads, blocks, tmp_path / "far", protocol=narrow, draws=19)


def test_random_numbers_belong_to_rows():
    rows = np.arange(1000)
    for function in (row_uniforms, row_signs):
        whole = function(rows, 100, 0, "a")
        np.testing.assert_array_equal(whole[300:410], function(rows[300:410], 100, 0, "a"))
        assert not np.array_equal(whole, function(rows, 100, 1, "a"))
        assert not np.array_equal(whole, function(rows, 100, 0, "b"))
    assert np.abs(row_signs(rows, 100, 0, "a").mean()) < 4e-2 / 3
    assert row_uniforms(rows, 100, 0, "a").mean() == pytest.approx(0.5, abs=4e-3)
    for among in (16, 7):
        counts = np.bincount(row_choices(rows, 101, among, 0, "a").ravel(), minlength=among)
        assert len(counts) == among
        assert np.abs(counts / 101_000 * among - 1.0).max() < 0.06


def test_bad_rows_are_named_by_their_place_in_the_split(threads, tmp_path):
    n = 400
    x, y, mean = split(n)
    absent, zeros, wrong = x.copy(), x.copy(), y.copy()
    absent[321, 2], zeros[207], wrong[250] = np.nan, 0.0, np.inf
    for changes, asked, said in (
        ({"x": absent}, {}, "row 321 is not finite"),
        ({"x": zeros}, {}, "row 207 is all zeros"),
        ({"y": wrong}, {}, "begins at row 200"),
        ({"y": np.ones(n)}, {}, "gamma"),
        ({}, {"protocol": PREPRINT}, "samples"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            measured(threads, replace(true(x, y, mean), **changes), tmp_path, **asked)


def test_long_splits_go_by_row_blocks():
    auto, exact = SolverSettings(), SolverSettings(kind="cholesky")
    assert is_held(auto, EXACT, 5_000, has_query=False)
    assert not is_held(auto, EXACT, 5_001, has_query=False)
    assert is_held(exact, EXACT, 10_000, has_query=False)
    assert not is_held(exact, EXACT, 10_001, has_query=False)
    assert is_held(auto, EXACT, 20_000, has_query=True)
    assert is_held(auto, PREPRINT, 20_000, has_query=False)
    assert Accuracy().counts(10**7) == [512, 724, 1024, 1448, 2048, 2896, 4096]
    assert Accuracy(first=10, largest=400, exact_rows=0).counts(25) == [10, 14, 20, 25]
    assert Accuracy().counts(5000) == [5000]
    assert accuracy_of(SolverSettings(landmarks=300)).counts(10**7) == [300]
    assert accuracy_of(exact).counts(10**7) == [10**7]


@pytest.mark.parametrize("weighted", [False, True])
def test_the_tiled_factor_gives_the_exact_answer(threads, tmp_path, weighted):
    n = 500
    x, y, mean = split(n)
    weights = mean_one(np.random.default_rng(9).exponential(size=n), n) if weighted else None
    blocks = CutRows(x, y, {"a": Normal(mean + 0.2, np.ones(n))}, weights, cuts=[0, 200, n])
    protocol, tiled = replace(EXACT, regularization=1e-3), TiledCholesky(threads, tile_rows=128)
    measured(threads, blocks, tmp_path, protocol=protocol, accuracy=Accuracy.exact(), draws=19, factorize=tiled)
    held = prepare(EXACT.apply(x.astype(float)), input_kernel=EXACT.input_kernel, regularization=1e-3, weights=weights)
    exact = held.evaluate(y, blocks.models, draws=19)["a"]
    values = Written(tmp_path).column("a", "cce", blocks)
    np.testing.assert_allclose(values, exact.values, rtol=1e-6)


def test_a_factor_that_does_not_fit_is_refused_with_numbers(threads, tmp_path):
    blocks, tiled = true(*split(300), 0, 300), TiledCholesky(threads, memory_bytes=1000)
    with pytest.raises(BudgetError, match=r"n = 300 needs .* GiB on the workers"):
        measured(threads, blocks, tmp_path, accuracy=Accuracy.exact(), factorize=tiled)


def test_further_landmarks_are_tried_as_long_as_they_promise_to_be_enough():
    def after(*tries: tuple[int, float]) -> int | None:
        return Accuracy().next_count(10**7, tries)

    assert after((512, 0.05)) == 1024  # whose rate nobody knows yet
    assert after((512, 1.3e-3)) == 724
    assert after((512, 1.5e-3)) == 1024
    assert after((512, 0.03), (1024, 0.008)) == 2048  # at most twice as many at once
    assert after((512, 2.6e-3), (1024, 1.1e-3)) == 1448
    assert after((512, 0.078), (1024, 0.034)) is None
    assert after((1024, 0.02), (2048, 0.02)) is None
    assert after((2896, 0.003), (4096, 0.002)) is None
    assert Accuracy.of(300).next_count(10**7, [(300, 0.05)]) is None
    assert pass_runner.TASKS * 2**15 >= 10**6


def test_landmarks_that_span_the_kernel_are_taken_in_double_precision_where_single_falls_short(
    threads, tmp_path, monkeypatch
):
    monkeypatch.setattr(block_driver, "EXACT_ROWS", 500)
    x, y, mean = split(3000, d=2)
    accuracy, told = Accuracy(share=5e-6, first=32, largest=256, exact_rows=0), list[str]()
    asked = {"accuracy": accuracy, "tested": False, "announce": told.append}
    result = measured(threads, true(x, y, mean), tmp_path, **asked)["a"]
    assert "span the kernel, so once more in double precision" in told[-1]
    assert share_of(result) <= 5e-6
    exact = prepare(EXACT.apply(x.astype(float)), input_kernel=EXACT.input_kernel)
    errors = exact.conditional_congruence_error(y, Normal(mean, np.ones(3000)))
    assert result.mean == pytest.approx(errors.mean, rel=1e-8)


def test_landmarks_that_span_the_kernel_already_are_tried_once(threads, tmp_path):
    blocks = true(*split(3000, d=2))  # a cubic polynomial of two features has ten dimensions
    accuracy, told = Accuracy(share=1e-15, first=32, largest=256, exact_rows=0), list[str]()
    measured(threads, blocks, tmp_path, accuracy=accuracy, tested=False, announce=told.append)
    assert len(told) == 2
    assert "further landmarks would not reach" in told[-1]
