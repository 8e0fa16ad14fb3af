"""The looks that were taken at a split, in order, what they say together, and their page over time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array
from congruence.kernels.dependence.blocks import TooFewBlocksError
from congruence.kernels.monitoring.best import LookDifference, best_over_looks
from congruence.kernels.monitoring.evidence import Look, Monitor, ScoreSums, score_bet
from congruence.kernels.pit import pit_scores
from congruence.kernels.rng import hashed_keys
from congruence.tasks.comparison.compared import ComparedVersion, Pair
from congruence.tasks.comparison.explored import best_set, in_set
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.mlflow.connection import BEST, connect, run_link, set_version_tags, web_page, with_retries
from congruence.tasks.mlflow.identity import (
    PREFIX,
    Conditions,
    dates_in_words,
    finished_evaluations,
    quoted,
    search_evaluations,
)
from congruence.tasks.mlflow.reading import SCORES_FILE, LoggedTable, logged_versions, with_rows, with_tags
from congruence.tasks.models.registry import matching_versions
from congruence.tasks.report.page import render
from congruence.tasks.runtime.files import load_record, save_record, whole_file
from congruence.tasks.scores.evaluation import ROW_CORRELATION, verdict_of
from congruence.tasks.scores.metrics.registry import metric_of, shown
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import ModelVersion, TrackingSettings

_TESTS = ("cce_p_value", "calibration_p_value")
"""The metrics of the tests that bet by themselves."""


@dataclass(frozen=True)
class Account:
    """All looks at one version on one split, in the order of their dates, and what they say all together.

    ``pages`` is where people open MLflow, None where it has no page. Beyond ``links`` its page over time asks, which
    needs at least one look.
    """

    looks: tuple[ComparedVersion, ...]
    monitor: Monitor = field(repr=False)
    pages: str | None = None

    @property
    def until(self) -> str:
        """The last date that was looked at, "" where there is none."""
        return self.looks[-1].split.until if self.looks else ""

    @property
    def links(self) -> list[str]:
        """The addresses of the runs of its looks, "" where MLflow has no page."""
        base = self.pages
        return ["" if base is None else run_link(base, look.experiment, look.run_id) for look in self.looks]

    @property
    def change(self) -> list[dict[str, Any]]:
        """The metrics before the fault and since it began, means over looks by their rows; none where it is right."""
        began = self.monitor.began_at
        if not began:
            return []
        rows = np.array([max(look.rows, 1) for look in self.monitor.looks], dtype=np.float64)
        since = np.arange(len(rows)) >= began
        found = []
        for name in shown("over_time"):
            values = np.array([_number(look, name) for look in self.looks], dtype=np.float64)
            held = np.isfinite(values)
            if (held & since).any() and (held & ~since).any():
                before, now = (np.average(values[w], weights=rows[w]) for w in (held & ~since, held & since))
                found.append({"name": metric_of(name).label, "before": float(before), "since": float(now)})
        return found

    @property
    def sentences(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What was wrong at the last look before the fault, and what is at the last look of all."""
        began = self.monitor.began_at
        return (self.looks[began - 1].wrong if began else ()), self.looks[-1].wrong

    def plain(self) -> dict[str, Any]:
        """For the page's scripts."""
        looks = self.monitor.looks
        return {
            "label": self.looks[0].label,
            "split": self.looks[0].split.name,
            "when": [look.when for look in looks],
            "rows": [look.rows for look in looks],
            "p": [look.p_value for look in looks],
            "evidence": (self.monitor.evidence / np.log(10.0)).tolist(),
            "change": (self.monitor.detector / np.log(10.0)).tolist(),
            "bar": float(-np.log10(self.monitor.level)),
            "changeBar": float(np.log10(self.monitor.average_run_length)),
            "began": self.monitor.began_at,
            "links": self.links,
            "metrics": {
                name: {"label": metric_of(name).label}
                | {part: [_number(look, name, part) for look in self.looks] for part in ("value", "low", "high")}
                for name in shown("over_time")
                if any(name in look.metrics for look in self.looks)
            },
        }


def read_account(version: ModelVersion, split: SplitSettings, settings: EvaluationSettings) -> Account:
    """Returns the account of a version on one of the splits of an evaluation file.

    Rows that depend on each other (``groups``, ``time``, or as a look finds) are not bet on one by one: their p-values
    alone count.

    Raises:
        TrackingError: MLflow does not answer.
    """
    return read_accounts([version], split, settings)[version.label]


