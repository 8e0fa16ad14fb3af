"""The evaluation file's ``cluster:``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from congruence.tasks.runtime.memory import CARD_SHARE_VARIABLE
from congruence.tasks.settings.strict import Strict


class TlsSettings(Strict):
    """PEM files with which a client shows who it is, and tells whether a scheduler is its own.

    Attributes:
        ca_file: certificates of those who sign for schedulers and workers.
        cert_file: this client's certificate.
        key_file: its private key.
    """

    ca_file: Path
    cert_file: Path
    key_file: Path


class ClusterSettings(Strict):
    """Which Dask cluster an evaluation runs on.

    ``kind``: ``threads`` (in this process), ``local`` (worker processes on this machine), ``cuda`` (one worker per GPU,
    needs the [gpu] extra), ``address`` (an existing scheduler), ``kubernetes`` (the Dask operator, needs the
    [kubernetes] extra), ``spec`` (any Dask cluster class with its arguments, in a file).
    """

    kind: Literal["threads", "local", "cuda", "address", "kubernetes", "spec"] = "local"
    workers: int | None = Field(default=None, ge=1, description="worker processes; by default one per core (at most 8)")
    memory_per_worker: str | None = Field(default=None, description='for example "8 GiB"; by default an even share')
    address: str | None = Field(
        default=None, description="scheduler address of kind address: tcp://host:8786, or tls://host:8786"
    )
    tls: TlsSettings | None = Field(default=None, description="certificates for an address that begins with tls://")
    file: Path | None = Field(default=None, description="of kind spec: a cluster file, with class: and arguments:")
    image: str | None = Field(default=None, description="container image of kind kubernetes")
    namespace: str = Field(default="default", description="of kind kubernetes")
    card_memory: float = Field(
        default=0.8, gt=0, le=0.95, description="share of a card that evaluations may take together (kind cuda)"
    )
    evaluations_per_card: int = Field(
        default=1, ge=1, description="evaluations that may run on a card at a time and share card_memory (kind cuda)"
    )
    protocol: Literal["tcp", "ucx"] | None = Field(
        default=None,
        description="of kind cuda; by default ucx between several cards, tcp to one; with ucx the process that starts "
        "the cluster has a context on the first card, too",
    )
    dashboard: bool = Field(default=False, description="serve the Dask dashboard on a free loopback port")

    @model_validator(mode="after")
    def _complete(self) -> ClusterSettings:
        if self.kind == "address" and self.address is None:
            raise ValueError("kind 'address' needs address: tcp://host:8786")
        if self.tls is not None and not (self.kind == "address" and str(self.address).startswith("tls://")):
            raise ValueError(
                "tls belongs to kind 'address' with an address that begins with tls://, as tls://host:8786"
            )
        given = {"card_memory", "evaluations_per_card", "protocol"} & {
            name for name, value in self if value != type(self).model_fields[name].default
        }
        if given and self.kind != "cuda":
            raise ValueError(
                f"{', '.join(sorted(given))} belong to kind 'cuda'; workers that others start are told their share of "
                f"a card by the environment variable {CARD_SHARE_VARIABLE}"
            )
        if self.kind == "kubernetes" and self.image is None:
            raise ValueError("kind 'kubernetes' needs image: a container image with congruence installed")
        if (self.kind == "spec") != (self.file is not None):
            raise ValueError(
                "kind 'spec' needs file: a cluster file with class: and arguments:; no other kind takes one"
            )
        if self.kind == "spec" and (self.workers or self.memory_per_worker or self.image):
            raise ValueError("kind 'spec' takes workers, memory and image from its file; leave them out here")
        return self

    @property
    def card_share(self) -> float:
        """The part of a card that one evaluation may take."""
        return self.card_memory / self.evaluations_per_card
