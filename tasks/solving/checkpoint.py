"""The iterate of a long solve in a file: a run that dies goes on from its last pass."""

from __future__ import annotations

import hashlib
import logging
import time
from contextlib import suppress
from pathlib import Path

import numpy as np

from congruence.kernels.arrays import Array
from congruence.kernels.solvers import Iterate
from congruence.tasks.runtime.files import sweep, whole_file

logger = logging.getLogger(__name__)

ABANDONED_SECONDS = 7 * 24 * 3600


class CheckpointFile:
    """An iterate in one .npz file, replaced whole after every pass, so that a kill leaves the last good one.

    Args:
        path: of the file; its folder must exist.
        system: what the iterate belongs to, such as the digests of split and protocol. A file of another system or of
            other right-hand sides is not used.
    """

    def __init__(self, path: str | Path, system: str) -> None:
        self._path = Path(path)
        self._system = system
        self._key = ""

    def load(self, rhs: Array) -> Iterate | None:
        """See congruence.kernels.solvers.Checkpoint."""
        digest = hashlib.sha256(self._system.encode())
        digest.update(str(rhs.shape).encode())
        digest.update(np.ascontiguousarray(rhs).data)
        self._key = digest.hexdigest()
        try:
            with np.load(self._path, allow_pickle=False) as kept:
                if str(kept["key"]) != self._key:
                    return None
                arrays = (kept["value"], kept["residual"], kept["direction"], kept["energy"])
                return Iterate(int(kept["passes"]), *arrays)
        except FileNotFoundError:
            return None
        except Exception as error:  # zipfile, zlib and NumPy each have their own for a file that is damaged
            logger.warning("%s is damaged (%s): starting the solve over", self._path, error)
            return None

    def save(self, iterate: Iterate) -> None:
        """See congruence.kernels.solvers.Checkpoint.

        Raises:
            RuntimeError: without an earlier ``load``, which says for which right-hand sides; no run would find it.
        """
        if not self._key:
            raise RuntimeError(f"{self._path}: load(rhs) first: an iterate is kept for its right-hand sides")
        with whole_file(self._path) as file:
            np.savez(
                file,
                key=self._key,
                passes=iterate.passes,
                value=iterate.value,
                residual=iterate.residual,
                direction=iterate.direction,
                energy=iterate.energy,
            )

    def clear(self) -> None:
        """See congruence.kernels.solvers.Checkpoint."""
        self._path.unlink(missing_ok=True)


def sweep_iterates(folder: Path) -> None:
    """Remove iterates in ``folder`` that no run has touched for a week, and what killed runs left half-written."""
    sweep(folder)
    for path in folder.glob("iterate-*.npz"):
        with suppress(FileNotFoundError):  # another run may be sweeping, or done with it
            if time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                path.unlink()
