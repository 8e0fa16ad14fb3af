"""Encoders by torch: batches on the processor or through a card, as large as memory allows; and those of images."""

from __future__ import annotations

import hashlib
import logging
import resource
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from congruence.kernels.errors import BudgetError, CongruenceError, InvalidInputError
from congruence.tasks.encoders.base import BatchSearch, Encoder, InputKind, search_batch_size
from congruence.tasks.encoders.images import DECODING, decode_image
from congruence.tasks.runtime.files import text_digest
from congruence.tasks.settings.sections import EncoderSettings


class DevicePipeline:
    """Runs ``forward``, from a batch on the device to its embeddings, on a CUDA device while another batch is copied.

    Pinned memory and that of the device are torch's own, which keeps what one batch leaves for the next.
    """

    def __init__(self, device: torch.device, forward: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._device = device
        self._forward = forward
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def begin(self, rows: list[torch.Tensor]) -> Callable[[], NDArray[np.float32]]:
        """Start on a batch; the function that waits for its embeddings (rows, dimension), float32."""
        host = self._pinned((len(rows), *rows[0].shape), rows[0].dtype)
        torch.stack(rows, out=host)
        compute = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copies):
            batch = host.to(self._device, non_blocking=True)
        compute.wait_stream(self._copies)
        embeddings = self._forward(batch).float()
        back = self._pinned(tuple(embeddings.shape), torch.float32)
        back.copy_(embeddings, non_blocking=True)
        computed = torch.cuda.Event()  # type: ignore[no-untyped-call]
        computed.record(compute)
        return partial(self._result, computed, back, host, batch)

    @staticmethod
    def _result(computed: Any, back: torch.Tensor, *_in_use: torch.Tensor) -> NDArray[np.float32]:
        """Once it is computed; until then no other batch may have the memory of this one."""
        computed.synchronize()
        return np.array(back.numpy())

    def _pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self._device.type == "cuda")


logger = logging.getLogger(__name__)

CPU_BATCH = 64
GPU_BATCH = 512
"""Batch sizes where none was given, measured or settled."""

LARGEST_CPU_BATCH = 256
LARGEST_GPU_BATCH = 8192
SEARCH_SECONDS = 5.0
SEARCH_CPU_BYTES = 2**30
"""How far a search may raise the process's peak memory on a CPU, where running out ends the process."""


@contextmanager
def fixed_seed() -> Iterator[None]:
    """Untrained weights are a function of torch's version alone, and nobody else's random numbers move."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


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


_OUT_OF_MEMORY = ("DefaultCPUAllocator", "out of memory", "out_of_memory", "bad_alloc", "STATUS_ALLOC_FAILED")
"""What plain RuntimeErrors say of it: torch's CPU allocator, CUDA, RMM behind torch, cuBLAS and cuDNN."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, whichever allocator says so.

    torch raises OutOfMemoryError for its own allocator; through RMM's pool it passes on a std::bad_alloc, as a
    RuntimeError with its text or a MemoryError; CuPy's and NumPy's are MemoryErrors.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _OUT_OF_MEMORY)


