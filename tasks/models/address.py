"""Where the predictions of one version on one split are kept: a small address that work carries instead of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np

from congruence.kernels.arrays import Array
from congruence.tasks.embeddings.objects import ObjectStore
from congruence.tasks.models.registry import ModelVersion
from congruence.tasks.runtime.files import digest_of

_FORMAT = 2


@dataclass(frozen=True)
class PredictionAddress:
    """The predictions of one version, read by one contract, for the valid rows of one split.

    They lie beside the embeddings, below ``<store uri>/predictions/<split digest>/<model>-<digest>/``, where the digest
    is that of the resolved contract and of which rows are valid: whatever else would be predicted lies elsewhere.

    Attributes:
        store_uri: of the embeddings, a folder or an s3:// address.
        split_digest: of the content of every row.
        model: names the version for good, whatever the registry.
        digest: of the contract and the valid rows.
        label: what people call the version.
        options: of the store's file system, as in ``StoreAddress``.
    """

    store_uri: str
    split_digest: str
    model: str
    digest: str
    label: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def of(
        cls,
        store_uri: str,
        split_digest: str,
        version: ModelVersion,
        contract: str,
        valid: Array,
        storage_options: Mapping[str, Any] | None = None,
    ) -> PredictionAddress:
        """The address of what ``version`` predicts for the ``valid`` rows, (rows,) of bool, read by that contract.

        The contract is given by its ``contract_digest``.
        """
        digest = digest_of({"format": _FORMAT, "contract": contract, "valid": mask_digest(valid)})
        return cls(store_uri, split_digest, _model_name(version), digest, version.label, storage_options or {})

    @property
    def folder(self) -> str:
        """The key below which everything of this address lies."""
        return f"predictions/{self.split_digest}/{self.model}-{self.digest}"

    @cached_property
    def objects(self) -> ObjectStore:
        """The store, opened once by each process that holds the address."""
        return ObjectStore(self.store_uri, self.options)

    def __getstate__(self) -> dict[str, Any]:
        """Without the open store."""
        return {name: value for name, value in self.__dict__.items() if name != "objects"}


def mask_digest(valid: Array) -> str:
    """32 hexadecimal digits for which of how many rows are valid."""
    mask = np.asarray(valid, dtype=bool)
    return sha256(len(mask).to_bytes(8, "little") + np.packbits(mask).tobytes()).hexdigest()[:32]


def _model_name(version: ModelVersion) -> str:
    """MLflow's id of the logged model; versions of MLflow 2 have none, but name the run that logged them."""
    if version.model_id:
        return version.model_id
    return "v-" + digest_of([version.name, version.version, version.uri, version.run_id])
