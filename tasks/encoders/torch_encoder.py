"""What every torch encoder shares: device, precision, batches that fit into memory, and a digest of the weights."""

import hashlib
import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from congruence.kernels.errors import BudgetError, InvalidInputError
from congruence.tasks.encoders.base import Encoder
from congruence.tasks.encoders.settings import EncoderSettings

logger = logging.getLogger(__name__)

CPU_BATCH = 64
GPU_BATCH = 512

Forward = Callable[[torch.Tensor], torch.Tensor]


def choose_device(device: str) -> torch.device:
    """The device of the settings; `auto` takes a GPU where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidInputError(f"encoder.device is '{device}', but torch finds no GPU here: use 'auto' or 'cpu'")
    return torch.device(device)


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """A short digest of names, types, shapes and values; the file format of the checkpoint does not enter."""
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _is_out_of_memory(error: RuntimeError) -> bool:
    # The CPU allocator raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


class TorchEncoder(Encoder):
    """An encoder whose forward pass is a torch function of one stacked batch."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.device = choose_device(settings.device)
        self.precision = settings.precision
        default = GPU_BATCH if self.device.type == "cuda" else CPU_BATCH
        self.batch_size = settings.batch_size or default

    @abstractmethod
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Embeddings of a batch that lies on the device."""

    def measure_dimension(self, sample: Any) -> int:
        """Length of an embedding, by encoding one preprocessed row."""
        return int(self.encode([sample]).shape[1])

    def encode(self, batch: list[Any]) -> NDArray[np.float32]:
        """Embeddings of a batch, in as many forward passes as the memory asks for.

        Where memory runs out, `batch_size` is halved for good and the part is tried again; BudgetError where not even
        one row fits.
        """
        if not batch:
            return np.empty((0, self.dimension), dtype=np.float32)
        parts: list[NDArray[np.float32]] = []
        done = 0
        while done < len(batch):
            rows = batch[done : done + self.batch_size]
            failure = ""
            try:
                parts.append(self._encode_at_once(rows))
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                failure = str(error)
            # Outside the handler, where the traceback no longer keeps the failed pass's tensors alive.
            if failure:
                self._back_off(len(rows), failure)
            else:
                done += len(rows)
        return np.concatenate(parts)

    def _encode_at_once(self, rows: list[Any]) -> NDArray[np.float32]:
        shape = (len(rows), *rows[0].shape)
        on_gpu = self.device.type == "cuda"
        # From pinned memory the copy to the GPU overlaps with whatever it still computes.
        stacked = torch.empty(shape, dtype=rows[0].dtype, pin_memory=on_gpu)
        torch.stack(rows, out=stacked)
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            embeddings = self.forward(stacked.to(self.device, non_blocking=on_gpu))
        return embeddings.float().cpu().numpy()

    def _back_off(self, rows: int, failure: str) -> None:
        if rows == 1:
            raise BudgetError(
                f"encoder {self.id}: one row does not fit into the memory of {self.device} ({failure}); "
                "use a smaller model, a lower precision, or encoder.device: cpu"
            )
        self.batch_size = rows // 2
        logger.warning("out of memory with %d rows on %s: going on with %d", rows, self.device, self.batch_size)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
