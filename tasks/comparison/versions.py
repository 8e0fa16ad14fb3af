"""Versions measured on the same split under the same protocol, and the paired differences between them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.dependence.blocks import TooFewBlocksError
from congruence.kernels.errors import InvalidInputError, ProtocolError
from congruence.kernels.protocol import require_same
from congruence.kernels.resampling import PAIRED_RESAMPLES
from congruence.tasks.comparison.compared import ComparedVersion, Pair
from congruence.tasks.comparison.differences import (
    CCE,
    OF_STATED,
    SQUARED_CCE,
    MetricDifference,
    MissingInfluenceError,
    cce_differences,
    disjoint_differences,
    effect_differences,
    infinite_metrics,
    point_differences,
)
from congruence.tasks.comparison.explored import (
    Explored,
    WhoWon,
    best_set,
    in_set,
    recalibrated_label,
    rows_apart,
    who_won,
)
from congruence.tasks.comparison.gate_settings import GateSettings
from congruence.tasks.scores.evaluation import SplitSummary, ranked
from congruence.tasks.scores.metrics.registry import mean_columns, shown
from congruence.tasks.sentences.calibration import significant


@dataclass(frozen=True)
class PointsWon:
    """On how many points the first version scores lower (won), higher (lost), or the same (tied).

    A description: points share the targets of the same reference rows, so it has no p-value for CCE.
    """

    won: int
    lost: int
    tied: int


@dataclass(frozen=True)
class PairedComparison:
    """Two versions on the same rows; lower is better in every metric, so a negative difference favours ``first``.

    Attributes:
        rows: points valid in both; of stored predictions on other rows those of both together.
        differences: by metric, as far as both can be compared in it.
        points: points won and lost, for the metrics that are means over points.
        largest: the rows on which the two differ most in CCE, both ways, largest first.
        notes: what cannot be compared, why, and the remedy.
        refused: why nothing has an interval, where rows depend on each other in too few blocks; "" else.
        unlike: that their CRPS and ECE are different quantities, and what to do; "" where they compare.
        explored: some of the rows with both predictions, and where their score differs; None without one that compares.
        won: what the difference of CRPS owes to knowledge and to honesty; None where it is not known.
    """

    first: ComparedVersion
    second: ComparedVersion
    rows: int
    differences: dict[str, MetricDifference]
    points: dict[str, PointsWon]
    largest: pd.DataFrame = field(repr=False)
    notes: tuple[str, ...] = ()
    explored: Explored | None = field(default=None, repr=False)
    refused: str = ""
    unlike: str = ""
    won: WhoWon | None = None

    @property
    def drawn(self) -> frozenset[str]:
        """The metrics that do not say which is better: NLL of quantiles and of draws, and MAE of quantiles.

        They are those of a distribution that we draw through them: what is not true may have lower ones.
        """
        return _drawn([self.first, self.second])

    def table(self) -> pd.DataFrame:
        """One row per metric."""
        records = []
        for name, item in self.differences.items():
            record: dict[str, Any] = {"metric": name, **vars(item)}
            if name in self.points:
                record |= vars(self.points[name])
            records.append(record)
        return pd.DataFrame(records)


OWN_CELLS = "without the chance in where targets lie between quantiles or within bins"
_OF_DRAWS = (
    "Differences of CCE are without what the chance of few draws adds to it, which the values in the table have; MAE "
    "is of the mean of the draws, which is the less exact the fewer they are"
)
_SEEN = 0.01  # of a CCE


def _other_statements(first: ComparedVersion, second: ComparedVersion) -> str:
    """Of the CRPS and ECE of two versions: that they do not compare, and what to do; "" where they do."""
    if first.states_as(second):
        return ""
    shared = [level for level in first.levels if level in second.levels]
    remedy = ""
    if len(shared) > 1:
        levels = ", ".join(f"{level:g}" for level in shared)
        remedy = f"; to compare them, evaluate both by their quantiles at {levels} alone (predictions: levels, columns)"
    return f"are different quantities ({first.statement}; {second.statement}){remedy}"


_DRAWN = {"nll_mean": {"quantiles", "draws"}, "mae": {"quantiles"}}


def _drawn(versions: Iterable[ComparedVersion]) -> frozenset[str]:
    stated = {version.stated for version in versions}
    return frozenset(name for name, of in _DRAWN.items() if stated & of)


@dataclass(frozen=True)
class Cell:
    """One version and metric: its value and, but for the baseline, the difference."""

    value: float
    difference: MetricDifference | None = None

    @property
    def side(self) -> str:
        """ "better", "worse", or "" where the difference's interval holds 0, or there is none."""
        return "" if self.difference is None else self.difference.side


