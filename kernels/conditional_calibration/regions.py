"""Groups of rows by their inputs: regions, which are clusters of embeddings, and bins of a feature.

They know the inputs alone, never the targets, so they are as exact as the whole split: in each, a version that is right
has PIT scores of mean 0 and variance 1, whatever it predicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array, end_of_range, require_matrix, to_numpy
from congruence.kernels.conditional_calibration.bases import sample_positions
from congruence.kernels.conditional_calibration.faults import shift_and_factor
from congruence.kernels.conditional_calibration.local_reading import QUANTILE_95
from congruence.kernels.conditional_calibration.reading import Place, group_readings
from congruence.kernels.dependence.blocks import DependentBlocks
from congruence.kernels.errors import InvalidInputError
from congruence.kernels.resampling import means_by_group
from congruence.kernels.rng import stream

ROWS_PER_REGION = 100
"""A mean score of 100 rows is known to .1: a shift to .1 predicted spreads, a spread factor to 8 %."""

LARGEST_NUMBER = 12
_MIDDLE = (0.1, 0.9)  # quantiles that a range spans
_NARROW = 0.6  # of the split's own range, for a range to tell something
_NAMED = 2  # features in a name
_ALL = -1.0  # of a region that is all rows of one value, which says more than any range


@dataclass(frozen=True)
class Regions:
    """A partition of n rows by their inputs.

    Attributes:
        labels: the region of each row, (n,); regions are numbered by size in a sample, the largest first.
        medoids: the row nearest to each region's centre, (k,).
        names: by features where they were given, else "region 1". A region is a cluster, and no box: eight of ten of
            its rows lie in each range, as may rows of other regions. Only "site is b" are all rows of which that is so.
    """

    labels: Array = field(repr=False)
    medoids: Array
    names: tuple[str, ...]

    @classmethod
    def of(cls, labels: Array, medoids: Array) -> Regions:
        """Returns them unnamed."""
        return cls(labels, medoids, tuple(f"region {k + 1}" for k in range(len(medoids))))

    def __len__(self) -> int:
        return len(self.medoids)

    def rows(self) -> dict[str, Array]:
        """The row numbers of each region by its name."""
        return {name: np.flatnonzero(self.labels == k) for k, name in enumerate(self.names)}

    def named(self, features: Mapping[str, Any], rows: Any | None = None) -> Regions:
        """The same regions named by ranges of features, see ``regions``.

        Args:
            features: named columns of numbers or words.
            rows: whose these are, (k,); by default all rows'.

        Raises:
            InvalidInputError: features of another length.
        """
        labels = self.labels if rows is None else self.labels[np.asarray(rows)]
        names = _names(labels, len(self), _columns(features, len(labels)))
        return Regions(self.labels, self.medoids, names)


def number_of_regions(rows: int) -> int:
    """One region per 100 rows, at least 2 and at most 12: what a report shows and a person reads."""
    return int(np.clip(rows // ROWS_PER_REGION, 2, LARGEST_NUMBER))


def regions(x: Any, *, number: int | None = None, features: Mapping[str, Any] | None = None, seed: int = 0) -> Regions:
    """Cluster rows by their embeddings, by k-means.

    Args:
        x: embeddings (n, d).
        number: of regions; see ``number_of_regions``.
        features: named columns (n,) of numbers or words; a region is named by those that vary least in it, as
            "age mostly 40 to 60, city is mostly Rome".
        seed: of the clustering's start.

    Raises:
        InvalidInputError: fewer than two rows, more regions than rows, or features of another length.
    """
    points = to_numpy(require_matrix(x, "x")).astype(np.float32)
    count = number_of_regions(len(points)) if number is None else number
    if not 1 <= count <= len(points):
        raise InvalidInputError(f"number: {count} regions of {len(points)} rows; give 1 to {len(points)}")
    positions = sample_positions(len(points), seed)
    centers = RegionCenters.of(points[positions], positions, count, seed)
    return Regions.of(centers.labels(points), centers.medoids).named(features or {})


@dataclass(frozen=True)
class RegionCenters:
    """Where the regions lie, from a sample of the rows: the others belong to the nearest.

    Attributes:
        centers: (k, d), those of the most sampled rows first.
        medoids: the sampled row nearest to each, by its position in the split, (k,).
        points: its inputs, (k, d).
    """

    centers: Array = field(repr=False)
    medoids: Array
    points: Array = field(repr=False)

    @classmethod
    def of(cls, sample: Array, positions: Array, count: int, seed: int) -> RegionCenters:
        """At most ``count`` clusters of the rows ``sample`` (s, d), at these positions of the split."""
        from sklearn.cluster import MiniBatchKMeans  # seconds, with scipy.stats: for who makes regions alone

        points = np.asarray(sample, dtype=np.float32)
        rng = stream(seed, "regions")
        count = min(count, len(points))
        model = MiniBatchKMeans(count, n_init=3, batch_size=2048, random_state=int(rng.integers(2**31)))
        found = model.fit_predict(points)
        sizes = np.bincount(found, minlength=count)
        by_size = np.argsort(-sizes, kind="stable")[: np.count_nonzero(sizes)]
        centers = model.cluster_centers_[by_size]
        nearest = np.array([int(np.argmin(np.sum((points - one) ** 2, axis=1))) for one in centers])
        return cls(centers, positions[nearest], sample[nearest])

    def labels(self, x: Array) -> Array:
        """The region of each row, (rows,)."""
        distances = np.sum(self.centers**2, axis=1) - 2.0 * np.asarray(x, dtype=np.float32) @ self.centers.T
        return np.asarray(np.argmin(distances, axis=1))


def read_regions(
    found: Regions, pit: Any, blocks: DependentBlocks | None = None, members: int | None = None
) -> list[Place]:
    """The reading of each region with two or more rows, the most wrong first: by strength times share of the rows."""
    readings, q_values = group_readings(pit, found.rows(), blocks, members)
    read = [Place(name, q_values[name], reading) for name, reading in readings.items()]
    return sorted(read, key=lambda region: -(region.reading.strength**2) * region.reading.share)


def _columns(features: Mapping[str, Any], n: int) -> dict[str, Array]:
    """Those that differ between rows: numbers as they are, others as words."""
    columns = {}
    for name, values in features.items():
        column = to_numpy(values, f"features[{name!r}]")
        if len(column) != n:
            raise InvalidInputError(f"features: {name!r} has {len(column)} rows, the embeddings {n}; match them by row")
        column = column.astype(np.float64 if column.dtype.kind in "iuf" else str)
        if column.ndim == 1 and np.unique(column).size > 1:
            columns[name] = column
    return columns


def _names(labels: Array, count: int, features: Mapping[str, Array]) -> tuple[str, ...]:
    numbers = {name: values for name, values in features.items() if values.dtype.kind == "f"}
    numbers = {name: values for name, values in numbers.items() if not np.isnan(values).all()}
    whole = {name: np.nanquantile(values, _MIDDLE) for name, values in numbers.items()}
    words = {name: np.unique(values, return_inverse=True) for name, values in features.items() if name not in numbers}
    names = []
    for k in range(count):
        members = labels == k
        found = [_range(name, values, members, *whole[name]) for name, values in numbers.items() if members.any()]
        found += [_word(name, *coded, members) for name, coded in words.items() if members.any()]
        told = sorted(part for part in found if part[0] <= _NARROW)
        several = told[: 1 if told and told[0][0] == _ALL else _NAMED]
        names.append(", ".join(text for _, text in several) or f"region {k + 1}")
    # "site is always b" beside "site is always b, age mostly up to 30" are not all rows of it.
    alike = [sum(other.split(", ")[0] == name or other == name for other in names) for name in names]
    return tuple(name if alike[k] == 1 else f"{name} (region {k + 1})" for k, name in enumerate(names))


def _range(name: str, values: Array, members: Array, low: float, high: float) -> tuple[float, str]:
    """How narrow the middle 80 % of a feature is in a region against that of the whole, or ``_ALL``; and in words."""
    if np.isnan(values[members]).all():
        return 0.0, f"{name} is always missing"
    inside_low, inside_high = np.nanquantile(values[members], _MIDDLE)
    width = (inside_high - inside_low) / (high - low) if high > low else 1.0
    first, last = (end_of_range(float(end), high - low) for end in (inside_low, inside_high))
    margin, text = 0.05 * (high - low), f"{name} mostly {first} to {last}"
    if inside_low == inside_high and np.all((known := values[np.isfinite(values)]) == np.floor(known)):
        if np.array_equal(values == inside_low, members):
            return _ALL, f"{name} is {inside_low:.15g}"
        text = f"{name} is mostly {inside_low:.15g}"
    elif inside_low <= low + margin:
        text = f"{name} mostly up to {last}"
    elif inside_high >= high - margin:
        text = f"{name} mostly from {first}"
    return float(width), text


def _word(name: str, values: Array, codes: Array, members: Array) -> tuple[float, str]:
    """How seldom the most frequent word of a region is in the whole, against there, or ``_ALL``; and in words."""
    inside, everywhere = (np.bincount(some, minlength=len(values)) for some in (codes[members], codes))
    most = int(np.argmax(inside))
    share, word = float(inside[most] / inside.sum()), str(values[most])
    if share < _MIDDLE[1] - _MIDDLE[0] or ", " in word:  # which would be two parts of a name
        return 1.0, ""
    if inside[most] == everywhere[most] == inside.sum():
        return _ALL, f"{name} is {word}"
    return float(everywhere[most] / len(codes)) / share, f"{name} is {'always' if share == 1.0 else 'mostly'} {word}"


def calibration_by_group(
    codes: Array, groups: int, targets: Array, mean: Array, std: Array, scores: Array
) -> tuple[float, dict[str, Array]]:
    """What is wrong in each of g groups of n rows.

    Args:
        codes: the group of each row, 0 to groups - 1, each of which has a row, (n,).
        groups: how many there are.
        targets: (n,).
        mean, std: of the predictions, (n,).
        scores: PIT scores, (n, 4).

    Returns:
        What share of the variance of the four PIT scores together the groups explain (the variance of their means over
        the rows, less what chance gives; 0 if right, whatever the number of groups), and by name

        - ``rows``, ``target``, ``mean``: in each group their number, mean target and mean predicted mean, (g,);
        - ``bias`` (target less mean, in the unit of the target), ``spread`` (the targets' spread over the predicted
          one), ``level``, ``skew`` and ``tails`` (mean PIT scores of orders 1, 3 and 4): (5, g), the value, the ends of
          its 95 % interval, and between which ends 95 of 100 versions that are right have it. Rows are taken as
          independent. An interval is no narrower than what the version itself states of the rows: thirty zeros do not
          say that a rate of .03 is wrong.
    """
    rows = np.bincount(codes, minlength=groups).astype(float)

    def means(values: Array) -> Array:
        return np.asarray(np.bincount(codes, values, groups) / rows)

    def mean_and_error(values: Array, right: Array) -> tuple[Array, Array]:
        mean, error = means_by_group(codes, groups, values)
        return mean, np.maximum(error, right)

    def band(value: Array, error: Array, right: Array) -> Array:
        return np.stack([value, value - error, value + error, -right, right])

    chance, noise = QUANTILE_95 / np.sqrt(rows), QUANTILE_95 * np.sqrt(means(std**2) / rows)
    of_scores = [mean_and_error(column, chance) for column in scores.T]
    level, (spread, error), skew, tails = of_scores
    # The interval of the spread factor moves the spread score by its error.
    factors = [shift_and_factor(level[0], spread + move)[1] for move in (0.0 * error, -error, error)]
    factors += [shift_and_factor(0.0, move)[1] for move in (-chance, chance)]
    apart = sum(rows @ (value - rows @ value / rows.sum()) ** 2 for value, _ in of_scores)
    whole = float(np.sum((scores - scores.mean(axis=0)) ** 2))
    explained = max(0.0, float(apart - len(of_scores) * (groups - 1)) / whole) if whole > 0.0 else 0.0
    return explained, {
        "rows": rows,
        "target": means(targets),
        "mean": means(mean),
        "bias": band(*mean_and_error(targets - mean, noise), noise),
        "level": band(*level, chance),
        "spread": np.stack(factors),
        "skew": band(*skew, chance),
        "tails": band(*tails, chance),
    }
