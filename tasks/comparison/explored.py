"""Where a comparison's difference lies, and whether honesty or knowledge makes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array, mean_one
from congruence.kernels.dependence.blocks import DependentBlocks, TooFewBlocksError
from congruence.kernels.resampling import means_by_group
from congruence.kernels.rng import stream
from congruence.kernels.score_parts import FEWEST_ROWS, Part, ScoreParts, may_be_best, score_parts
from congruence.tasks.comparison.compared import ComparedVersion, Pair
from congruence.tasks.comparison.differences import REACH, MetricDifference
from congruence.tasks.scores.metrics.registry import RECALIBRATED, REGION, mean_columns
from congruence.tasks.scores.points import slice_groups, tenths
from congruence.tasks.sentences.calibration import WORTH_IT, percent

ROWS = 1_000
SCORES = ("crps", "nll", "absolute_error")
"""The score by which rows are won and lost: the first that both versions have. Rows are independent in it."""

LARGEST = 50
_COLUMNS = ("cce", "mean", "std", "nll", "crps")


@dataclass(frozen=True)
class DifferenceAlong:
    """The mean difference of the score in groups of rows, (g,) each, with 95 % intervals over the rows.

    ``column`` is that of ``Explored.frame`` which makes the groups; ``edges`` are those between tenths of numbers.
    """

    name: str
    column: str
    groups: tuple[str, ...]
    edges: list[float] | None
    rows: Array = field(repr=False)
    value: Array = field(repr=False)
    low: Array = field(repr=False)
    high: Array = field(repr=False)

    @property
    def explained(self) -> float:
        """What the groups explain of the difference's variance, less what chance gives, in squared units of it."""
        error = (self.high - self.low) / (2.0 * REACH)
        mean = self.rows @ self.value / self.rows.sum()
        return float(max(0.0, self.rows @ ((self.value - mean) ** 2 - error**2) / self.rows.sum()))


@dataclass(frozen=True)
class Explored:
    """The rows of a pair that a page shows.

    Attributes:
        score: by which they are compared.
        frame: half of them those that differ most, the others drawn at random: ``row``, ``key``, ``target``,
            ``difference`` of the score (negative where the first version is better), ``cce``, ``mean``, ``std``,
            ``nll`` and ``crps`` of both with the endings ``_first`` and ``_second``, and the columns of ``groups``.
        groups: slice columns and the region.
        along: mean differences in them and in tenths of predictions, over all rows. Not of targets: among rows of
            extreme targets a version that always predicts extremes scores best (Lerch et al. 2017, the forecaster's
            dilemma).
    """

    score: str
    frame: pd.DataFrame = field(repr=False)
    groups: tuple[str, ...]
    along: tuple[DifferenceAlong, ...] = field(repr=False)


def rows_apart(pair: Pair) -> tuple[pd.DataFrame, Explored | None]:
    """The rows on which two versions differ most in CCE, and those that a page explores; each column is read once.

    What is the rows' own is read of the second version, which has the same.

    Returns:
        50 rows, the largest difference first, both ways; and the explored ones, None without a score that compares.
    """
    first, second, valid = pair.first, pair.second, np.flatnonzero(pair.rows)
    apart = np.subtract(*pair.columns("cce"))
    most_apart = np.argsort(-np.abs(apart), kind="stable")[:LARGEST]
    most = valid[most_apart]
    largest: dict[str, Any] = {"row": most, "cce_difference": apart[most_apart]}
    score = next((name for name in SCORES if name in pair), None) if first.states_as(second) else None
    lead = np.empty(0) if score is None else np.subtract(*pair.columns(score))
    valid, lead = valid[: len(lead)][np.isfinite(lead)], lead[np.isfinite(lead)]
    chosen = _chosen(lead)
    places = valid[chosen]
    table: dict[str, Any] = {"row": places, "difference": lead[chosen]}
    along = []
    for column in ("key", "target"):
        if column in second.scores:
            values = second.scores[column].to_numpy()
            largest[column], table[column] = values[most], values[places]
    for column in _COLUMNS:
        if column in pair:
            for name, version in (("first", first), ("second", second)):
                values = version.column(column)
                largest[f"{column}_{name}"], table[f"{column}_{name}"] = values[most], values[places]
                if column == "mean" and len(valid):
                    title = f"prediction of {version.label}"
                    along.append(_along(title, f"mean_{name}", *tenths(values[valid]), lead))
    if score is None or not len(valid):
        return pd.DataFrame(largest), None
    groups = []
    for name in [name for name in (*second.slices, REGION) if name in second.scores]:
        codes, names = slice_groups(second.scores[name].iloc[valid])
        groups.append("region of the inputs" if name == REGION else name)
        table[groups[-1]] = names[codes[chosen]]
        along.append(_along(groups[-1], groups[-1], codes, [str(each) for each in names], None, lead))
    frame = pd.DataFrame(table)
    single = dict.fromkeys(frame.select_dtypes("float64").columns, "float32")
    differing = sorted((each for each in along if len(each.groups) > 1), key=lambda each: -each.explained)
    return pd.DataFrame(largest), Explored(score, frame.astype(single), tuple(groups), tuple(differing))


