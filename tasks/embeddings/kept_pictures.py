"""What the pixels of a split's pictures are like, measured once and kept beside the embeddings.

    pictures/<split digest>/<digest of how they are measured>.npz      (rows, 5), NaN where a row holds no picture

A split of other content has another digest, so what is found is of these pictures.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from congruence.kernels.trust.columns import PICTURE_COLUMNS, PICTURE_SIDE, SMALLEST
from congruence.tasks.data.digests import combine
from congruence.tasks.data.pictures import picture_table
from congruence.tasks.data.split import Split
from congruence.tasks.encoders.images import DECODING
from congruence.tasks.runtime.files import from_npz, to_npz
from congruence.tasks.store.embeddings import StoreError
from congruence.tasks.store.objects import ObjectStore


@dataclass(frozen=True)
class KeptPictures:
    """The picture statistics of splits in a store.

    Attributes:
        objects: of the store.
        max_pixels: pictures with more are not decoded.
    """

    objects: ObjectStore
    max_pixels: int

    def find(self, split: Split) -> pd.DataFrame | None:
        """Returns what ``picture_table`` said of ``split``; None where it has not been asked.

        Raises:
            StoreError: a damaged file.
        """
        key = self._key(split)
        content = self.objects.get(key)
        if content is None:
            return None
        try:
            rows = from_npz(content)["rows"].reshape(split.rows, len(PICTURE_COLUMNS))
        except (ValueError, KeyError) as error:
            said = f"{self.objects.uri}/{key} is damaged ({error}); delete this file and run again"
            raise StoreError(said) from error
        return pd.DataFrame(rows, columns=list(PICTURE_COLUMNS))

    def measure(self, split: Split) -> pd.DataFrame:
        """Decode and measure every picture of ``split``, and keep the numbers."""
        table = picture_table(split, self.max_pixels)
        self.objects.put(self._key(split), to_npz({"rows": table.to_numpy()}))
        return table

    def _key(self, split: Split) -> str:
        how = repr((PICTURE_COLUMNS, PICTURE_SIDE, SMALLEST, DECODING, self.max_pixels))
        return f"pictures/{split.digest}/{combine([how.encode()])}.npz"
