"""The evaluation file's ``cluster:``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from congruence.kernels.memory import CARD_SHARE_VARIABLE
from congruence.tasks.settings.strict import Strict


class ClusterSettings(Strict):
    """Which Dask cluster an evaluation runs on.

    ``kind``: ``threads`` (in this process), ``local`` (worker processes on this machine), ``cuda`` (one worker per GPU,
    needs the [gpu] extra), ``address`` (an existing scheduler), ``kubernetes`` (the Dask operator, needs the
    [kubernetes] extra).
    """

    kind: Literal["threads", "local", "cuda", "address", "kubernetes"] = "local"
    workers: int | None = Field(default=None, ge=1, description="worker processes; by default one per core (at most 8)")
    memory_per_worker: str | None = Field(default=None, description='for example "8 GiB"; by default an even share')
    address: str | None = Field(default=None, description="scheduler address of kind address: tcp://host:8786")
    image: str | None = Field(default=None, description="container image of kind kubernetes")
    namespace: str = "default"
    card_memory: float = Field(
        default=0.8, gt=0, le=0.95, description="share of a card that evaluations may take together (kind cuda)"
    )
    evaluations_per_card: int = Field(
        default=1, ge=1, description="evaluations that may run on a card at a time and share card_memory (kind cuda)"
    )
    protocol: Literal["tcp", "ucx"] | None = Field(
        default=None, description="of kind cuda; by default ucx between several cards, tcp to one"
    )
    dashboard: bool = Field(default=False, description="serve the Dask dashboard on a free loopback port")

    @model_validator(mode="after")
    def _complete(self) -> ClusterSettings:
        if self.kind == "address" and self.address is None:
            raise ValueError("kind 'address' needs address: tcp://host:8786")
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
        return self

    @property
    def card_share(self) -> float:
        """The part of a card that one evaluation may take."""
        return self.card_memory / self.evaluations_per_card
