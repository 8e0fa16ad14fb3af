"""An encoder's own image preprocessing, cut in two: geometry per row in any thread, arithmetic per batch on the device.

Between the two an image is 8-bit, a quarter of the bytes to queue and to copy, and every pixel ends up bit for bit
where the library's own transform puts it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image

from congruence.kernels.errors import CongruenceError
from congruence.tasks.encoders.base import text_digest
from congruence.tasks.encoders.images import DECODING, decode_image

Geometry = Callable[[Image.Image], Image.Image]


class PixelPreprocessing:
    """Decoding, resizing and cropping on rows; scaling and normalising on batches.

    `transform` is a torchvision composition that ends in a conversion to a tensor and a normalisation, as open_clip's
    and timm's do.
    """

    def __init__(self, transform: Any, max_pixels: int) -> None:
        self.transform = transform
        self.max_pixels = max_pixels
        *geometry, to_tensor, normalize = transform.transforms
        if type(normalize).__name__ != "Normalize" or type(to_tensor).__name__ not in ("ToTensor", "MaybeToTensor"):
            raise CongruenceError(
                f"the encoder's preprocessing ends in {type(to_tensor).__name__} and {type(normalize).__name__}; "
                "expected a conversion to a tensor and a normalisation"
            )
        self._geometry: list[Geometry] = geometry
        self._mean = torch.as_tensor(normalize.mean, dtype=torch.float32).reshape(1, 3, 1, 1)
        self._placed: dict[torch.device, tuple[torch.Tensor, torch.Tensor]] = {}
        self._std = torch.as_tensor(normalize.std, dtype=torch.float32).reshape(1, 3, 1, 1)

    @property
    def digest(self) -> str:
        """Digest of the transform's description, of how bytes are decoded, and of which images are refused."""
        return text_digest(DECODING, self.max_pixels, self.transform)

    def row(self, raw: Any) -> torch.Tensor:
        """Image bytes to an 8-bit tensor (height, width, 3); InvalidRow for bytes that are no image."""
        image = decode_image(raw, self.max_pixels)
        for step in self._geometry:
            image = step(image)
        return torch.from_numpy(np.array(image.convert("RGB")))

    def batch(self, rows: torch.Tensor) -> torch.Tensor:
        """8-bit (b, height, width, 3) to the model's input (b, 3, height, width), on the device of `rows`.

        On a GPU in channels-last order, which the rows have already and convolutions there are fastest in.
        """
        order = torch.channels_last if rows.device.type == "cuda" else torch.contiguous_format
        pixels = rows.permute(0, 3, 1, 2).to(torch.float32, memory_format=order).div_(255)
        mean, std = self._constants(rows.device)
        return pixels.sub_(mean).div_(std)

    def _constants(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation on the device, copied there once: each copy would wait for what is computed."""
        if device not in self._placed:
            self._placed[device] = (self._mean.to(device), self._std.to(device))
        return self._placed[device]