@dataclass(frozen=True)
class Comparison:
    """Versions on one split under one protocol, each compared with the ``baseline``; as ``ranked``.

    ``best`` are the p-values of the versions in the model confidence set by CRPS; ``best_recalibrated`` those of the
    set in which each stands also as it would be after its own recalibration.
    """

    versions: list[ComparedVersion]
    baseline: ComparedVersion
    pairs: dict[str, PairedComparison]
    resamples: int
    seed: int
    best: dict[str, float] = field(default_factory=dict)
    best_recalibrated: dict[str, float] = field(default_factory=dict)

    @property
    def may_be_best(self) -> list[str]:
        """The versions that may be the best by CRPS: in 95 of 100 splits the best is among them."""
        return in_set(self.best)

    @property
    def recalibrated(self) -> dict[str, dict[str, MetricDifference]]:
        """The versions that are worth their own recalibration: their scores then, against the baseline."""
        explained = {label: pair.won for label, pair in self.pairs.items() if pair.won is not None}
        found = {label: won.recalibrated() for label, won in explained.items() if won.is_worth_recalibrating()}
        if explained and (first := next(iter(explained.values()))).is_worth_recalibrating(baseline=True):
            found[self.baseline.label] = first.recalibrated(baseline=True)
        return {version.label: found[version.label] for version in self.versions if found.get(version.label)}

    @cached_property
    def infinite(self) -> dict[str, frozenset[str]]:
        """By label the means of a version that are infinite, which are no metrics of it."""
        return {version.label: infinite_metrics(version.scores) - version.metrics.keys() for version in self.versions}

    def names_of(self, shown: Iterable[str]) -> tuple[str, ...]:
        """Those of some metrics that a version has, or that are infinite for one."""
        known = {name for version in self.versions for name in (*version.metrics, *self.infinite[version.label])}
        return tuple(name for name in shown if name in known)

    def matrix(self, metrics: Iterable[str]) -> dict[str, dict[str, Cell]]:
        """The cells of each version by metric, as far as it has them; then of versions as recalibrated."""
        found: dict[str, dict[str, Cell]] = {}
        for version in self.versions:
            pair, own = self.pairs.get(version.label), version.metrics
            differences = {} if pair is None else pair.differences
            found[version.label] = {
                name: Cell(own[name].value, differences.get(name)) for name in metrics if name in own
            }
        for label, items in self.recalibrated.items():
            found[recalibrated_label(label)] = {name: Cell(item.first, item) for name, item in items.items()}
        return found

    @property
    def corrections(self) -> dict[str, str]:
        """The addresses of the versions in the registry that recalibration would make better, by label.

        By what they state themselves, which stands in the matrix, or by the inputs, too, as their reports advise.
        """
        known = [each for each in self.versions if each.is_registered]
        gaining = [each for each in known if each.label in self.recalibrated or each.advice.startswith("Recalibrate")]
        return {each.label: each.model.uri for each in gaining}

    @property
    def may_be_best_recalibrated(self) -> list[str]:
        """The versions, as they are and recalibrated, that may be the best by CRPS; none where none is recalibrated."""
        gaining = {recalibrated_label(label) for label in self.recalibrated}
        labels = {version.label for version in self.versions} | gaining
        found = [label for label in in_set(self.best_recalibrated) if label in labels]
        return found if gaining & {*found} else []

    @property
    def split(self) -> SplitSummary:
        """The split that all were measured on."""
        return self.baseline.split

    @property
    def notes(self) -> list[str]:
        """What cannot be compared, why, and the remedy; each sentence once."""
        said = [note for pair in self.pairs.values() for note in pair.notes]
        if len({version.settings_digest for version in self.versions}) > 1:
            said.append(
                "the versions were evaluated with other predictions, model_inputs, solver, seed or store.dtype: part "
                "of a difference may come from these"
            )
        if self.recalibrated:
            more = "; `congruence recalibrate` goes by the inputs, too" if self.corrections else ""
            said.append(f"In the table, versions are recalibrated by what each states itself{more}")
        return list(dict.fromkeys(said))

    def table(self) -> pd.DataFrame:
        """One row per version: its metrics, and the CCE differences from the baseline with intervals and p-value."""
        records = []
        for version in self.versions:
            record: dict[str, Any] = {"version": version.label}
            record |= {name: metric.value for name, metric in version.metrics.items()}
            differences = self.pairs[version.label].differences if version.label in self.pairs else {}
            for name, title in ((CCE, "cce_difference"), (SQUARED_CCE, "cce_squared_difference")):
                if (item := differences.get(name)) is not None:
                    record |= {title: item.difference, f"{title}_low": item.low, f"{title}_high": item.high}
                    record |= {} if item.p_value is None else {"cce_p_value": item.p_value}
            records.append(record)
        return pd.DataFrame(records)


