"""`congruence compare`: versions that are evaluated already, and how sure their differences are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from rich.table import Table

from congruence.flows.cli.console import print_line, results, table_of
from congruence.flows.cli.options import open_file, use_home_store
from congruence.kernels.score_parts import ScoreParts
from congruence.tasks.comparison.compared import ComparedVersion
from congruence.tasks.comparison.differences import MetricDifference
from congruence.tasks.comparison.explored import ALL_ROWS, WhoWon, named_parts
from congruence.tasks.comparison.versions import Comparison, PairedComparison, compare_versions
from congruence.tasks.data.settings import SplitSettings
from congruence.tasks.data.split import open_split
from congruence.tasks.evaluate.plan import split_conditions
from congruence.tasks.evaluate.stored import opened
from congruence.tasks.mlflow.comparisons import log_comparison
from congruence.tasks.mlflow.connection import use_tracking
from congruence.tasks.mlflow.identity import ANY, Conditions, finished_evaluations
from congruence.tasks.mlflow.reading import comparable_versions, logged_versions
from congruence.tasks.models.registry import RegistryError, baseline_version, model_name, select
from congruence.tasks.monitor.account import MayBeBest
from congruence.tasks.report.comparison import sentences_of, summary_of, the_best
from congruence.tasks.runtime.errors import SettingsError
from congruence.tasks.scores.metrics.registry import metric_of, shown
from congruence.tasks.sentences.calibration import probability, signed, significant
from congruence.tasks.settings.evaluation import EvaluationSettings
from congruence.tasks.settings.sections import TrackingSettings

_LARGEST = 5


@dataclass(frozen=True)
class LoggedComparison:
    """A comparison, the MLflow run that holds its report and tables, and where people find that run.

    ``chosen`` says whether a person or a gate named the baseline; ``file`` is the evaluation file, which commands name.
    """

    comparison: Comparison
    run_id: str
    place: str
    chosen: bool = True
    file: str | None = None

    @property
    def corrections(self) -> dict[str, str]:
        """The command that makes a version of the registry as it would be when recalibrated, by label."""
        command = f"congruence recalibrate {self.file or 'FILE'} --version"
        return {label: f"{command} {uri}" for label, uri in self.comparison.corrections.items()}


def comparison_json(logged: LoggedComparison) -> dict[str, Any]:
    """A comparison as JSON: the numbers of each version, and each pair's differences; negative is better."""
    comparison = logged.comparison
    versions, pairs = comparison.versions, comparison.pairs
    return {
        "split": comparison.split.name,
        "protocol": comparison.baseline.protocol,
        "baseline": comparison.baseline.label,
        "summary": summary_of(comparison),
        "sentences": sentences_of(comparison),
        "versions": {each.label: {name: metric.value for name, metric in each.metrics.items()} for each in versions},
        "differences": {
            label: {name: _plain(item) for name, item in pair.differences.items()} for label, pair in pairs.items()
        },
        "parts": {label: parts_json(pair.won) for label, pair in pairs.items() if pair.won is not None},
        "recalibrated": {
            label: {
                "command": logged.corrections.get(label),
                **{name: {"value": item.first, **_plain(item)} for name, item in found.items()},
            }
            for label, found in comparison.recalibrated.items()
        },
        "may_be_best": comparison.may_be_best,
        "best_p_values": comparison.best,
        "may_be_best_recalibrated": comparison.may_be_best_recalibrated,
        "faults": {each.label: list(each.wrong) for each in versions},
        "notes": list(comparison.notes),
        "run_id": logged.run_id,
        "place": logged.place,
    }


def _plain(item: MetricDifference) -> dict[str, Any]:
    return {name: getattr(item, name) for name in ("difference", "low", "high", "p_value")}


def parts_json(won: WhoWon) -> dict[str, Any]:
    """What a difference of CRPS, and of the log score, owes to honesty and to knowledge, over all rows and by slice."""

    def plain(parts: ScoreParts) -> dict[str, Any]:
        return {"rows": parts.rows, **{name: vars(part) for name, part in named_parts(parts).items()}}

    def placed(places: dict[str, ScoreParts]) -> dict[str, Any]:
        slices = {name: plain(each) for name, each in places.items() if name != ALL_ROWS}
        return {**plain(places[ALL_ROWS]), "slices": slices}

    log_score = {"log_score": placed(won.scores["nll"])} if "nll" in won.scores else {}
    return {"sentence": won.sentence, **placed(won.scores["crps"]), **log_score}