def _account(finished: Iterable[ComparedVersion], split: SplitSettings, settings: EvaluationSettings) -> Account:
    """The account of a version by all its finished evaluations on a split."""
    logged = sorted((each for each in finished if each.split.period), key=lambda look: (look.made, look.run_id))
    latest = {look.split.period: look for look in logged if look.is_stored}
    looks = _disjoint([*latest.values(), *(look for look in logged if not look.is_stored)])
    bets = split.groups is None and split.time is None
    monitor = Monitor(settings.watch.monitor.level, settings.watch.monitor.average_run_length)
    sums = ScoreSums()
    for look in looks:
        # Rows that are correlated, which nobody named, judge nothing and are not bet on.
        p_value, log_bet = verdict_of(look.metrics).p_value, None
        pit = kept(look, "pit", settings) if bets and ROW_CORRELATION not in look.metrics else np.empty(0)
        if len(pit):
            log_bet, sums = score_bet(pit_scores(pit), sums)
        when = dates_in_words(look.split.period)
        tests = () if p_value is None else tuple(look.metrics[name].value for name in _TESTS if name in look.metrics)
        name, rows = f"{look.split.since} {look.split.digest}", look.split.valid_rows
        monitor = monitor.with_look(Look(name, p_value or 1.0, when, log_bet, rows, tests))
    return Account(tuple(looks), monitor, web_page(settings.tracking))


def read_accounts(
    versions: Iterable[ModelVersion], split: SplitSettings, settings: EvaluationSettings
) -> dict[str, Account]:
    """The account of each version, by its label; see ``read_account``. MLflow is asked once for all of them."""
    versions, finished = list(versions), defaultdict[tuple[str, str], list[ComparedVersion]](list)
    only = versions[0] if len(versions) == 1 else None
    for found in finished_evaluations(settings.tracking, split.name, only) if versions else []:
        finished[found.model.name, found.model.version].append(found)
    return {each.label: _account(finished[each.name, each.version], split, settings) for each in versions}


def _disjoint(looks: Iterable[ComparedVersion]) -> list[ComparedVersion]:
    """Those that were tested and that share no date with one that was made before, in the order of their dates."""
    found: list[ComparedVersion] = []
    for look in looks:
        dates = look.split
        overlaps = any(dates.since <= other.split.until and other.split.since <= dates.until for other in found)
        if not overlaps and any(name in look.metrics for name in _TESTS):
            found.append(look)
    return sorted(found, key=lambda look: look.split.since)


def kept(look: ComparedVersion, what: str, settings: EvaluationSettings) -> Array:
    """What a look has of its rows: the "pit" of the valid ones, or of all of them the "target", or numbers of "keys".

    These are ``hashed_keys`` of the texts. It is empty where a vector has none. A complete run never changes: the home
    folder keeps a copy.
    """
    path = settings.home_folder / "looks" / f"{look.run_id}.{what}.npy"
    if not path.exists():
        column = "key" if what == "keys" else what
        with closing(LoggedTable(look.run_id, SCORES_FILE, settings.tracking)) as scores:
            known = scores[column] if column in scores else pd.Series(dtype=float)
        keys = what == "keys"
        values = hashed_keys(known.astype(str).to_numpy(dtype=object)) if keys else known.to_numpy(np.float64)
        with whole_file(path) as stream:
            np.save(stream, values[np.isfinite(values)] if what == "pit" else values)
    return np.asarray(np.load(path))


_SCORE = "crps"


@dataclass(frozen=True)
class MayBeBest:
    """A set of versions in which the best one is, but for one in twenty: by label those ``inside``.

    Of all that were looked at, each by the evaluation that speaks for it; ``basis`` says "of 2 versions over 12 looks".
    """

    inside: tuple[str, ...]
    versions: tuple[ComparedVersion, ...]
    basis: str

    @classmethod
    def of(cls, p_values: dict[str, float], versions: Sequence[ComparedVersion]) -> MayBeBest:
        """The set by the p-values of all versions of a split, see ``best_set``."""
        return cls(tuple(in_set(p_values)), tuple(versions), f"of {len(versions)} versions")

    def holds(self, label: str) -> bool | None:
        """Whether a version may be the best; None of one that was not looked at."""
        return label in self.inside if label in [each.label for each in self.versions] else None

    def said(self, label: str) -> str:
        """Whether a version may be the best, in words."""
        if label in self.inside:
            return f"{label} may be the best {self.basis} by CRPS"
        return f"{label} is not the best {self.basis} by CRPS; {' or '.join(self.inside)} may be (95 % set)"

    def mark(self, settings: TrackingSettings) -> None:
        """Tell it on every version, for lists.

        Raises:
            TrackingError: MLflow does not answer.
        """
        for each in self.versions:
            word = "may be" if each.label in self.inside else "not"
            if each.model.version:
                said = f"{word} the best {self.basis} (run {each.run_id})"
                set_version_tags(each.model, {BEST + each.split.name: said}, settings)