def compare_versions(
    versions: Sequence[ComparedVersion],
    *,
    baseline: str | None = None,
    resamples: int = PAIRED_RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare every version with the baseline (its label, by default the first as ``ranked``) on the same rows.

    ``resamples`` and ``seed`` are those of the bootstrap and of the permutation test of the metrics other than CCE.

    Raises:
        ProtocolError: the versions' splits or protocols differ.
        InvalidInputError: fewer than two versions, or no such baseline.
    """
    if len(versions) < 2:
        raise InvalidInputError(f"versions: {len(versions)} to compare; name at least two evaluated versions")
    require_comparable(versions)
    ordered = ranked(sorted(versions, key=lambda version: version.label))
    labels = [version.label for version in ordered]
    if len(set(labels)) != len(labels):
        raise InvalidInputError(f"versions: {', '.join(labels)} names one version twice")
    if baseline is not None and baseline not in labels:
        raise InvalidInputError(f"baseline: {baseline} is not among the compared versions {', '.join(labels)}")
    chosen = ordered[0] if baseline is None else ordered[labels.index(baseline)]
    is_of_one_split = len({version.split.digest for version in ordered}) == 1
    best, recalibrated = (best_set(ordered, recalibrated=also) if is_of_one_split else {} for also in (False, True))
    pairs: dict[str, PairedComparison] = {}
    among = differences_among(len(ordered) - 1)
    for version in ordered:
        if version is not chosen:
            pairs[version.label] = compare_pair(version, chosen, resamples=resamples, seed=seed, among=among)
            version.release()
    chosen.release()
    return Comparison(ordered, chosen, pairs, resamples, seed, best, recalibrated)


def differences_among(versions: int) -> int:
    """By how many differences it is said who wins, of so many versions that are compared with the baseline."""
    return len(shown("wins")) * versions


def require_comparable(versions: Sequence[ComparedVersion]) -> None:
    """Raise ProtocolError where the versions were measured on other splits or under other protocols.

    Versions whose predictions were stored may each have rows of their own.
    """
    if not all(version.is_stored for version in versions):
        require_same({version.label: version.split.digest[:16] for version in versions}, "split")
    require_same({version.label: version.protocol_digest for version in versions}, "protocol")


def compare_pair(
    first: ComparedVersion, second: ComparedVersion, *, resamples: int = PAIRED_RESAMPLES, seed: int = 0, among: int = 1
) -> PairedComparison:
    """Two versions by what their reference rows contribute to CCE, and on the points that are valid in both.

    Stored predictions on other rows are compared without pairs of points, by wider intervals. ``among``: see
    ``differences_among``.

    Raises:
        ProtocolError: other splits, protocols or rows.
        InvalidInputError: fewer than two common valid points.
    """
    require_comparable([first, second])
    if first.split.digest != second.split.digest:
        return _on_other_rows(first, second)
    if not first.has_rows_of(second):
        raise ProtocolError(
            f"scores: the rows of {first.label} and {second.label} have other keys; evaluate both again"
        )
    rows = second.valid if first.shares_rows(second) else second.valid & first.valid
    both = Pair(first, second, rows)
    differences: dict[str, MetricDifference] = {}
    own = f"Differences of CCE are {OWN_CELLS}, which the values in the table have"
    notes: tuple[str, ...] = () if first.shares_targets(second) else (own,)
    unlike, refused = _other_statements(first, second), ""
    won = None
    try:
        try:
            differences |= cce_differences(first, second)
            seen = differences[CCE].first - differences[CCE].second
            if not notes and abs(seen - differences[CCE].difference) > _SEEN * differences[CCE].first:
                notes = (_OF_DRAWS,)
        except MissingInfluenceError as error:
            notes = (str(error),)
        differences |= point_differences(both, resamples=resamples, seed=seed)
        differences |= effect_differences(both)
        won = None if unlike else who_won(both, among)
    except TooFewBlocksError as error:
        differences, refused = {}, str(error)
        notes = (*notes, refused)
    if unlike:
        differences = {name: each for name, each in differences.items() if name not in OF_STATED}
    columns = {CCE: "cce", **{name: column for name, column in mean_columns().items() if name in differences}}
    points = {}
    for name, column in columns.items():
        one, two = both.columns(column)
        points[name] = PointsWon(int(np.sum(one < two)), int(np.sum(one > two)), int(np.sum(one == two)))
    largest, some = rows_apart(both)
    return PairedComparison(
        first,
        second,
        rows=int(rows.sum()),
        differences=differences,
        points=points,
        largest=largest,
        notes=notes,
        explored=some,
        refused=refused,
        unlike=unlike,
        won=won,
    )


def _on_other_rows(first: ComparedVersion, second: ComparedVersion) -> PairedComparison:
    counts = [version.split.valid_rows for version in (first, second)]
    said = (
        f"{first.label} and {second.label} were judged on different rows ({counts[0]:,} and {counts[1]:,}): the "
        "intervals are those of independent rows, and part of a difference may come from the rows"
    )
    one, two = (pd.Index(each.scores["key"].to_numpy()[each.valid]) for each in (first, second))
    if common := int(one.isin(two).sum()):
        said += f"; on the {common:,} keys that both scored they compare row by row where these are a split"
    try:
        differences, refused = disjoint_differences(first, second), ""
    except TooFewBlocksError as error:
        differences, refused = {}, str(error)
    if unlike := _other_statements(first, second):
        differences = {name: each for name, each in differences.items() if name not in OF_STATED}
    if CCE in differences:
        said += ". CCE is compared without the noise of each one's rows: the root of its mean square beyond this"
    elif not refused:
        said += ". CCE does not compare: an evaluation does not hold its noise; evaluate both again with --again"
    notes = (said, refused) if refused else (said,)
    none = pd.DataFrame({"row": [], "key": [], "cce_difference": []})
    return PairedComparison(first, second, sum(counts), differences, {}, none, notes, refused=refused, unlike=unlike)


Splits = Mapping[str, ComparedVersion]
"""The evaluations of one version, by split."""


def best_of(passed: Sequence[Splits], settings: GateSettings, *, seed: int = 0) -> tuple[int, str]:
    """The number of the best of some versions, the oldest first, and why it is.

    Each newer one is compared with the best so far, metric by metric in the order of the rules (``better_on``, then
    ``not_worse_on``, then ``maximum``): the first metric whose paired 95 % interval lies on one side of 0 decides; over
    several splits, it must on one and may not lie on the other side on another. Where none decides, the older stays.
    """
    best, why = 0, "the only one that passed"
    drawn = _drawn(each for versions in passed for each in versions.values())
    for number in range(1, len(passed)):
        verdict = _better(passed[number], passed[best], settings, seed)
        names = ", ".join(order_of(settings, drawn))
        none = f"no later one is shown to be better than {_label(passed[best])} on {names}"
        is_better, why = verdict or (False, none)
        best = number if is_better else best
    return best, why


def order_of(settings: GateSettings, drawn: Collection[str]) -> list[str]:
    """The metrics of the rules, in their order, each once; see ``GateSettings.not_worse``."""
    not_worse = settings.not_worse(drawn)
    return list(dict.fromkeys([*settings.better_on, *not_worse, *settings.maximum]))


def _better(newer: Splits, older: Splits, settings: GateSettings, seed: int) -> tuple[bool, str] | None:
    """Whether the newer version is better, and by what; None where nothing decides."""
    found: dict[str, dict[str, MetricDifference]] = {}
    drawn: frozenset[str] = frozenset()
    for split in newer:
        if split in older:
            pair = compare_pair(newer[split], older[split], resamples=settings.resamples, seed=seed)
            found[split] = pair.differences
            drawn |= pair.drawn
            newer[split].release()
            older[split].release()
    for name in order_of(settings, drawn):
        items = {split: differences[name] for split, differences in found.items() if name in differences}
        lower = {split: item for split, item in items.items() if item.high < 0.0}
        higher = {split: item for split, item in items.items() if item.low > 0.0}
        if bool(lower) == bool(higher):
            continue
        split, item = next(iter((lower or higher).items()))
        better, other = (newer, older) if lower else (older, newer)
        where = f" on {split}" if len(found) > 1 else ""
        values = [significant(value) for value in ((item.first, item.second) if lower else (item.second, item.first))]
        seen = item if lower else replace(item, difference=-item.difference, low=-item.high, high=-item.low)
        reason = (
            f"{name} of {_label(better)} is lower than that of {_label(other)}{where}: {values[0]} against "
            f"{values[1]}, difference {seen}"
        )
        return bool(lower), reason
    return None


def _label(version: Splits) -> str:
    return next(iter(version.values())).label
