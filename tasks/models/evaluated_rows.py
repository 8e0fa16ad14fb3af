"""The valid rows of a split by addresses: their holder reads embeddings, targets and predictions itself.

What travels between processes is this: where the split lies, where its embeddings are kept and where each version's
predictions are. Nothing is opened before it is asked for, and a process opens each thing once. A version predicts each
shard once; where it fails on some rows, these are asked again in halves until one is left, which is named.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pandas as pd

from congruence.kernels.arrays import Array, require_weights
from congruence.kernels.dependence.blocks import RowDependence
from congruence.kernels.distributions import Distribution
from congruence.tasks.contract import ContractReport, check_contract
from congruence.tasks.contract.model import contract_digest, failure_text
from congruence.tasks.contract.signature import EXPOSURE, require_counts
from congruence.tasks.data.settings import SampleDesign, Shard
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.base import InvalidRow
from congruence.tasks.encoders.images import decode_image
from congruence.tasks.models.processes import ServedVersion, warm_model
from congruence.tasks.runtime.errors import ContractError
from congruence.tasks.settings.sections import EncoderSettings
from congruence.tasks.store.embeddings import EmbeddingStore, StoreAddress, open_store_cached
from congruence.tasks.store.objects import KeptPredictions, NotPredictedError, ObjectStore, concatenate, object_name

CONTRACT_ROWS = 32
RATE_ROWS = 2048
"""Rows, of tables and texts, that tell predicted rates from counts where the split names an exposure."""
BLOCK_ROWS = 2**16
FEWEST_ROWS = 2**11  # of a block, below which reading it and adding it up would show
BLOCKS = 16  # of a short split: enough for some workers to end together


@dataclass(frozen=True)
class EvaluatedRows:
    """A split with its embeddings and predictions.

    Attributes:
        split: the split.
        address: where its embeddings are kept.
        served: the versions whose predictions are kept or can be made, by label.
        left_out: rows that are not evaluated though they may have an embedding, and why, by row of the split.
    """

    split: Split = field(repr=False)
    address: StoreAddress
    served: dict[str, ServedVersion] = field(default_factory=dict)
    left_out: Mapping[int, str] = field(default_factory=dict)

    @property
    def objects(self) -> ObjectStore:
        """Where embeddings, predictions and measurements lie."""
        return ObjectStore(self.address.uri, self.address.options)

    @property
    def store(self) -> EmbeddingStore:
        """The embeddings, opened once per process."""
        return open_store_cached(self.address, self.split)

    @cached_property
    def valid(self) -> Array:
        """Which rows of the split are evaluated, (rows,)."""
        valid = np.asarray(self.store.valid())
        valid[list(self.left_out)] = False
        return valid

    def reasons(self) -> dict[int, str]:
        """Why, for each row that is not evaluated, by row of the split."""
        return {**self.left_out, **self.store.reasons()}

    def embeddings(self) -> Array:
        """Of the valid rows, as the encoder gave them, (v, d)."""
        return np.asarray(self.store.read()[self.valid])

    def embeddings_of(self, chosen: Array) -> Array:
        """Of some of the valid rows, by their numbers among these in increasing order, (k, d), read block by block."""
        ends = np.cumsum(self.sizes)
        parts = [np.empty((0, self.store.dimension), dtype=np.float32)]
        for block, (size, end) in enumerate(zip(self.sizes, ends.tolist(), strict=True)):
            here = chosen[np.searchsorted(chosen, end - size) : np.searchsorted(chosen, end)]
            if len(here):
                parts.append(self.inputs(block)[here - (end - size)])
        return np.concatenate(parts)

    def predict(self, version: str, shards: Sequence[Shard]) -> int:
        """Have a version predict the valid rows of ``shards`` into the store, where they are not kept yet.

        To run on a worker. Each shard is stored as soon as it is predicted, so that is what a kill costs.

        Returns:
            The rows that were predicted, in number.

        Raises:
            ContractError: the version cannot be loaded, or its output is not what its contract says; names version,
                rows and reason. The other versions are not concerned.
            MlflowException: MLflow does not answer; try again later.
        """
        served, kept, asked = self.served[version], self._kept(version), dict(self._named(shards))
        lacking = kept.missing(list(asked))
        if not lacking:
            return 0
        model, first, rows = warm_model(served), None, 0
        for name in lacking:
            shard = asked[name]
            frame = model_frame(self.split, shard)[self._mask(shard)]
            try:
                found = model.predict(frame, start=shard.start)
            except ContractError as error:
                keys = dict(enumerate(self.split.keys(shard), shard.start))
                raise naming_the_row(model.predict, frame, keys, error) from error
            first = found[:1] if first is None else first
            try:
                concatenate([first, found[:1]])
            except ContractError as error:
                raise ContractError(f"{served.label}: {error}") from error
            kept.write(name, found)
            rows += len(found)
        return rows

    def refused(self, version: str, shards: Sequence[Shard]) -> dict[int, str]:
        """The valid rows of ``shards`` that a version gives no prediction for, and why, by row of the split.

        To run on a worker.

        Raises:
            ContractError: see ``refused_rows``; or the version cannot be loaded.
            MlflowException: MLflow does not answer.
        """
        model = warm_model(self.served[version])
        found: dict[int, str] = {}
        for shard in shards:
            found |= refused_rows(model.predict, model_frame(self.split, shard)[self._mask(shard)])
        return found

    def all_predictive(self, version: str) -> Distribution:
        """The predictions of a version at the valid rows."""
        return self._predictive(version, self.split.shards)

    def forget(self, version: str) -> None:
        """Remove the kept predictions of a version for these rows, so that the model is asked again."""
        if self.served[version].stored is None:
            self._kept(version).remove([name for name, _ in self._named(self.split.shards)])

    def of_versions(self, versions: Sequence[str]) -> EvaluatedRows:
        """These rows with the predictions of some versions alone: all that a task on them needs."""
        served = {version: self.served[version] for version in versions}
        return EvaluatedRows(self.split, self.address, served, self.left_out)

    @cached_property
    def blocks(self) -> list[list[Shard]]:
        """Neighbouring shards, in groups of up to 65,536 rows with at least one valid one."""
        largest = int(np.clip(sum(shard.rows for shard in self.split.shards) // BLOCKS, FEWEST_ROWS, BLOCK_ROWS))
        groups: list[list[Shard]] = []
        held = 0
        for shard in self.split.shards:
            if not groups or held + shard.rows > largest:
                groups.append([])
                held = 0
            groups[-1].append(shard)
            held += shard.rows
        return [group for group in groups if self.valid[group[0].start : group[-1].stop].any()]

    @cached_property
    def sizes(self) -> list[int]:
        """Valid rows of each block."""
        return [int(self.valid[self._rows_of(block)].sum()) for block in range(len(self.blocks))]

    def inputs(self, block: int) -> Array:
        """Embeddings of the valid rows of a block, (rows, d), as the encoder gave them."""
        rows = self._rows_of(block)
        return np.asarray(self.store.read(rows)[self.valid[rows]])

    def targets(self, block: int | None = None) -> Array:
        """Of the valid rows, or of those of a block, (rows,) or (rows, q)."""
        shards = () if block is None else self.blocks[block]
        return np.asarray(self.split.targets(*shards)[self.valid[self._rows_of(block)]])

    def design(self, block: int | None = None) -> SampleDesign:
        """Groups, times, weights and exposures of the valid rows, or of those of a block, (rows,) each."""
        shards = None if block is None else self.blocks[block]
        return self.split.design(shards).rows(self.valid[self._rows_of(block)])

    def weights(self, block: int) -> Array | None:
        """What each valid row of a block counts in means, (rows,), of mean 1 over all valid rows; None for equal."""
        if self.split.settings.weight is None:
            return None
        weight = self.design(block).weight
        return None if weight is None else weight / self._mean_weight

    @cached_property
    def _mean_weight(self) -> float:
        weight = self.design().weight
        return 1.0 if weight is None else float(np.mean(require_weights(weight, len(weight))))

    def row_dependence(self, block: int) -> RowDependence | None:
        """Which of the valid rows of a block may depend on each other."""
        return self.design(block).dependence()

    def keys(self, block: int | None = None) -> Array:
        """Numbers that stand for the keys of the valid rows, or of those of a block: scores are randomised by them."""
        if block is None:  # texts of all rows at once would take more memory than all that is made of them
            return np.concatenate([self.keys(each) for each in range(len(self.blocks))])
        rows = self._rows_of(block)
        return self.split.key_numbers(rows.start, rows.stop)[self.valid[rows]]

    def predictive(self, block: int, version: str) -> Distribution:
        """What a version predicts for the valid rows of a block."""
        return self._predictive(version, self.blocks[block])

    def __getstate__(self) -> dict[str, object]:
        """Without what was read."""
        return {name: value for name, value in self.__dict__.items() if name not in ("valid", "blocks", "sizes")}

    def _rows_of(self, block: int | None) -> slice:
        """Of the split, or of a block of it: valid ones or not."""
        shards = self.split.shards if block is None else self.blocks[block]
        return slice(shards[0].start, shards[-1].stop)

    def _mask(self, shard: Shard) -> Array:
        return self.valid[shard.start : shard.stop]

    def _kept(self, version: str) -> KeptPredictions:
        """The predictions of a version: they lie beside the embeddings, by the contract that they are read by."""
        served = self.served[version]
        inputs = served.inputs or self.split.settings.model_input_columns
        contract = contract_digest(served.contract, inputs, served.settings.isolation)
        return KeptPredictions.of(self.objects, served.version, contract)

    def _named(self, shards: Sequence[Shard]) -> list[tuple[str, Shard]]:
        """Those of ``shards`` that have valid rows, with the names of the predictions for these: one for equal ones."""
        masks = ((shard, self._mask(shard)) for shard in shards)
        return [(object_name(self.split, shard, mask), shard) for shard, mask in masks if mask.any()]

    def _predictive(self, version: str, shards: Sequence[Shard]) -> Distribution:
        """Read from the store, or from the split; what is missing, as after a clean-up, is predicted again."""
        served = self.served[version]
        if served.stored is not None:
            span = Shard(0, shards[0].start, shards[-1].stop - shards[0].start, "")
            frame, mask = model_frame(self.split, span, list(served.stored.columns)), self._mask(span)
            return warm_model(served).predict(frame if mask.all() else frame[mask], start=span.start)
        kept, names = self._kept(version), [name for name, _ in self._named(shards)]
        try:
            return kept.read(names)
        except NotPredictedError:
            self.predict(version, shards)
            return kept.read(names)


def model_frame(split: Split, shard: Shard, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """``columns`` of ``shard``: by default the model inputs, and predictions that are stored beside them.

    The exposure of its rows, where the split names one, is the column ``EXPOSURE``.
    """
    asked = [*split.settings.model_input_columns, *split.settings.stored_columns] if columns is None else columns
    frame, exposure = split.frame(shard, asked), split.settings.exposure and split.design([shard]).exposure
    return frame if exposure is None else frame.assign(**{EXPOSURE: exposure})


def contract_rows(split: Split, most: int, *, missing: bool = False) -> tuple[pd.DataFrame, Array | None]:
    """Model inputs and targets of the first rows that will be evaluated, as far as one can tell: at most ``most``.

    Left out are rows without a finite target, or whose input cannot be read (rows may be ``missing`` features): they
    will have no embedding, so no version is asked for them. Targets are None where the split has none.
    """
    first, kind = split.shards[0], split.settings.input_kind
    frame = model_frame(split, first)
    targets = split.targets(first) if split.settings.target_columns else None
    if kind == "features":
        usable = np.ones(len(frame), dtype=bool)
        usable[list(split.features(first, missing=missing)[1])] = False
    else:
        needed = [name for name in frame.columns if name in split.settings.input_columns]
        usable = frame[needed].notna().all(axis=1).to_numpy()
    if targets is not None:
        usable = usable & np.isfinite(targets.reshape(len(frame), -1)).all(axis=1)
    rows = np.flatnonzero(usable)
    if kind == "image":
        decoded = (row for row, read in enumerate(split.input_readers(first)) if usable[row] and _is_image(read))
        rows = np.array(list(islice(decoded, most)) or rows, dtype=np.int64)
    return frame.iloc[rows[:most]], None if targets is None else targets[rows[:most]]


def _is_image(read: Callable[[], Any]) -> bool:
    try:
        decode_image(read(), EncoderSettings().max_pixels)
    except InvalidRow:
        return False
    return True


def try_contract(served: ServedVersion, split: Split, *, missing: bool = False) -> ContractReport:
    """Load the version and try its contract on a few rows of ``split``, before the long work. To run on a worker.

    ``missing``: rows that lack some features are among those that it will be asked for.

    Raises:
        ContractError: see ``check_contract``.
        MlflowException: MLflow does not answer.
    """
    frame, targets = contract_rows(split, CONTRACT_ROWS, missing=missing)
    model = warm_model(served)
    try:
        found = check_contract(model, frame, targets)
        if targets is not None and split.settings.exposure is not None and split.settings.input_kind != "image":
            frame, targets = contract_rows(split, RATE_ROWS, missing=missing)
            require_counts(served.label, model.predict(frame), frame, targets)
        return found
    except ContractError as error:
        keys = dict(enumerate(split.keys(split.shards[0])))
        raise naming_the_row(model.predict, frame, keys, error) from error
    except (Exception, SystemExit) as error:
        raise ContractError(f"{served.label}: its contract cannot be checked: {failure_text(error)}") from error


_SECONDS = 300.0
"""After so long what is found by then is said."""
_WITHOUT_ANSWER = "predict.timeout"  # every half that holds the row would take as long again
_FIRST_ROW = re.compile(r"\brows 0 to 0\b|\brow 0\b")
_ONE_OF_ONE = re.compile(r" \(1 of 1 rows are\)")

Ask = Callable[[pd.DataFrame], Distribution]


def naming_the_row(ask: Ask, frame: pd.DataFrame, keys: Mapping[int, str], error: ContractError) -> ContractError:
    """What to say of ``error``, which ``ask`` raised on ``frame``: of a row by its number in the split and its key.

    A version that fails on the first row and on the last fails on all, as far as one can tell: then the error stands as
    it is, and so it does where no half of the rows fails by itself.

    Args:
        ask: predicts rows, and counts them from 0 in its errors.
        frame: the rows, its index their numbers in the split.
        keys: the key of a row by its number.
        error: what it raised.
    """
    ends = [frame.iloc[:1], frame.iloc[-1:]][: len(frame)]
    if _WITHOUT_ANSWER in str(error) or len(ends) == 0:
        return error
    if len(ends) > 1 and all(_refusal(ask, part) is not None for part in ends):
        return error
    begun, half = time.monotonic(), len(frame) // 2
    for part, refused in _refused_parts(ask, [frame.iloc[:half], frame.iloc[half:]]):
        first, last = int(part.index[0]), int(part.index[-1])
        if len(part) == 1:
            return ContractError(_of_row(refused, f"row {first} of the split (key {keys[first]!r})"))
        if time.monotonic() - begun > _SECONDS:
            return ContractError(f"{refused}; it is one of the rows {first} to {last} of the split")
    return error  # rows are refused together alone


def refused_rows(ask: Ask, frame: pd.DataFrame) -> dict[int, str]:
    """The rows of ``frame`` that a version cannot take by themselves, and why, by row of the split.

    ``ask`` and ``frame`` are those of ``naming_the_row``.

    Raises:
        ContractError: what ``ask`` raised, where rows are refused together alone, it answers to none within its time
            limit, or the search has taken five minutes.
    """
    begun = time.monotonic()
    found: dict[int, str] = {}
    first: ContractError | None = None
    for part, refused in _refused_parts(ask, [frame]):
        if _WITHOUT_ANSWER in str(refused) or time.monotonic() - begun > _SECONDS:
            raise refused
        first = first or refused
        if len(part) == 1:
            found[int(part.index[0])] = _of_row(refused, "this row")
    if first is not None and not found:
        raise first
    return found


def _refused_parts(ask: Ask, parts: list[pd.DataFrame]) -> Iterator[tuple[pd.DataFrame, ContractError]]:
    """The parts that are refused and why, each before those of its halves that are, in the order of the rows."""
    left = parts[::-1]
    while left:
        part = left.pop()
        if len(part) and (error := _refusal(ask, part)) is not None:
            yield part, error
            half = len(part) // 2
            left += [part.iloc[half:], part.iloc[:half]] if half else []


def _of_row(error: ContractError, row: str) -> str:
    """``error`` of one row that was asked alone, with ``row`` for it."""
    text, named = _FIRST_ROW.subn(row, _ONE_OF_ONE.sub("", str(error)), count=1)
    text = re.sub(r"; rows are counted from row \d+ of the split", "", text)
    return text if named else f"{text}; it is {row}"


def _refusal(ask: Ask, frame: pd.DataFrame) -> ContractError | None:
    try:
        ask(frame)
    except ContractError as error:
        return error
    return None
