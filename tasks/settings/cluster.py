"""The evaluation file's ``cluster:``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

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
    dashboard: bool = Field(default=False, description="serve the Dask dashboard on a free loopback port")

    @model_validator(mode="after")
    def _complete(self) -> ClusterSettings:
        if self.kind == "address" and self.address is None:
            raise ValueError("kind 'address' needs address: tcp://host:8786")
        if self.kind == "kubernetes" and self.image is None:
            raise ValueError("kind 'kubernetes' needs image: a container image with congruence installed")
        return self