def _peak_bytes() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class TorchEncoder(Encoder):
    """An encoder whose forward pass is a torch function of one stacked batch."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.device = choose_device(settings.device)
        self.precision = settings.precision
        if self.device.type == "cuda":
            # Convolutions round their inputs to 10 bits otherwise: fp32 is what the embeddings' identity says.
            torch.backends.cudnn.allow_tf32 = False
        default = GPU_BATCH if self.device.type == "cuda" else CPU_BATCH
        self.batch_size = settings.given_batch_size or default
        self.device_kind = self.device.type
        self._sample: Any = None
        self._measured = settings.batch_size == "auto" or (settings.batch_size is None and self.device.type == "cuda")
        self._fits: int | None = None

    def placed(self, model: Any) -> Any:
        """``model`` on the device, there in the order in which convolutions are fastest."""
        order = torch.channels_last if self.device.type == "cuda" else torch.preserve_format
        return model.to(self.device, memory_format=order)

    @abstractmethod
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Embeddings of a batch that lies on the device."""

    def measure_dimension(self, sample: Any) -> int:
        """Length of an embedding, by encoding one preprocessed row; `search_batch_size` measures with the same one."""
        self._sample = sample
        self.searches_batch_size = self._measured
        return int(self.encode([sample]).shape[1])

    def search_batch_size(self) -> BatchSearch:
        """See Encoder: real passes on copies of one row, to the end of the GPU's memory or SEARCH_CPU_BYTES."""
        largest = LARGEST_GPU_BATCH if self.device_kind == "cuda" else LARGEST_CPU_BATCH
        peak = _peak_bytes()

        def seconds_of(size: int) -> float | None:
            # The size before took half as much.
            if self.device_kind == "cpu" and 2 * (_peak_bytes() - peak) > SEARCH_CPU_BYTES:
                return None
            return self._seconds_of(size)

        return search_batch_size(seconds_of, largest=largest, budget=SEARCH_SECONDS)

    def use_batch_size(self, size: int) -> None:
        self.batch_size = min(size, self._fits or size)

    def _seconds_of(self, size: int) -> float | None:
        rows = [self._sample] * size
        try:
            if self.device_kind == "cuda":
                self._encode_at_once(rows)  # chooses algorithms and takes memory, which later passes do not
            started = time.perf_counter()
            self._encode_at_once(rows)
            return time.perf_counter() - started
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        self._release()
        return None

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
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                failure = str(error)
            # Outside the handler, where the traceback no longer keeps the failed pass's tensors alive.
            if failure:
                self._back_off(len(rows), failure)
            else:
                done += len(rows)
        return np.concatenate(parts)

    def begin(self, batch: list[Any]) -> Callable[[], NDArray[np.float32]]:
        """See Encoder: on a GPU the next batch is copied while this one is computed.

        Where memory runs out, what is in flight ends first and the batch is encoded by parts.
        """
        if self.device.type == "cuda" and 0 < len(batch) <= self.batch_size:
            try:
                return self._pipeline.begin(batch)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            self._release()
        return super().begin(batch)

    def _encode_at_once(self, rows: list[Any]) -> NDArray[np.float32]:
        if self.device.type == "cuda":
            return self._pipeline.begin(rows)()
        return self._embeddings(torch.stack(rows)).float().numpy()

    def _embeddings(self, batch: torch.Tensor) -> torch.Tensor:
        """The forward pass of a batch on the device, in this encoder's precision."""
        with torch.inference_mode(), torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            return self.forward(batch)

    @cached_property
    def _pipeline(self) -> DevicePipeline:
        return DevicePipeline(self.device, self._embeddings)

    def _release(self) -> None:
        """Give memory that torch keeps for later back to the card; an allocator of others may not know how."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # what is in flight ends first
            with suppress(RuntimeError):
                torch.cuda.empty_cache()

    def _back_off(self, rows: int, failure: str) -> None:
        if rows == 1:
            raise BudgetError(
                f"encoder {self.id}: one row does not fit into the memory of {self.device} ({failure}); "
                "use a smaller model, a lower precision, or encoder.device: cpu"
            )
        self.batch_size = self._fits = rows // 2
        logger.warning("out of memory with %d rows on %s: going on with %d", rows, self.device, self.batch_size)
        self._release()


class ImageEncoder(TorchEncoder):
    """A torch encoder of images, made ready by a library's own transform, which is cut in two.

    Geometry is row by row in any thread, arithmetic batch by batch on the device. Between the two an image is 8-bit, a
    quarter of the bytes to queue and to copy, and every pixel ends up bit for bit where the transform puts it.
    """

    input_kind: InputKind = "image"
    _dtype: torch.dtype

    def use_transform(self, transform: Any, max_pixels: int) -> None:
        """Preprocess by ``transform`` from now on.

        It is a torchvision composition that ends in a conversion to a tensor and a normalisation, as open_clip's and
        timm's do.
        """
        *geometry, to_tensor, normalize = transform.transforms
        if type(normalize).__name__ != "Normalize" or type(to_tensor).__name__ not in ("ToTensor", "MaybeToTensor"):
            raise CongruenceError(
                f"the encoder's preprocessing ends in {type(to_tensor).__name__} and {type(normalize).__name__}; "
                "expected a conversion to a tensor and a normalisation"
            )
        self._geometry, self._max_pixels = geometry, max_pixels
        self._mean, self._std = (
            torch.as_tensor(values, dtype=torch.float32, device=self.device).reshape(1, 3, 1, 1)
            for values in (normalize.mean, normalize.std)
        )
        self.preprocessing_digest = text_digest(DECODING, max_pixels, transform)

    def preprocess(self, raw: Any) -> torch.Tensor:
        """Image bytes to an 8-bit tensor (height, width, 3); InvalidRow for bytes that are no image."""
        image = decode_image(raw, self._max_pixels)
        for step in self._geometry:
            image = step(image)
        return torch.from_numpy(np.array(image.convert("RGB")))

    def pixels(self, batch: torch.Tensor) -> torch.Tensor:
        """8-bit rows (b, height, width, 3) on the device to the model's input (b, 3, height, width), in its precision.

        On a GPU in channels-last order, which the rows have already and convolutions there are fastest in.
        """
        order = torch.channels_last if batch.device.type == "cuda" else torch.contiguous_format
        pixels = batch.permute(0, 3, 1, 2).to(torch.float32, memory_format=order).div_(255)
        return pixels.sub_(self._mean).div_(self._std).to(self._dtype)
