"""Level, coverage and power on rows that depend on each other.

    python tests/benchmarks/dependent_rows.py calibration|congruence|level|means|gate|look [--sizes N ...]

Targets have the stated law at every input and depend on each other by a Gaussian copula: a stationary AR(1) series in
time, or an effect that the rows of a group share. Inputs are slow (smooth in time, one a group) or fast (independent).
Further cases: hours that depend on those of the day before, groups of very unequal size, groups that share what
happens at one time. ``--only`` takes part of a row's name: "AR(1) 0.5", "groups of 5 ". Power is of the first
``--powered`` splits. The kept record is dependent_rows.md.
"""

import time as clock
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy.special
import scipy.stats
from scipy.signal import lfilter
from simulations import AT, asked, head, machine, row, share

from congruence.kernels import RBF, Distribution, Normal, Poisson, Samples, Split, prepare
from congruence.kernels.conditional_calibration.effects import ConditionalCalibrationTest
from congruence.kernels.conditional_calibration.local_reading import local_reading
from congruence.kernels.conditional_calibration.null import CalibrationSettings
from congruence.kernels.conditional_calibration.prepared import PreparedCalibration, prepare_calibration
from congruence.kernels.dependence.blocks import DependentBlocks, RowDependence, TooFewBlocksError
from congruence.kernels.dependence.correlation import correlations, version_blocks
from congruence.kernels.engine.results import CongruenceResult, difference_of_influences
from congruence.kernels.marginal_calibration import even_levels
from congruence.kernels.pit import pit_scores, pit_values
from congruence.kernels.resampling import ScoreStatistics
from congruence.kernels.scores import point_scores
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.versions import compare_pair
from congruence.tasks.scores.evaluation import DEPENDENT_BLOCKS, INFLUENCE, MetricValue, SplitSummary
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.points import blocks_of_means, correlated_rows
from congruence.tasks.settings.sections import ModelVersion

SETTINGS = CalibrationSettings(draws=199, directions=50, own_directions=10)
MEMBERS = 20
HOURS = 24
UNEQUAL = np.array([90, 60, 40, 30, 20, 15, 12, 10, 8, 6, 5, 4])  # rows of groups, of 300


