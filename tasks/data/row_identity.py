"""Which rows were seen before: an identity for each row of a split, by its key and the digest of its input.

A corrected target leaves a row what it was; a key that names another input is another row. Rows without a key are
identified by their input, and copies of one input by their number.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from congruence.tasks.data.digests import ROW_BYTES
from congruence.tasks.data.split import Split
from congruence.tasks.runtime.files import whole_file

_BYTES = 8


def kept_identities(split: Split, folder: Path) -> npt.NDArray[np.uint64]:
    """``row_identities``, read from ``folder`` where they were asked for before."""
    path = folder / f"{split.digest}.rows.npy"
    if not path.exists():
        with whole_file(path) as stream:
            np.save(stream, row_identities(split))
    rows: npt.NDArray[np.uint64] = np.load(path)
    return rows


def row_identities(split: Split) -> npt.NDArray[np.uint64]:
    """(rows,): equal for the same row in whatever file and order; of other rows with probability 2^-64 a pair."""
    digests = np.frombuffer(split.input_digests(), dtype=f"V{ROW_BYTES}")
    if split.has_keys:
        names = split.keys_of(split.shards)
    else:
        names = pd.Series(digests.tolist()).groupby(digests.tolist()).cumcount().to_numpy()
    parts = (
        blake2b(str(name).encode() + b"\0" + digest.tobytes(), digest_size=_BYTES).digest()
        for name, digest in zip(names, digests, strict=True)
    )
    return np.frombuffer(b"".join(parts), dtype="<u8").astype(np.uint64)
