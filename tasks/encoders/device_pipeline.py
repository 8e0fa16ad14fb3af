"""Batches through a card: stacked in pinned memory, copied on a stream of their own, two in flight.

While the card computes one batch, the next is stacked by the processor and copied beside it. Every buffer is taken once
and used in turn: an allocator that torch does not own (RMM's pool) need not know which stream still reads what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from congruence.tasks.encoders.base import BATCHES_IN_FLIGHT


@dataclass
class _Slot:
    """Buffers of one batch: pinned on the host, on the device, and the embeddings' way back."""

    host: torch.Tensor = field(repr=False)
    device: torch.Tensor = field(repr=False)
    copied: Any = field(repr=False)
    computed: Any = field(repr=False)
    back: torch.Tensor | None = field(default=None, repr=False)
    rows: int = 0
    waited: bool = True


class DevicePipeline:
    """Runs ``forward``, from a batch on the device to its embeddings, on batches of equal rows on a CUDA device."""

    def __init__(self, device: torch.device, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._device = device
        self._forward = forward
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._slots: list[_Slot] = []
        self._next = 0

    def begin(self, rows: list[torch.Tensor]) -> Callable[[], NDArray[np.float32]]:
        """Start on a batch; the function that waits for its embeddings (rows, dimension), float32.

        The batch begun ``BATCHES_IN_FLIGHT`` before this one must have been waited for.
        """
        slot = self._slot(rows)
        count = len(rows)
        slot.copied.synchronize()  # the copy out of the pinned buffer two batches ago
        torch.stack(rows, out=slot.host[:count])
        compute = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(slot.computed)
            slot.device[:count].copy_(slot.host[:count], non_blocking=True)
            slot.copied.record(self._copies)
        compute.wait_event(slot.copied)
        embeddings = self._forward(slot.device[:count]).float()
        if slot.back is None or slot.back.shape[1:] != embeddings.shape[1:]:
            shape = (len(slot.host), *embeddings.shape[1:])
            slot.back = torch.empty(shape, dtype=torch.float32, pin_memory=slot.host.is_pinned())
        slot.back[:count].copy_(embeddings, non_blocking=True)
        slot.computed.record(compute)
        slot.rows, slot.waited = count, False
        return lambda: self._result(slot)

    def drain(self) -> None:
        """Wait for everything that was begun; the results stay where they are until they are asked for."""
        torch.cuda.synchronize(self._device)

    def release(self) -> None:
        """Let go of all buffers, once nothing is copied; results that are not asked for yet keep their own."""
        self.drain()
        self._slots, self._next = [], 0

    @staticmethod
    def _result(slot: _Slot) -> NDArray[np.float32]:
        slot.computed.synchronize()
        assert slot.back is not None
        slot.waited = True
        return np.array(slot.back[: slot.rows].numpy())

    def _slot(self, rows: list[torch.Tensor]) -> _Slot:
        """The slot whose turn it is, made or made larger where rows do not fit it."""
        shape, dtype = tuple(rows[0].shape), rows[0].dtype
        if len(self._slots) < BATCHES_IN_FLIGHT:
            self._slots.insert(self._next, self._made(len(rows), shape, dtype))
        slot = self._slots[self._next]
        assert slot.waited, "a batch was begun before the one in its place was waited for"
        if len(slot.host) < len(rows) or tuple(slot.host.shape[1:]) != shape or slot.host.dtype != dtype:
            slot.computed.synchronize()
            slot = self._slots[self._next] = self._made(len(rows), shape, dtype)
        self._next = (self._next + 1) % BATCHES_IN_FLIGHT
        return slot

    def _made(self, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> _Slot:
        host = torch.empty((count, *shape), dtype=dtype, pin_memory=self._device.type == "cuda")
        device = torch.empty((count, *shape), dtype=dtype, device=self._device)
        copied, computed = (torch.cuda.Event() for _ in range(2))  # type: ignore[no-untyped-call]
        return _Slot(host, device, copied, computed)