def best_on_split(
    version: ComparedVersion, split: SplitSettings, finished: Sequence[ComparedVersion], settings: EvaluationSettings
) -> MayBeBest | None:
    """Returns which versions of a version's registered model may be the best on its split; None where nobody knows.

    On a split with ``new_dates_only`` over all looks that two versions share, else by those of the ``finished``
    evaluations on it that are of the same rows under the same protocol. Versions that were corrected on rows of the
    split are left out.

    Raises:
        TrackingError: MLflow does not answer.
    """
    tracking = settings.tracking
    versions = with_retries("listing versions", lambda: matching_versions([version.model.name]), tracking)
    if split.new_dates_only:
        return best_over(versions, read_accounts(versions, split, settings), settings)
    under = Conditions(version.split.digest, version.protocol_digest)
    fair = {each.uri: each for each in versions if not each.has_seen(version.split.digest)}
    own = [with_tags(each, fair[each.model.uri]) for each in finished if each.model.uri in fair]
    logged = logged_versions(split.name, own, tracking, conditions=under)
    found = best_set(logged)
    for each in logged:
        each.release()
    return MayBeBest.of(found, logged) if found else None


def best_over(
    versions: Sequence[ModelVersion], accounts: Mapping[str, Account], settings: EvaluationSettings
) -> MayBeBest | None:
    """Returns which versions may still be the best over all looks at one split that they share; None without any.

    Raises:
        TrackingError: MLflow does not answer.
    """
    shared: dict[tuple[str, str], dict[str, ComparedVersion]] = {}
    for label in (version.label for version in versions):
        for look in accounts[label].looks:
            shared.setdefault((look.split.period, look.split.digest), {})[label] = look
    looks_read = []
    for _, own in sorted(shared.items()):
        pairs = {pair: _look(own[pair[0]], own[pair[1]], settings) for pair in combinations(sorted(own), 2)}
        if found := {pair: each for pair, each in pairs.items() if each is not None}:
            looks_read.append(found)
    if not looks_read:
        return None
    best = best_over_looks(looks_read)
    compared = [version for version in versions if version.label in best.evidence]
    # With the tags of the registry, so that what a version says already is not written again.
    last = tuple(replace(accounts[version.label].looks[-1], model=version) for version in compared)
    looks = f"{best.looks} look{'s' if best.looks > 1 else ''}"
    return MayBeBest(tuple(best.may_be_best), last, f"of {len(last)} versions over {looks}")


def _look(first: ComparedVersion, second: ComparedVersion, settings: EvaluationSettings) -> LookDifference | None:
    """What one look says of two versions; None where it has no CRPS that compares, or too few blocks of rows.

    A complete run never changes: the home folder keeps what was found.
    """
    path = settings.home_folder / "looks" / f"{first.run_id}.{second.run_id}.json"
    if (record := load_record(path)) is not None:
        return LookDifference(**record) if record else None
    versions = [with_rows(each, settings.tracking) for each in (first, second)]
    found = None
    if versions[0].states_as(versions[1]) and all(_SCORE in version.scores for version in versions):
        columns = [version.column(_SCORE) for version in versions]
        rows = np.all(np.isfinite(columns), axis=0)
        with suppress(TooFewBlocksError):
            blocks = Pair(versions[0], versions[1], rows).blocks([_SCORE])
            weights = versions[0].weights(rows)
            found = LookDifference.of(*(column[rows] for column in columns), weights=weights, blocks=blocks)
    for version in versions:
        version.release()
    save_record(path, {} if found is None else vars(found))
    return found


def _number(point: ComparedVersion, name: str, part: str = "value") -> float | None:
    """None where it was not measured, or is not finite."""
    found = getattr(point.metrics.get(name), part, None)
    return found if found is not None and np.isfinite(found) else None


OVER_TIME_FILE = "over-time.html"
_OVER_TIME = PREFIX + "over_time"
"""The tag of a run that holds the page of the registered model of that name."""


def log_over_time(name: str, accounts: Mapping[tuple[str, str], Account], settings: TrackingSettings) -> None:
    """Log the page of a registered model to the run of its newest look: is each version still right, since when not?

    Accounts, by label and split, that have no looks are left out; one has some.

    Raises:
        TrackingError: MLflow does not answer.
    """
    series = [(account.monitor.verdict == "right so far", *key) for key, account in accounts.items() if account.looks]
    ordered = [accounts[label, split] for _, label, split in sorted(series)]
    client, newest = connect(settings), max((look.made, look.run_id) for each in ordered for look in each.looks)
    plain = {"series": [each.plain() for each in ordered]}
    scripts = ("page", "charts", "over_time")
    page = render("over_time.html", title=f"{name} over time", series=ordered, page=plain, scripts=scripts)

    def log() -> None:
        client.log_text(newest[1], page, OVER_TIME_FILE)
        client.set_tag(newest[1], _OVER_TIME, name)

    with_retries("logging the page over time", log, settings)


def over_time_run(name: str, settings: TrackingSettings) -> tuple[str, str] | None:
    """Returns the experiment and the run that hold the newest page of a registered model; None where nobody looked.

    Raises:
        TrackingError: MLflow does not answer.
    """
    runs = search_evaluations(settings, f"tags.`{_OVER_TIME}` = {quoted(name)}")
    return next(((str(run.info.experiment_id), str(run.info.run_id)) for run in runs), None)