@dataclass(frozen=True)
class Case:
    """How rows depend on each other: AR(1) of ``rho`` in time, or groups of ``size`` with correlation ``rho``.

    Of a series ``part`` of the variance is correlated, and the rest noise of each row's own; with ``days`` an hour
    depends on that of the day before. With a ``size`` of 0 and ``unequal`` there are twelve groups of 4 to 90 rows of
    300. Rows at one place of their groups, which are then named as times, share ``together`` of the variance.
    """

    n: int
    rho: float
    slow: bool
    size: int = 0
    part: float = 1.0
    days: bool = False
    unequal: bool = False
    together: float = 0.0

    def __str__(self) -> str:
        kind = f"groups of {self.size}" if self.size else "unequal groups" if self.unequal else f"AR(1) {self.rho:g}"
        kind += " from day to day" if self.days else ""
        kind += f" in {self.part:g}" if self.part < 1.0 else ""
        kind += f", {self.together:g} by time" if self.together else ""
        inputs = ("slow" if self.slow else "fast") if self.labels is None else ("shared" if self.slow else "own")
        return f"{kind} | {self.n:,} | {inputs}"

    def z(self, rng: np.random.Generator) -> np.ndarray:
        """Standard normal at every row."""
        noise, labels = rng.standard_normal(self.n), self.labels
        if self.days:
            one = Case(self.n // HOURS + 1, self.rho, True)
            series = np.column_stack([one.z(rng) for _ in range(HOURS)]).ravel()[: self.n]
            return np.sqrt(self.part) * series + np.sqrt(1.0 - self.part) * noise
        if labels is None:
            noise[1:] *= np.sqrt(1.0 - self.rho**2)
            series = np.asarray(lfilter([1.0], [1.0, -self.rho], noise))
            if self.part == 1.0:
                return series
            return np.sqrt(self.part) * series + np.sqrt(1.0 - self.part) * rng.standard_normal(self.n)
        shared = np.sqrt(self.rho) * rng.standard_normal(labels[-1] + 1)[labels]
        if self.together:
            shared += np.sqrt(self.together) * rng.standard_normal(self.size)[np.arange(self.n) % self.size]
        return np.asarray(shared + np.sqrt(1.0 - self.rho - self.together) * noise)

    @property
    def labels(self) -> np.ndarray | None:
        """The group of each row; None of a series."""
        if self.unequal:
            return np.repeat(np.arange(len(UNEQUAL)), UNEQUAL * self.n // 300)
        return np.arange(self.n) // self.size if self.size else None

    def inputs(self) -> np.ndarray:
        """(n, 3)."""
        rng = np.random.default_rng(3)
        if self.slow and self.labels is not None:
            return rng.standard_normal((self.labels[-1] + 1, 3))[self.labels]
        if self.slow:
            t = np.arange(self.n) / self.n
            return np.column_stack([np.sin(6.0 * t), np.cos(4.0 * t), t])
        return rng.standard_normal((self.n, 3))

    @property
    def named(self) -> dict[str, np.ndarray]:
        """The column that says so."""
        times = {"time": np.arange(self.n) % self.size} if self.together else {}
        return {"time": np.arange(self.n)} if self.labels is None else {"groups": self.labels, **times}

    @property
    def dependence(self) -> RowDependence:
        return RowDependence.of(self.n, **self.named)


def cases(sizes: list[int]) -> Iterator[Case]:
    """All of them, of the sizes that are asked for."""
    for rho, part in ((0.5, 1.0), (0.9, 1.0), (0.9, 0.3)):
        yield from (Case(n, rho, slow, part=part) for n in sizes for slow in (True, False))
    yield from (Case(n, 0.5, slow, size) for size in (5, 50) for n in sizes for slow in (True, False) if n >= 10 * size)
    yield from (Case(n, rho, False, part=0.5, days=True) for rho in (0.5, 0.8) for n in sizes)
    yield from (Case(n, 0.5, slow, unequal=True) for n in sizes for slow in (True, False) if n % 300 == 0)
    yield from (Case(n, 0.2, False, 15, together=share) for share in (0.0, 0.2) for n in sizes if n % 15 == 0)


def spread(x: np.ndarray) -> np.ndarray:
    """Of the targets where it depends on the input, mean square 1."""
    found = np.exp(0.5 * (x[:, 0] - x[:, 0].mean()) / x[:, 0].std())
    return np.asarray(found / np.sqrt(np.mean(found**2)))


def heavy(z: np.ndarray) -> np.ndarray:
    """Student's t of 3 degrees of freedom with variance 1, at the same levels."""
    return np.asarray(scipy.special.stdtrit(3.0, scipy.special.ndtr(z)) / np.sqrt(3.0))


def counts(z: np.ndarray, mean: float) -> np.ndarray:
    return np.asarray(scipy.stats.poisson.ppf(scipy.special.ndtr(z), mean))


class Shares(dict[str, list[float]]):
    """Shares of the splits in which something holds; a split that is refused is not counted in them."""

    def add(self, name: str, value: float) -> None:
        self.setdefault(name, []).append(value)

    def tested(
        self, name: str, prepared: PreparedCalibration, y: np.ndarray, law: Distribution, named: dict[str, np.ndarray]
    ) -> ConditionalCalibrationTest | None:
        """One test of calibration; None where there are fewer than ten blocks."""
        try:
            test = prepared.test_version(y, law, dependence=RowDependence.of(len(y), **named))
        except TooFewBlocksError:
            return None
        self.add(name, test.p_value <= AT)
        return test

    def cells(self, case: Case, splits: int, names: str) -> str:
        """Of the table; refused are splits without blocks."""
        shares = []
        for name in (each.strip() for each in names.split(",")):
            values = self.get(name)
            form = ".0f" if name == "blocks" else ".3f"
            shares.append("" if not values else format(float(np.mean(values)), form))
        return f"| {case} | {splits - len(self.get('blocks', []))} | " + " | ".join(shares) + " |"


def calibration(case: Case, splits: int, powered: int) -> str:
    """Level as independent rows and by blocks of normal, count and ensemble laws; power; coverage of an effect."""
    x, law, rng = case.inputs(), Normal(np.zeros(case.n), 1.0), np.random.default_rng([case.n, int(10 * case.rho), 1])
    prepared = prepare_calibration(x, settings=SETTINGS)
    biased = Normal(np.full(case.n, -0.3), 1.0)
    fixed = np.random.default_rng(11)
    theta = np.mean([prepared.test_version(fixed.standard_normal(case.n), biased).effects["bias"].estimate
                     for _ in range(100)])  # fmt: skip
    found, named = Shares(), case.named
    for split in range(splits):
        z = case.z(rng)
        members = Samples(rng.standard_normal((case.n, MEMBERS)))
        by_blocks = found.tested("normal", prepared, z, law, named)
        if by_blocks is None:
            continue
        found.add("blocks", by_blocks.blocks or case.n)
        found.tested("independent", prepared, z, law, {})
        found.tested("counts", prepared, counts(z, 0.5), Poisson(np.full(case.n, 0.5)), named)
        found.tested("ensemble", prepared, z, members, named)
        off = found.tested("bias .3", prepared, z, biased, named)
        if off is not None:
            found.add("covered", off.effects["bias"].low <= theta <= off.effects["bias"].high)
        if split < powered:
            found.tested("one spread", prepared, spread(x) * z, law, named)
            found.tested("tails", prepared, heavy(z), law, named)
    return found.cells(case, splits, CALIBRATION)


def congruence(case: Case, splits: int, powered: int) -> str:
    """The congruence test, band, interval, and paired difference."""
    x, rng = case.inputs(), np.random.default_rng([case.n, int(10 * case.rho), 2])
    split: Split = prepare(x, input_kernel=RBF(0.5), **case.named)  # type: ignore[arg-type]
    plain: Split = prepare(x, input_kernel=RBF(0.5)) if case.n < 5_000 else split
    at = np.zeros(case.n)
    versions = {"true": Normal(at, 1.0), "up": Normal(at + 0.2, 1.0), "down": Normal(at - 0.2, 1.0),
                "off": Normal(at + 0.4, 1.0)}  # fmt: skip
    found, kept = Shares(), Shares()
    for number in range(splits):
        z = case.z(rng)
        try:
            results = split.evaluate(z, versions, output_kernel=RBF(0.5), draws=0)
            test = split.congruence_test(z, versions["true"], draws=99)
            blocks = version_blocks(split.dependence, z, versions["up"], versions["down"])
        except TooFewBlocksError:
            continue
        band = results["true"].band
        found.add("blocks", test.blocks or case.n)
        found.add("normal", test.p_value <= AT)
        found.add("in band", band.low <= results["true"].mean <= band.high)
        for name in ("true", "off"):
            kept.setdefault(name, []).extend((results[name].mean, *results[name].interval()))
        found.add("equal differ", _differ(results["up"], results["down"], blocks))
        if plain is not split:
            found.add("independent", plain.congruence_test(z, versions["true"], draws=99).p_value <= AT)
        if number < powered:
            found.add("bias .4", split.congruence_test(z, versions["off"], draws=99).p_value <= AT)
            found.add("better", _differ(results["true"], results["off"], blocks))
    for name, values in kept.items():
        mean, low, high = np.reshape(values, (-1, 3)).T
        found[f"covers {name}"] = list((low <= mean.mean()) & (mean.mean() <= high))
    return found.cells(case, splits, CONGRUENCE)


def level(case: Case, splits: int, powered: int) -> str:
    """Level of the congruence test of normal, count and ensemble laws, and its power."""
    rng = np.random.default_rng([case.n, int(10 * case.rho), 7])
    split: Split = prepare(case.inputs(), input_kernel=RBF(0.5), **case.named)  # type: ignore[arg-type]
    at, found = np.zeros(case.n), Shares()
    for number in range(splits):
        z = case.z(rng)
        tested: dict[str, tuple[np.ndarray, Distribution]] = {
            "normal": (z, Normal(at, 1.0)),
            "counts": (counts(z, 0.5), Poisson(at + 0.5)),
            "ensemble": (z, Samples(rng.standard_normal((case.n, MEMBERS)))),
        }
        if number < powered:
            tested["bias .4"] = (z, Normal(at + 0.4, 1.0))
            tested["half the mean"] = (counts(z, 0.5), Poisson(at + 0.25))
        try:
            tests = {name: split.congruence_test(*each, draws=199) for name, each in tested.items()}
        except TooFewBlocksError:
            continue
        found.add("blocks", tests["normal"].blocks or case.n)
        for name, test in tests.items():
            found.add(name, test.p_value <= AT)
    return found.cells(case, splits, LEVEL)


def _differ(first: CongruenceResult, second: CongruenceResult, blocks: DependentBlocks | None) -> bool:
    one, two = first.uncertainty.influence, second.uncertainty.influence
    shares = first.inference == second.inference
    return difference_of_influences(one, two, blocks, shares_signs=shares).p_value <= AT


def means(case: Case, splits: int, powered: int) -> str:
    """Intervals of means over points by blocks, and as if rows were independent."""
    rng = np.random.default_rng([case.n, int(10 * case.rho), 3])
    law = Normal(np.full(case.n, 0.3), 1.0)
    far = np.random.default_rng(13).standard_normal(1_000_000)
    truth = {name: float(np.mean(of)) for name, of in _columns(far, Normal(np.full(len(far), 0.3), 1.0)).items()}
    ece = {f"level {k}": float(level) for k, level in enumerate(even_levels())}
    error = float(np.mean([abs(truth[name] - centre) for name, centre in ece.items()]))
    found = Shares()
    for _ in range(splits):
        z = case.z(rng)
        columns = _columns(z, law)
        blocks = blocks_of_means(Rows(columns, z, law, dependence=case.dependence)).blocks
        if blocks is None:
            continue
        found.add("blocks", blocks.count)
        by_blocks = ScoreStatistics.of(columns, keys=blocks.labels)
        estimates = by_blocks.estimates()
        plain = ScoreStatistics.of(columns).estimates()
        for name in ("nll", "crps", "absolute_error", "coverage"):
            found.add(name, estimates[name].low <= truth[name] <= estimates[name].high)
        found.add("independent", plain["nll"].low <= truth["nll"] <= plain["nll"].high)
        item = by_blocks.mean_absolute_deviation(ece, blocks=blocks, resamples=500)
        found.add("ece", item.low <= error <= item.high)
    return found.cells(case, splits, MEANS)


def _columns(y: np.ndarray, law: Distribution) -> dict[str, np.ndarray]:
    pit, points = pit_values(y, law), point_scores(law, y)
    levels = {f"level {k}": pit <= level for k, level in enumerate(even_levels())}
    chosen = {name: points[name] for name in ("nll", "crps", "absolute_error")}
    return {**chosen, "coverage": np.abs(pit - 0.5) <= 0.45, **levels}


def gate(case: Case, splits: int, powered: int) -> str:
    """Releases that are worse by exactly the margin, and how often the gate's rule would promote them."""
    x, rng = case.inputs(), np.random.default_rng([case.n, int(10 * case.rho), 4])
    split = prepare(x, input_kernel=RBF(0.5), **case.named)  # type: ignore[arg-type]
    at = np.zeros(case.n)
    laws = {"in use": Normal(at + 0.2, 1.0), "same": Normal(at + 0.4, 1.0), "other": Normal(at - 0.4, 1.0)}
    kept: dict[tuple[str, str], list[tuple[float, float]]] = {}
    refused = 0
    for number in range(splits):
        z = case.z(rng)
        try:
            results = split.evaluate(z, laws, output_kernel=RBF(0.5), draws=0)
            versions = {name: _compared(case, z, law, results[name]) for name, law in laws.items()}
            for name in ("same", "other"):
                differences = compare_pair(versions[name], versions["in use"], resamples=400, seed=number).differences
                for metric in ("cce_mean", "nll_mean", "crps_mean", "mae"):
                    item = differences[metric]
                    kept.setdefault((name, metric), []).append((item.difference, item.high))
        except TooFewBlocksError:
            refused += 1
    found = [np.array(values).T for values in kept.values()]
    shares = [f"{np.mean(high < difference.mean()):.3f}" for difference, high in found]
    return f"| {case} | {refused} | " + " | ".join(shares) + " |"


def _compared(case: Case, y: np.ndarray, law: Normal, result: CongruenceResult) -> ComparedVersion:
    influence, points = result.uncertainty.influence, point_scores(law, y)
    column = {"row_time" if case.labels is None else "row_group": next(iter(case.named.values()))}
    keys, valid = np.arange(case.n).astype(str), np.ones(case.n, dtype=bool)
    scores = pd.DataFrame(
        {"key": keys, "valid": valid, "pit": pit_values(y, law), "cce": result.values, **points, **column}
    )
    metrics = {"cce_mean": MetricValue(influence.mean), "cce_squared_mean": MetricValue(influence.squared_mean)}
    blocks = None if result.inference is None else result.inference.blocks
    metrics |= {DEPENDENT_BLOCKS: MetricValue(float(blocks or case.n))}
    table = pd.DataFrame(dict(zip(INFLUENCE, (keys, influence.squared, influence.root), strict=True)))
    name = f"{float(law.loc[0]):g}"
    return ComparedVersion(
        ModelVersion("angle", name, f"models:/angle/{name}"),
        SplitSummary("test", "1", case.n, case.n),
        "exact",
        "1",
        metrics,
        scores,
        influence=table,
        influence_noise=influence.noise,
        rows_digest="1",
    )


def look(splits: int) -> None:
    """False alarms of the look for correlation on independent rows, and how often AR(1) series are found."""
    head("rows", "n", "looks", "found")
    for n in (200, 1_000, 5_000):
        for rho, shown in ((0.0, splits), (0.1, splits // 10), (0.3, splits // 10)):
            case, rng, found = Case(n, rho, True), np.random.default_rng([n, int(10 * rho), 5]), []
            groups = {"shop": np.arange(n) // 4, "patient": rng.permutation(np.arange(n) // 10)}
            for seed in range(shown):
                scores = pit_scores(scipy.special.ndtr(case.z(rng)))
                found.append(any(each.is_found for each in correlations(scores, groups=groups, seed=seed)))
            row("independent" if rho == 0.0 else f"AR(1) {rho:g}", n, 3, share(np.array(found)))
    n, shown = 1_000, splits // 5
    x, law = Case(n, 0.0, True).inputs(), Normal(np.zeros(n), 1.0)
    smoother = prepare(x, input_kernel=RBF(0.5)).smoother
    faults = {"bias .5": 0.5, "slope in a slow input": 0.5 * x[:, 0], "wave in it": 0.7 * np.sin(6.0 * x[:, 0])}
    for name, fault in faults.items():  # independent rows, and a version that is wrong
        rng, found = np.random.default_rng(6), []
        for seed in range(shown):
            y = rng.standard_normal(n) + fault
            reading = local_reading(smoother, pit_values(y, law), None)
            alarm = correlated_rows(Rows({}, y, law, seed=seed), reading, x)
            found.append(alarm is not None)
        row(f"independent, wrong: {name}", n, 1, share(np.array(found)))
    for parts in (2, 10, 40):  # named by slices, one part's rows after the other's
        site = np.arange(n) * parts // n
        wrong = {
            "nowhere": np.zeros(n),
            "bias .5 in one": 0.5 * (site == 0),
            "bias of its own in each": 0.5 * (site % 2),
        }
        for name, fault in wrong.items():
            for rho in (0.0, 0.3):
                rng, found = np.random.default_rng([7, parts]), []
                for seed in range(shown):
                    y = Case(n, rho, True).z(rng) + fault
                    labels = pd.DataFrame({"site": site})
                    alarm = correlated_rows(Rows({}, y, law, seed=seed, labels=labels))
                    found.append(alarm is not None)
                rows = "independent" if rho == 0.0 else f"AR(1) {rho:g}"
                row(f"{rows}, {parts} parts named, wrong: {name}", n, 1, share(np.array(found)))


CALIBRATION = "independent, blocks, normal, counts, ensemble, covered, bias .3, one spread, tails"
CONGRUENCE = "independent, blocks, normal, in band, covers true, covers off, equal differ, bias .4, better"
LEVEL = "blocks, normal, counts, ensemble, bias .4, half the mean"
MEANS = "independent, blocks, nll, crps, absolute_error, coverage, ece"
GATE = "same cce, same nll, same crps, same mae, other cce, other nll, other crps, other mae"
PARTS = {
    "calibration": (calibration, CALIBRATION),
    "congruence": (congruence, CONGRUENCE),
    "level": (level, LEVEL),
    "means": (means, MEANS),
    "gate": (gate, GATE),
}


def main() -> None:
    """Print the table of a part."""
    arguments = asked(__doc__, [*PARTS, "look"], sizes=[500, 1000, 5000], splits=400, powered=100, only="")
    machine()
    if arguments.part == "look":
        return look(arguments.splits)
    run, names = PARTS[arguments.part]
    head("rows", "n", "inputs", "refused", *names.split(", "), "CPU s")
    for case in (each for each in cases(arguments.sizes) if arguments.only in str(each)):
        started = clock.process_time()
        cells = run(case, arguments.splits, arguments.powered)
        print(f"{cells} {clock.process_time() - started:.0f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
