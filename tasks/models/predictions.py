"""The predictions of one version on one split, beside the embeddings: no shard is predicted twice.

Layout below the folder of a ``PredictionAddress``; a range is the shards that were predicted one after another, told by
its rows of the split:

    done/<start>-<stop>.json               the marker: written last, names the data by the digest of their content
    ranges/<start>-<stop>/<content>.npz    valid (stop - start,), which rows were predicted, and by their names the
                                           parameters of the family, one row for each of these

Ranges may overlap, as two processes that predict at once or a split that is cut into other shards make them: each is
whole by itself. The data lies under the digest of its own content, so of two writers the last marker decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.distributions import Distribution
from congruence.kernels.errors import CongruenceError, InvalidInputError
from congruence.tasks.contract.errors import ContractError
from congruence.tasks.data.split import Shard, runs
from congruence.tasks.models.address import PredictionAddress
from congruence.tasks.models.encoding import describe, restore
from congruence.tasks.runtime.files import DamagedError, content_digest, from_npz, sealed, to_npz, unsealed

_READ_AT_ONCE = 8

Range = tuple[int, int]
"""First row of the split and one past the last."""


class PredictionsError(CongruenceError):
    """Predictions that are missing or damaged: names the version, the rows and the remedy."""


def pending(address: PredictionAddress, shards: Sequence[Shard]) -> list[Shard]:
    """The shards that are still to be predicted, by one listing of the markers."""
    done = _union(_ranges(address))
    return [shard for shard in shards if not any(a <= shard.start and shard.stop <= b for a, b in done)]


def read_predictions(address: PredictionAddress, shards: Sequence[Shard]) -> Distribution:
    """The predictive distributions of the valid rows of ``shards``, in their order.

    Raises:
        PredictionsError: a shard that is not predicted, or damaged; the marker of what is damaged is removed, so that
            ``pending`` names it. Or no row of these shards is valid.
    """
    pieces = list(_pieces(address, shards))
    distinct = list(dict.fromkeys(found for found, _, _ in pieces))
    with ThreadPoolExecutor(_READ_AT_ONCE) as threads:
        parts = dict(zip(distinct, threads.map(lambda found: read_range(address, found), distinct), strict=True))
    chosen = []
    for found, start, stop in pieces:
        valid, distribution = parts[found]
        first, last = (int(valid[: row - found[0]].sum()) for row in (start, stop))
        if distribution is not None and first < last:
            chosen.append(distribution if last - first == len(distribution) else distribution[first:last])
    if not chosen:
        raise PredictionsError(f"{address.label}: no row of {_rows(shards)} is valid, so none was predicted")
    return concatenate(chosen)


def forget(address: PredictionAddress) -> None:
    """Remove everything at this address, so that the version is asked again."""
    keys = address.objects.sizes(address.folder)
    markers = [key for key in keys if key.startswith(f"{address.folder}/done/")]
    address.objects.remove(markers)
    address.objects.remove(key for key in keys if key not in set(markers))


def write_range(
    address: PredictionAddress, shards: Sequence[Shard], masks: Sequence[Array], distribution: Distribution | None
) -> None:
    """Store what was predicted for shards without a gap between them: the data first, the marker last.

    ``masks`` say which rows of each shard were predicted; the distribution has one row for each, and is None for none.
    """
    start, stop, valid = shards[0].start, shards[-1].stop, np.concatenate(masks).astype(bool)
    rows = 0 if distribution is None else len(distribution)
    without_gap = all(a.stop == b.start for a, b in pairwise(shards))
    if not without_gap or len(valid) != stop - start or int(valid.sum()) != rows:
        raise PredictionsError(
            f"{address.label}: {rows} predictions of {int(valid.sum())} valid rows in masks of {len(valid)} rows for "
            f"rows {start} to {stop - 1}; give shards in a row, a mask for each, and a prediction for each valid row"
        )
    description, arrays = describe(distribution) if distribution is not None else (None, {})
    data = to_npz({**arrays, "valid": valid})
    content = content_digest(data)
    address.objects.put(_data_key(address, (start, stop), content), data)
    marker = {
        **_header(address, (start, stop)),
        "version": address.label,
        "valid_rows": rows,
        "distribution": description,
        "content": content,
    }
    address.objects.put(_marker_key(address, (start, stop)), sealed(marker))


def read_range(address: PredictionAddress, found: Range) -> tuple[Array, Distribution | None]:
    """Which rows of a range are valid, and their distributions.

    Raises:
        PredictionsError: it is damaged; its marker is then removed.
    """
    content = address.objects.get(_marker_key(address, found))
    if content is None:
        raise _error(address, found, "are not predicted")
    read = _read_checked(address, found, content)
    if not isinstance(read, str):
        return read
    if address.objects.get(_marker_key(address, found)) == content:  # nobody has made it again meanwhile
        address.objects.remove([_marker_key(address, found)])
    raise _error(address, found, read)


def remove_damaged(address: PredictionAddress, shards: Sequence[Shard]) -> None:
    """Read what is stored of ``shards`` and remove the markers of what is damaged, so that it is made again."""
    first, last = shards[0].start, shards[-1].stop
    for found in _ranges(address):
        if found[0] < last and first < found[1]:
            try:
                read_range(address, found)
            except PredictionsError:
                continue


def concatenate(parts: Sequence[Distribution]) -> Distribution:
    """The rows of several parts of one version's predictions.

    Raises:
        ContractError: the parts are not of one family and shape.
    """
    if len(parts) == 1:
        return parts[0]
    try:
        return type(parts[0]).concatenate(parts)
    except (InvalidInputError, ValueError, AttributeError, KeyError) as error:
        raise ContractError(
            f"predictions of several shards do not fit together ({error}); a version must give every row the same "
            "number of samples, quantiles or components"
        ) from error


def _read_checked(address: PredictionAddress, found: Range, content: bytes) -> tuple[Array, Distribution | None] | str:
    try:
        marker = unsealed(content)
    except DamagedError:
        return "have a damaged marker"
    expected = _header(address, found)
    if any(marker.get(name) != value for name, value in expected.items()):
        return "have a marker of something else"
    data = address.objects.get(_data_key(address, found, marker["content"]))
    if data is None or content_digest(data) != marker["content"]:
        return "are gone" if data is None else "are damaged: they do not have their checksum"
    arrays = from_npz(data)
    description: dict[str, Any] | None = marker["distribution"]
    return arrays["valid"], None if description is None else restore(description, arrays)


def _pieces(address: PredictionAddress, shards: Sequence[Shard]) -> Iterator[tuple[Range, int, int]]:
    """The parts of stored ranges, as rows of the split, that together are ``shards``."""
    ranges = _ranges(address)
    for start, stop in runs(shards):
        row = start
        while row < stop:
            covering = [found for found in ranges if found[0] <= row < found[1]]
            if not covering:
                raise _error(address, (row, stop), "are not predicted")
            best = max(covering, key=lambda found: found[1])
            yield best, row, min(stop, best[1])
            row = best[1]


def _ranges(address: PredictionAddress) -> list[Range]:
    """The rows of every marker, in their order."""
    names = (key.rpartition("/")[2] for key in address.objects.sizes(f"{address.folder}/done", 1))
    spans = (name.removesuffix(".json").split("-") for name in names)
    return sorted((int(start), int(stop)) for start, stop in spans)


def _union(ranges: Sequence[Range]) -> list[Range]:
    """Sorted ranges, those that overlap or touch made one."""
    result: list[Range] = []
    for start, stop in ranges:
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(stop, result[-1][1]))
        else:
            result.append((start, stop))
    return result


def _header(address: PredictionAddress, found: Range) -> dict[str, Any]:
    named = {"split": address.split_digest, "model": address.model, "digest": address.digest}
    return {**named, "start": found[0], "stop": found[1]}


def _data_key(address: PredictionAddress, found: Range, content: str) -> str:
    return f"{address.folder}/ranges/{_name(found)}/{content}.npz"


def _marker_key(address: PredictionAddress, found: Range) -> str:
    return f"{address.folder}/done/{_name(found)}.json"


def _name(found: Range) -> str:
    return f"{found[0]:012d}-{found[1]:012d}"


def _rows(shards: Sequence[Shard]) -> str:
    return f"rows {shards[0].start} to {shards[-1].stop - 1}" if shards else "no shards"


def _error(address: PredictionAddress, found: Range, what: str) -> PredictionsError:
    return PredictionsError(
        f"{address.label}: the predictions of rows {found[0]} to {found[1] - 1} {what} ({address.folder}); run the "
        "evaluation again: it predicts these rows again and keeps the others"
    )
