"""What a page's scripts read, packed: of a version the shown rows by column, their laws, and the bins of features.

And the templates of all pages, which are filled here.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from congruence.kernels.arrays import Array
from congruence.kernels.conditional_calibration.regions import calibration_by_group
from congruence.kernels.distributions import Distribution
from congruence.kernels.marginal_calibration import actual_over_expected, has_total
from congruence.kernels.pit import ORDERS, pit_scores
from congruence.kernels.rng import stream
from congruence.kernels.score_parts import QUANTILE_LEVELS
from congruence.tasks.scores.evaluation import Evaluation
from congruence.tasks.scores.metrics.metric import Rows
from congruence.tasks.scores.metrics.registry import REGION, column_labels, metric_of
from congruence.tasks.scores.points import is_numeric, searched_rows, slice_groups, tenths
from congruence.tasks.sentences.calibration import percent, probability, short_name, significant

if TYPE_CHECKING:
    from PIL.Image import Image

EVIDENCE = "evidence"
MOST_COLUMNS = 40
BUDGET = 3_500_000
"""Bytes of all columns: with laws and pictures the page stays below 6 MB."""


def page_data(evaluation: Evaluation) -> dict[str, Any]:
    """What the scripts of the page of ``evaluation`` read: rows, columns, laws, along, ..., as JSON values."""
    scores, features = evaluation.valid_scores, evaluation.features
    if features is not None and features.empty:
        features = None
    looked_at = evaluation.embedding_map if features is None else features
    known = None if looked_at is None else np.searchsorted(scores.index.to_numpy(), looked_at.index.to_numpy())
    chosen = shown_rows(scores, known, most=_room(evaluation), seed=evaluation.seed)
    rows = scores.index.to_numpy()[chosen]
    columns = [number_column(name, scores[name].iloc[chosen].to_numpy(float), label)
               for name, label in column_labels().items()
               if name in scores]  # fmt: skip
    columns += _calibration(scores, chosen, is_wrong=evaluation.verdict.is_wrong)
    for name in [REGION, *evaluation.slice_names]:
        if name in scores:
            codes, values = slice_groups(scores[name])
            key, label = (REGION, "region of the inputs") if name == REGION else (f"{SLICE}{name}", name)
            columns.append(coded_column(key, codes[chosen], [str(value) for value in values], label))
    if features is not None:
        columns += _features(features, rows)
    picture, law = evaluation.embedding_map, evaluation.predictive
    is_vector = evaluation.targets is not None and evaluation.targets.ndim > 1
    plane = None if picture is None else {"width": picture.shape[1], **numbers(picture.reindex(rows).to_numpy())}
    pit = np.histogram(scores["pit"].to_numpy(float), 20, (0.0, 1.0))[0].tolist() if "pit" in scores else []
    return {
        "title": evaluation.model.label,
        "wrong": evaluation.verdict.is_wrong,
        "rows": {"split": evaluation.split.rows, "valid": evaluation.split.valid_rows, "shown": len(chosen)},
        "numbers": rows.tolist(),
        "keys": [str(key)[:LETTERS] for key in scores["key"].iloc[chosen].tolist()],
        "columns": columns,
        "plane": plane,
        "features": [] if features is None else [str(name) for name in features],
        "discrete": law is not None and law.is_discrete,
        "law": {} if law is None or is_vector else drawn_laws(law, chosen),
        "along": _along(evaluation, scores, features),
        "pit": pit,
        "levels": _by_level(evaluation),
        "pictures": _pictures(evaluation, rows.tolist()),
        "images": evaluation.thumbnails is not None,
    }  # fmt: skip


def _room(evaluation: Evaluation) -> int:
    features = 0 if evaluation.features is None else min(MOST_COLUMNS, len(evaluation.features.columns))
    columns = len(column_labels()) + len(ORDERS) + features + len(evaluation.slice_names) + 3
    plane = 0 if evaluation.embedding_map is None else evaluation.embedding_map.shape[1]
    return int(min(MOST_ROWS, BUDGET // (16 * (columns + plane) // 3 + 24)))


def _calibration(scores: pd.DataFrame, chosen: Array, *, is_wrong: bool) -> list[dict[str, Any]]:
    """The smoothed scores around each row, the strongest of them, and of a wrong version the fault by its name."""
    orders = [f"calibration_{order}" for order in ORDERS]
    if not set(orders) <= set(scores.columns):
        return []
    around = np.column_stack([scores[name].iloc[chosen].to_numpy(float) for name in orders])
    labels = [f"{order} around it (in SD)" for order in ORDERS]
    found = [number_column(*each) for each in zip(orders, around.T, labels, strict=True)]
    strongest = np.nanmax(np.abs(around), axis=1) if len(around) else np.empty(0)
    found.append(number_column(EVIDENCE, strongest, "strength of evidence (in SD)"))
    if is_wrong and "calibration_fault" in scores:
        names = ["", *(short_name(order, sign) for order in ORDERS for sign in (1.0, -1.0))]
        of = pd.Index(ORDERS).get_indexer(pd.Index(scores["calibration_fault"].iloc[chosen]))
        sign = around[np.arange(len(of)), of] > 0.0
        codes = np.where(of < 0, 0, 2 * of + np.where(sign, 1, 2))
        found.append(coded_column("calibration_fault", codes, names, "fault around it"))
    return found


def _features(features: pd.DataFrame, rows: Array) -> list[dict[str, Any]]:
    known = features.reindex(rows)
    found = []
    for name in list(features.columns)[:MOST_COLUMNS]:
        column = known[name]
        if is_numeric(column):
            found.append(number_column(str(name), column.to_numpy(float, na_value=np.nan)))
        else:
            found.append(category_column(str(name), column))
    return found


def _along(evaluation: Evaluation, scores: pd.DataFrame, features: pd.DataFrame | None) -> list[dict[str, Any]]:
    """A record a feature or slice, what explains most first; none of constant columns."""
    targets = evaluation.targets
    if targets is None or targets.ndim > 1 or not {"pit", "mean", "std"} <= set(scores.columns):
        return []
    columns = scores[[name for name in evaluation.slice_names if name in scores]]
    places = np.arange(len(scores))
    if features is not None:
        at_random = searched_rows(len(scores), evaluation.seed)
        features = features.loc[features.index.intersection(scores.index[np.sort(at_random)])]  # without the worst
        columns = pd.concat(
            [features, columns.loc[features.index].drop(columns=features.columns, errors="ignore")], axis=1
        )
        places = np.searchsorted(scores.index.to_numpy(), features.index.to_numpy())
    mean, std, pit = (scores[name].iloc[places].to_numpy(float) for name in ("mean", "std", "pit"))
    rows, of_pit = (targets[places], mean, std), pit_scores(pit)
    found = []
    for name in list(columns.columns)[:MOST_FEATURES]:
        codes, labels, edges = bins_of(columns[name])
        if len(labels) > 1:
            explained, read = calibration_by_group(codes, len(labels), *rows, of_pit)
            drawn = evaluation.stated == "quantiles"  # its means go through stated quantiles: nothing is said of them
            del read["bias" if drawn else "level"]
            if not drawn and has_total(*rows[:2]):
                ratio = actual_over_expected(codes, len(labels), *rows)
                read["ratio"] = np.stack([ratio.ratio, ratio.low, ratio.high, ratio.null_low, ratio.null_high])
            numbers = {part: [*map(rounded, each)] if each.ndim > 1 else rounded(each) for part, each in read.items()}
            named = {"name": str(name), "bins": labels, "edges": edges, "explained": float(f"{explained:.4g}")}
            found.append({**named, **numbers})
    return sorted(found, key=lambda each: -each["explained"])


def _by_level(evaluation: Evaluation) -> dict[str, list[float | None]]:
    """The pinball loss by level, of the version and of the law of all targets, and what recalibration would take off.

    Of the same rows as the CRPS's parts among the metrics.
    """
    predictive, targets = evaluation.predictive, evaluation.targets
    if "crps_miscalibration" not in evaluation.metrics or predictive is None or targets is None:
        return {}
    found = Rows({}, targets, predictive, evaluation.weights, evaluation.seed).decomposition
    return {name: rounded(getattr(found, name)) for name in ("levels", "score", "miscalibration", "uncertainty")}


_PICTURES, _TEXTS = 36, 300


def _pictures(evaluation: Evaluation, rows: list[int]) -> dict[int, str]:
    """Thumbnails or texts of the worst of ``rows``, of the best, and of some between, by position; pictures as data
    addresses."""
    read: Callable[[Sequence[int]], Sequence[Image | str]] | None = evaluation.thumbnails or evaluation.texts
    if read is None or not rows:
        return {}
    each = (_PICTURES if evaluation.thumbnails else _TEXTS) // 3
    places = sorted({*range(min(each, len(rows))), *np.linspace(0, len(rows) - 1, each).astype(int).tolist(),
                     *range(max(0, len(rows) - each), len(rows))})  # fmt: skip
    found = {}
    for place, image in zip(places, read([rows[place] for place in places]), strict=True):
        if isinstance(image, str):
            found[place] = image
            continue
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, "JPEG", quality=80)
        found[place] = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    return found


MOST_ROWS = 20_000
WORST = 0.1
"""The share of the shown rows that are the worst of all."""

_DRAWN = 50
"""Rows drawn for each that is shown, of which regions have their share."""


def shown_rows(scores: pd.DataFrame, features: Array | None, *, most: int = MOST_ROWS, seed: int = 0) -> Array:
    """Positions among the valid rows, the worst (by CCE) first, then the others in order.

    Of more than ``most`` rows a tenth of those are the worst, the others drawn evenly from the regions of the inputs,
    in proportion to their rows. Where ``features`` are positions whose named features are known, only these are shown.
    """
    cce = scores["cce"].to_numpy()
    by_cce = np.argsort(-cce, kind="stable")
    if len(cce) <= most and features is None:
        return np.asarray(by_cce)
    known = np.ones(len(cce), dtype=bool)
    if features is not None and len(features) < len(cce):
        known = np.zeros(len(cce), dtype=bool)
        known[features] = True
    worst = by_cce[: max(1, int(WORST * most))]
    known[worst] = False
    rest = np.flatnonzero(known)
    room = most - len(worst)
    if len(rest) > room:
        mixed = rest[stream(seed, "rows of a report").permutation(len(rest))[: _DRAWN * room]]
        if REGION in scores:
            strata = pd.factorize(scores[REGION].iloc[mixed])[0]
            mixed = mixed[np.argsort(strata, kind="stable")]
        rest = mixed[np.linspace(0, len(mixed) - 1, room).astype(int)]
    return np.concatenate([worst, rest[np.argsort(-cce[rest], kind="stable")]])


DRAWN = 3_000
"""Rows whose laws are written down; of all others mean and spread are known, which for normal laws is everything."""

_COUNTS = 96
_TAIL = 1e-3


def drawn_laws(predictive: Distribution, rows: Array) -> dict[str, Any]:
    """The laws of the first ``DRAWN`` of ``rows``: nothing for normal laws, masses of counts, else quantiles.

    Masses are those of ``first`` and the counts after it, a row at a time, at most 96; what is left out beyond is at
    most .1 % on either side. Laws of wider counts go by quantiles.
    """
    chosen = rows[:DRAWN]
    if predictive.family == "normal":
        return {"kind": "normal"}
    laws = predictive[chosen]
    if predictive.is_discrete:
        low, high = laws.quantile(np.array([_TAIL, 1.0 - _TAIL])[None, :]).T
        if np.max(high - low) < _COUNTS:
            counts = low[:, None] + np.arange(int(np.max(high - low)) + 1)
            mass = np.exp(laws.log_prob(counts))
            return {"kind": "mass", "rows": len(chosen), "width": counts.shape[1],
                    "first": numbers(low), "mass": numbers(mass)}  # fmt: skip
    quantiles = laws.predictive_quantile(QUANTILE_LEVELS[None, :])
    return {"kind": "quantiles", "rows": len(chosen), "levels": QUANTILE_LEVELS.tolist(), "at": numbers(quantiles)}


FEW_VALUES = 12
"""Numbers of at most as many distinct values are taken value by value."""

MOST_FEATURES = 60


def bins_of(values: pd.Series[Any]) -> tuple[Array, list[str], list[float] | None]:
    """The bin of each row, the bins' names, and the edges between tenths of a column of numbers."""
    is_number = is_numeric(values)
    if not is_number or values.nunique() <= FEW_VALUES:
        codes, names = slice_groups(values)
        if is_number:
            order = np.argsort([float(name) if name != "missing" else np.inf for name in names], kind="stable")
            place = np.empty_like(order)
            place[order] = np.arange(len(order))
            codes, names = place[codes], names[order]
        return codes, [str(name)[:LETTERS] for name in names], None
    return tenths(values.to_numpy(float, na_value=np.nan))


