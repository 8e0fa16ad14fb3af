"""How many files of the kernels a reader walks through from a call to its number."""

import sys
import threading
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

from congruence.kernels import Normal, Polynomial, Split, prepare

ROWS = 60
RNG = np.random.default_rng(0)
X = RNG.standard_normal((ROWS, 3))
Y = X[:, 0] + RNG.standard_normal(ROWS)
LAW = Normal(X[:, 0], 1.0)


def walked(call: Callable[[Split], object]) -> set[str]:
    """The files of the kernels that ran."""
    files: set[str] = set()

    def seen(frame: FrameType, event: str, _: object) -> None:
        _, inside, file = frame.f_code.co_filename.partition("/congruence/kernels/")
        if event == "call" and inside:
            files.add(file)

    split = prepare(X, input_kernel=Polynomial(degree=3, gamma=1.0, coef0=1.0))
    threading.setprofile(seen)
    sys.setprofile(seen)
    try:
        call(split)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return files


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (lambda split: split.conditional_congruence_error(Y, LAW), 12),
        (lambda split: split.congruence_test(Y, LAW, draws=19), 15),
    ],
    ids=["error", "test"],
)
def test_a_number_is_made_in_few_files(call: Callable[[Split], object], most: int) -> None:
    found = walked(call)
    assert found, "nothing was seen"
    assert len(found) <= most, sorted(found)
