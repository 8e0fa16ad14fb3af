"""Which row a version cannot take: rows that it fails on are asked again in halves until one is left."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import pandas as pd

from congruence.kernels.distributions import Distribution
from congruence.tasks.contract.errors import ContractError

_SECONDS = 300.0
"""After so long what is found by then is said."""
_WITHOUT_ANSWER = "predict.timeout"  # every half that holds the row would take as long again
_FIRST_ROW = re.compile(r"\brows 0 to 0\b|\brow 0\b")
_ONE_OF_ONE = re.compile(r" \(1 of 1 rows are\)")

Ask = Callable[[pd.DataFrame], Distribution]


def naming_the_row(ask: Ask, frame: pd.DataFrame, keys: Callable[[int], str], error: ContractError) -> ContractError:
    """What to say of ``error``, which ``ask`` raised on ``frame``: of a row by its number in the split and its key.

    A version that fails on the first row and on the last fails on all, as far as one can tell: then the error stands as
    it is, and so it does where no half of the rows fails by itself.

    Args:
        ask: predicts rows, and counts them from 0 in its errors.
        frame: the rows, its index their numbers in the split.
        keys: the key of a row by its number.
        error: what it raised.
    """
    if _WITHOUT_ANSWER in str(error) or len(frame) == 0:
        return error
    if len(frame) > 1 and all(_refusal(ask, part) is not None for part in (frame.iloc[:1], frame.iloc[-1:])):
        return error
    found, reason = _smallest(ask, frame)
    if reason is None:
        return error
    first, last = int(found.index[0]), int(found.index[-1])
    if len(found) > 1:
        return ContractError(f"{reason}; it is one of the rows {first} to {last} of the split")
    return ContractError(_of_row(reason, f"row {first} of the split (key {keys(first)!r})"))


def refused_rows(ask: Ask, frame: pd.DataFrame) -> dict[int, str]:
    """The rows of ``frame`` that a version cannot take by themselves, and why, by row of the split.

    ``ask`` and ``frame`` are those of ``naming_the_row``.

    Raises:
        ContractError: what ``ask`` raised, where rows are refused together alone, it answers to none within its time
            limit, or the search has taken five minutes.
    """
    begun = time.monotonic()
    found: dict[int, str] = {}
    parts, refusals = [frame], []
    while parts:
        part = parts.pop()
        error = _refusal(ask, part) if len(part) else None
        if error is None:
            continue
        if _WITHOUT_ANSWER in str(error) or time.monotonic() - begun > _SECONDS:
            raise error
        refusals.append(error)
        if len(part) == 1:
            found[int(part.index[0])] = _of_row(error, "this row")
            continue
        half = len(part) // 2
        parts += [part.iloc[half:], part.iloc[:half]]
    if refusals and not found:
        raise refusals[0]
    return dict(sorted(found.items()))


def _of_row(error: ContractError, row: str) -> str:
    """``error`` of one row that was asked alone, with ``row`` for it."""
    text, named = _FIRST_ROW.subn(row, _ONE_OF_ONE.sub("", str(error)), count=1)
    text = re.sub(r"; rows are counted from row \d+ of the split", "", text)
    return text if named else f"{text}; it is {row}"


def _smallest(ask: Ask, frame: pd.DataFrame) -> tuple[pd.DataFrame, ContractError | None]:
    """The fewest consecutive rows that are refused, and why; None where nothing was gained."""
    begun = time.monotonic()
    reason = _refusal(ask, frame) if len(frame) == 1 else None
    while len(frame) > 1 and time.monotonic() - begun < _SECONDS:
        half = len(frame) // 2
        for part in (frame.iloc[:half], frame.iloc[half:]):
            refused = _refusal(ask, part)
            if refused is not None:
                frame, reason = part, refused
                break
        else:
            return frame, None  # they are refused together alone
    return frame, reason


def _refusal(ask: Ask, frame: pd.DataFrame) -> ContractError | None:
    try:
        ask(frame)
    except ContractError as error:
        return error
    return None