LETTERS = 60
"""The longest key or value that is shown."""


def numbers(values: Any) -> dict[str, str]:
    """Numbers of any shape, row by row, as float32."""
    return {"f32": _text(np.ascontiguousarray(values, dtype="<f4"))}


def number_column(name: str, values: Array, label: str = "") -> dict[str, Any]:
    """A column of numbers."""
    return {"name": name, "label": label or name, "kind": "number", **numbers(values)}


def category_column(name: str, values: pd.Series[Any]) -> dict[str, Any]:
    """A column of at most 30 values; rarer ones are "other"."""
    codes, names = slice_groups(values)
    return coded_column(name, codes, [str(each)[:LETTERS] for each in names])


def coded_column(name: str, codes: Array, values: list[str], label: str = "") -> dict[str, Any]:
    """A column of codes, at most 256 of them, and what each stands for."""
    packed = _text(np.ascontiguousarray(codes, dtype="u1"))
    return {"name": name, "label": label or name, "kind": "category", "u8": packed, "values": values}


def rounded(values: Any) -> list[float | None]:
    """Numbers for JSON, to six significant digits; None for what is not finite."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, dtype=float)]


def _as_json(value: Any) -> Markup:
    """JSON that may stand inside a page's script element: no letter of it ends the element."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _text(values: Array) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