def print_comparison(logged: LoggedComparison, *, details: bool = True) -> None:
    """Print the versions by their metrics, what differs from the baseline beyond chance marked.

    With ``details`` also each version's differences with their intervals, and the inputs on which two differ most.
    """
    comparison, split = logged.comparison, logged.comparison.split
    print_line(f"split '{split.name}' ({split.digest[:12]}), protocol {comparison.baseline.protocol}")
    results().print(_overview(comparison))
    print_line(_how_to_read(comparison, logged.chosen))
    print_line(summary_of(comparison))
    said = sentences_of(comparison)
    for label, pair in comparison.pairs.items():
        for table in _tables(label, pair) if details else ():
            results().print(table)
        sentences = [said[label]]
        if pair.first.verdict.is_wrong and pair.first.wrong:
            sentences += [f"{label}, by itself: {pair.first.wrong[0]}", pair.first.advice]
        print_line(" ".join(each for each in sentences if each))
        rows = pair.largest.head(_LARGEST if details else 0)
        changed = [f"{key} ({signed(change)})" for key, change in zip(rows["key"], rows["cce_difference"], strict=True)]
        if changed:
            print_line(f"differs most in CCE on: {', '.join(changed)}")
    if best := the_best(comparison):
        print_line(best)
    for label, command in logged.corrections.items():
        print_line(f"{label} is recalibrated by: {command}")
    for note in comparison.notes:
        print_line(note)
    more = "" if details else "; --details: every difference with its interval and p-value"
    print_line(f"report: comparison.html of {logged.place}{more}")


def _how_to_read(comparison: Comparison, chosen: bool) -> str:
    label = comparison.baseline.label
    apart = any(version.split.digest != comparison.split.digest for version in comparison.versions)
    kind = "difference on different rows" if apart else "paired difference"
    said = f"+ worse, - better than {label}, beyond the 95 % interval of the {kind}"
    said += "; the sentences allow for chance among many marks"
    why = "it ranks first (by CRPS or NLL where these differ beyond noise, else by CCE)"
    return said if chosen else f"{said}\n{label} is the baseline because {why}; --baseline names another"


_MARKS = {"better": "-", "worse": "+", "": " "}


def _overview(comparison: Comparison) -> Table:
    """The numbers of each version with their marks; why there is none, where it is known."""
    names = comparison.names_of(shown("compared"))
    rows = []
    for label, cells in comparison.matrix(names).items():
        infinite = comparison.infinite.get(label, frozenset())
        known = {name: f"{significant(cell.value)} {_MARKS[cell.side]}" for name, cell in cells.items()}
        title = f"{label} (baseline)" if label == comparison.baseline.label else label
        rows.append([title, *(known.get(name, "infinite" if name in infinite else "–") for name in names)])
    return table_of(["version", *(metric_of(name).label for name in names)], rows, words=["version"])


def _tables(label: str, pair: PairedComparison) -> list[Table]:
    """Every difference from the baseline with its interval, and what it owes to knowledge and honesty."""
    rows = []
    for name, item in pair.differences.items():
        points = pair.points.get(name)
        won = "" if points is None else f"{points.won}:{points.lost}"
        p_value = "" if item.p_value is None else probability(item.p_value)
        interval = f"{signed(item.low)} to {signed(item.high)}"
        rows.append([metric_of(name).label, signed(item.difference), interval, p_value, won])
    title = f"{label} against {pair.second.label}, {pair.rows:,} points; negative is better"
    columns = ["metric", "difference", "95 % interval", "p", "points won:lost"]
    tables = [table_of(columns, rows, words=["metric"], title=title)]
    if pair.won is not None:
        rows = []
        for score, place, parts in pair.won.placed():
            cells = (parts.total, parts.knowledge, parts.honesty, parts.gains[0])
            rows.append(
                [score.upper(), place, *(f"{signed(x.value)} ({signed(x.low)} to {signed(x.high)})" for x in cells)]
            )
        title = f"why {label} differs: what it knows, how honest it is, what it would gain by recalibration"
        columns = ["score", "rows", "difference", "knowledge", "honesty", "would gain"]
        tables.append(table_of(columns, rows, words=["score", "rows"], title=title))
    return tables


def compared(
    arguments: Sequence[str], home: Path | None, *, split: str | None, baseline: str | None, protocol_digest: str | None
) -> Iterator[LoggedComparison]:
    """Yields the comparisons that ``[EVALUATION FILE] [VERSION ...]`` asks for, one for each split.

    A file says under what the versions are compared: its data, encoder, protocol and settings, and where they are
    logged; ``protocol_digest`` replaces its protocol. Without one MLflow is that of the home folder.

    Raises:
        SettingsError: neither a file nor a split, or a file that cannot be read.
        CongruenceError: the file's split or encoder cannot be opened; or see ``compare``.
    """
    if not arguments or Path(arguments[0]).suffix not in (".yaml", ".yml"):
        if split is None:
            raise SettingsError(
                "give an evaluation file, or --split NAME: which split are the versions to be compared on?"
            )
        tracking, wanted = use_home_store(home, writes=True), Conditions(protocol_digest=protocol_digest)
        yield compare(split, arguments, tracking, baseline=baseline, conditions=wanted, mark=not arguments)
        return
    file, *named = arguments
    settings = open_file(Path(file), home).for_workers()
    use_tracking(settings.tracking)
    models, given = named or settings.models, None if settings.gate is None else settings.gate.baseline
    if settings.is_of_stored_predictions:
        yield from compare_stored(settings, models, baseline=baseline or given)
        return
    if split is not None:
        settings.split_named(split, "--split")
    against = baseline or named_baseline(given, models, settings.tracking)
    for part, wanted in split_conditions(settings, protocol_digest=protocol_digest):
        if split in (None, part.name):
            yield compare(
                part.name,
                models,
                settings.tracking,
                baseline=against,
                conditions=wanted,
                seed=settings.seed,
                mark=not named,
                file=file,
            )