def _chosen(difference: Array) -> Array:
    """Positions: those that differ most, the largest first, then others at random."""
    order = np.argsort(-np.abs(difference), kind="stable")
    if len(order) <= ROWS:
        return np.asarray(order)
    rest = order[ROWS // 2 :]
    drawn = stream(0, "rows of a comparison").choice(len(rest), ROWS - ROWS // 2, replace=False)
    return np.concatenate([order[: ROWS // 2], rest[np.sort(drawn)]])


def _along(
    name: str, column: str, codes: Array, groups: list[str], edges: list[float] | None, difference: Array
) -> DifferenceAlong:
    rows = np.bincount(codes, minlength=len(groups)).astype(float)
    mean, error = means_by_group(codes, len(groups), difference)
    return DifferenceAlong(name, column, tuple(groups), edges, rows, mean, mean - error, mean + error)


_SCORE = "crps"
_METRICS = {"crps": "crps_mean", "nll": "nll_mean"}
_LEAST = 0.05
"""Of the p-value of a version that may be the best: one in 20 sets is without the best."""

_SAID = 1e-4
"""Of the CRPS: versions that are one when recalibrated differ by their rounding, in every row."""

ALL_ROWS = "all rows"


@dataclass(frozen=True)
class WhoWon:
    """The scores of ``first`` less those of ``second`` on the same rows, in their parts; negative favours ``first``.

    Attributes:
        scores: by "crps", and "nll" where both state densities, the parts over all rows on which both were recalibrated
            ("all rows"), and within each group of a slice column that has enough of them ("column = value").
        means: the mean scores of ``second`` over these rows.
        sentence: what the parts of the CRPS say, in words.
    """

    scores: dict[str, dict[str, ScoreParts]]
    means: dict[str, float]
    sentence: str

    @property
    def parts(self) -> ScoreParts:
        """Of the CRPS, over all rows."""
        return self.scores[_SCORE][ALL_ROWS]

    def placed(self) -> Iterator[tuple[str, str, ScoreParts]]:
        """The parts with their score and the rows that they are of."""
        return ((score, place, parts) for score, places in self.scores.items() for place, parts in places.items())

    def table(self) -> pd.DataFrame:
        """One row per score, place and part."""
        records = [
            {"score": _METRICS[score], "rows of": place, "part": name, **vars(part), "rows": parts.rows}
            for score, place, parts in self.placed()
            for name, part in named_parts(parts).items()
        ]
        return pd.DataFrame(records)

    def is_worth_recalibrating(self, *, baseline: bool = False) -> bool:
        """Whether recalibration takes off the first version (or the second, the baseline) what a report asks of it.

        ``WORTH_IT`` of the CRPS or of the NLL beyond chance, where neither gets worse.
        """
        gains = {score: places[ALL_ROWS].gains[int(baseline)] for score, places in self.scores.items()}
        total = 0.0 if baseline else self.parts.total.value
        least = {"crps": WORTH_IT["CRPS"] * (self.means[_SCORE] + total), "nll": WORTH_IT["NLL"]}
        enough = any(gain.low > 0.0 and gain.value >= least[score] for score, gain in gains.items())
        return enough and all(gain.high >= 0.0 for gain in gains.values())

    def recalibrated(self, *, baseline: bool = False) -> dict[str, MetricDifference]:
        """By metric, the first version (or the second, the baseline) when recalibrated against the second as it is.

        Nothing where its CRPS would gain nothing beyond chance.
        """
        if self.parts.gains[int(baseline)].low <= 0.0:
            return {}
        found = {}
        for score, places in self.scores.items():
            parts, mean = places[ALL_ROWS], self.means[score]
            part, gain = parts.corrected, parts.gains[1]
            if baseline:
                part = Part(-gain.value, -gain.high, -gain.low, gain.p_value)
            ends = part.low, part.high, part.p_value
            found[_METRICS[score]] = MetricDifference(mean + part.value, mean, part.value, *ends, rows=parts.rows)
        return found


def named_parts(parts: ScoreParts) -> dict[str, Part]:
    """The parts by their names."""
    named = {"total": parts.total, "honesty": parts.honesty, "knowledge": parts.knowledge, "gain": parts.gains[0]}
    return named | {"gain_of_baseline": parts.gains[1], "recalibrated_against_baseline": parts.corrected}


def who_won(pair: Pair, among: int = 1) -> WhoWon | None:
    """Returns why one version's scores are lower; None where an evaluation does not hold what that takes.

    ``among``: so many differences, which together name the better one of equal versions in at most 1 of 20 splits.
    """
    first, second = pair.first, pair.second
    scores: dict[str, dict[str, ScoreParts]] = {}
    means: dict[str, float] = {}
    for score, recalibrated in RECALIBRATED.items():
        names = (score, recalibrated)
        if any(name not in pair for name in names):
            continue
        columns = [version.column(name) for version in (first, second) for name in names]
        chosen = pair.rows & ~np.any(np.isnan(columns), axis=0)
        if np.count_nonzero(chosen) < FEWEST_ROWS or not np.isfinite([column[chosen] for column in columns]).all():
            continue
        weights = first.weights(chosen)
        blocks = replace(pair, rows=chosen).blocks(names)
        kept = [column[chosen] for column in columns]
        counted = np.ones(len(kept[2])) if weights is None else mean_one(weights, len(kept[2]))
        means[score] = float(np.mean(counted * kept[2]))
        scores[score] = {ALL_ROWS: score_parts(*kept, weights=weights, blocks=blocks)}
        for name in (name for name in first.slices if name in first.scores):
            codes, values = slice_groups(first.scores[name][chosen])
            for code, value in enumerate(values):
                if (within := _within(kept, codes == code, weights, blocks)) is not None:
                    scores[score][f"{name} = {value}"] = within
    if _SCORE not in scores:
        return None
    won = WhoWon(scores, means, "")
    sentence = _sentence(first.label, second.label, won, _LEAST / among)
    if all(np.array_equal(first.column(name, pair.rows), second.column(name, pair.rows)) for name in scores):
        sentence = f"{first.label} and {second.label} score the same in every row: they predict the same."
    return replace(won, sentence=sentence)


def recalibrated_label(label: str) -> str:
    """What a version is called as it would be after its own recalibration."""
    return f"{label}, recalibrated"


def best_set(versions: Sequence[ComparedVersion], *, recalibrated: bool = False) -> dict[str, float]:
    """Returns the p-value of each version in the model confidence set by CRPS, on the rows that are valid in all.

    Nothing where a version has no CRPS or one of another quantity, or rows depend on each other in too few blocks. With
    ``recalibrated`` also as each would be after its own recalibration; nothing where one lacks that.
    """
    names = [_SCORE, RECALIBRATED[_SCORE]] if recalibrated else [_SCORE]
    if len(versions) < 2 or any(name not in version.scores for version in versions for name in names):
        return {}
    first, last = versions[0], versions[-1]
    if not all(version.has_rows_of(first) and version.states_as(first) for version in versions[1:]):
        return {}
    losses = {version.label: version.column(_SCORE) for version in versions}
    if recalibrated:
        losses |= {recalibrated_label(version.label): version.column(names[1]) for version in versions}
    rows = np.all([np.isfinite(column) for column in losses.values()], axis=0)
    if np.count_nonzero(rows) < 2:
        return {}
    weights = first.weights(rows)
    try:
        blocks = Pair(first, last, rows).blocks(mean_columns().values())
        return may_be_best({label: column[rows] for label, column in losses.items()}, weights=weights, blocks=blocks)
    except TooFewBlocksError:
        return {}


def in_set(p_values: dict[str, float]) -> list[str]:
    """Returns the labels of the versions that may be the best: in 95 of 100 splits the best is among them."""
    return [label for label, p_value in p_values.items() if p_value >= _LEAST]


def _within(
    columns: Sequence[Array], here: Array, weights: Array | None, blocks: DependentBlocks | None
) -> ScoreParts | None:
    if np.count_nonzero(here) < FEWEST_ROWS:
        return None
    own = None if blocks is None else blocks.of_rows(here)
    if own is not None and own.count < 10:
        return None
    return score_parts(
        *(column[here] for column in columns), weights=None if weights is None else weights[here], blocks=own
    )


def _sentence(first: str, second: str, won: WhoWon, level: float) -> str:
    """The parts in words: who is better, by what share of the CRPS, what of it is knowledge and what honesty.

    Where the whole shows at ``level``, its parts are named by their own intervals; else a part must show as the whole.
    """
    parts, scale = won.parts, won.means[_SCORE]

    is_clear = parts.total.p_value <= level
    named = ((parts.knowledge, ("knows more", "knows less")), (parts.honesty, ("is more honest", "is less honest")))
    shown = [
        (part, words)
        for part, words in named
        if part.p_value <= (_LEAST if is_clear else level) and abs(part.value) >= _SAID * scale
    ]
    reasons = " and ".join(f"{words[part.value > 0.0]} ({percent(abs(part.value) / scale)})" for part, words in shown)
    if is_clear:
        side, lower = ("better", "lower") if parts.total.value < 0.0 else ("worse", "higher")
        said = f"{first} is {side} than {second}, with a CRPS {percent(abs(parts.total.value) / scale)} {lower}"
        return f"{said}: it {reasons}." if shown else f"{said}."
    said = f"{first} and {second} have the same CRPS within chance"
    return f"{said}: {first} {reasons}." if shown else f"{said}."