SLICE = "slice:"
"""Before the name of a slice column, which may be a feature, too."""

_SCRIPTS = Path(__file__).parent / "scripts"


@cache
def _environment() -> Environment:
    folder = Path(__file__).parent / "templates"
    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": number,
        "percent": percent,
        "probability": lambda value: probability(None if value != value else value),
        "label": lambda name: metric_of(name).label.replace("_", " "),
        "as_json": _as_json,
        "evidence": lambda log: f"{np.exp(log):.3g}" if log < 14.0 else f"10^{log / np.log(10.0):.1f}",
    }
    return environment


def render(template: str, *, scripts: Sequence[str] = (), **values: Any) -> str:
    """The template of that name with its values, and with the scripts and the style of pages that people explore.

    The scripts read the value ``page``.
    """
    script = "\n".join((_SCRIPTS / f"{name}.js").read_text() for name in scripts)
    style = (_SCRIPTS / "page.css").read_text()
    return _environment().get_template(template).render(script=script, style=style, **values)


def number(value: Any, digits: int = 4) -> str:
    """A number as people read it: four significant digits, those before the point whole, a dash for nothing."""
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return str(value)
    plain = float(value)
    if plain.is_integer() and abs(plain) < 1e15:
        return f"{plain:,.0f}"
    return significant(plain, digits) if abs(plain) >= 1e-4 else f"{plain:.{digits - 1}e}"


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table by column name."""
    return [{str(key): value for key, value in record.items()} for record in frame.to_dict("records")]