def compare(
    split: str,
    models: Sequence[str],
    tracking: TrackingSettings,
    *,
    baseline: str | None = None,
    conditions: Conditions = ANY,
    seed: int = 0,
    mark: bool = False,
    file: str | None = None,
) -> LoggedComparison:
    """Compare versions on the split of this name and log the comparison.

    Args:
        split: the split's name.
        models: versions as ``select`` reads them; none means every version evaluated on the split.
        tracking: where evaluations are logged; MLflow must point there.
        baseline: the version to compare with; the first by a proper score, else by CCE, by default.
        conditions: compare evaluations under these, for example a file's; what they leave open is the latest content
            of the split and the latest protocol that all versions share.
        seed: of the bootstrap and of the permutation test of the metrics other than CCE.
        mark: whether these are all versions of the split, so that lists may say which may be the best.
        file: the evaluation file, which commands name.

    Raises:
        ProtocolError: the versions were measured on other splits or under other protocols.
        RegistryError: a version that is not in the registry.
        TrackingError: a version that was not evaluated.
    """
    finished = finished_evaluations(tracking, split)
    stored = {each.label: [each.model] for each in finished if each.is_stored}  # which no registry knows
    against = (stored.get(baseline) or select(baseline))[-1] if baseline is not None else None
    if models:
        named = [version for pattern in models for version in stored.get(pattern) or select(pattern)]
        distinct = {version.uri: version for version in [*named, *([] if against is None else [against])]}
        chosen = [each for each in distinct.values() if not each.has_seen(conditions.split_digest or "")]
        versions = comparable_versions(split, chosen, finished, tracking, conditions=conditions)
    else:
        versions = logged_versions(split, finished, tracking, conditions=conditions)
    comparison = compare_versions(versions, baseline=None if against is None else against.label, seed=seed)
    place = log_comparison(comparison, tracking)
    if mark and comparison.best:
        MayBeBest.of(comparison.best, comparison.versions).mark(tracking)
    return LoggedComparison(comparison, *place, against is not None, file)


def compare_stored(
    settings: EvaluationSettings, models: Sequence[str], *, baseline: str | None = None
) -> list[LoggedComparison]:
    """Compare versions by the predictions that production stored, on the rows that they share as far as they do.

    All at once where one split holds predictions of all. Else each is compared with the baseline, by default the first
    version in the rows: row by row on a split of both, or, where they share no rows, on the rows of each, by wider
    intervals. No ``models`` means all; MLflow must point where the settings say.

    Raises:
        SettingsError: fewer than two versions, or one that the rows do not have.
        TrackingError: a version that was not evaluated.
    """
    found = opened(settings.model_copy(update={"models": [*models, *([] if baseline is None else [baseline])]}))
    against = found.models[-1] if baseline is not None else None
    if against is not None and not models:  # all others, too
        found = opened(settings.model_copy(update={"models": []}))
    uris = list(dict.fromkeys(found.models))
    if len(uris) < 2:
        raise SettingsError(f"versions: {len(uris)} to compare; name at least two that have labelled rows")
    splits = split_conditions(found)

    def held(*wanted: str) -> tuple[SplitSettings, Conditions] | None:
        fitting = [pair for pair in splits if set(wanted) <= pair[0].stored.keys()]
        return max(fitting, key=lambda pair: open_split(pair[0], found.plans_folder).rows, default=None)

    finished = cache(partial(finished_evaluations, settings.tracking))

    def read(uri: str, at: tuple[SplitSettings, Conditions] | None) -> ComparedVersion:
        split, wanted = at or held(uri) or splits[0]
        logged = finished(split.name)
        return comparable_versions(split.name, [select(uri)[-1]], logged, settings.tracking, conditions=wanted)[0]

    def compared(group: Sequence[str], base: str | None) -> LoggedComparison:
        at = held(*group)
        versions = [read(uri, at) for uri in group]
        label = None if base is None else versions[group.index(base)].label
        comparison = compare_versions(versions, baseline=label, seed=settings.seed)
        return LoggedComparison(comparison, *log_comparison(comparison, settings.tracking))

    if held(*uris) is not None:
        return [compared(uris, against)]
    base = against or uris[0]
    return [compared([uri, base], base) for uri in uris if uri != base]


def named_baseline(written: str | None, models: Sequence[str], tracking: TrackingSettings) -> str | None:
    """The gate's ``baseline:`` as a version of the registry, for a comparison; None where no version is it yet.

    A bare alias or number is one of the first model that is compared.
    """
    if written is None or not models:
        return None
    try:
        found = baseline_version(model_name(models[0]), written, tracking, first_version="pass")
    except RegistryError:
        return None
    return None if found is None else found.uri
