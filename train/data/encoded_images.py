"""Images that are decoded each time they are read, wherever their bytes lie."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train.data import decode, decode_crop
from train.data.boxes import CropDraws
from train.data.decode import ImageFile
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing
from train.data.shape import ImageSize, height_and_width
from train.data.splits import SampleIndices


@dataclass(frozen=True, slots=True)
class EncodedImageSource:
    """Encoded images and their labels.

    paths: their names. size: to which images are fitted, as data.image_size. channels: 3 for RGB, 1 for gray.
    """

    paths: Sequence[str]
    labels: Tensor
    size: ImageSize
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING
    channels: int = 3

    @property
    def stored(self) -> tuple[int, int, int]:
        """(height, width, channels) of one image as it is read."""
        return (*height_and_width(self.size), self.channels)

    @abstractmethod
    def image(self, sample: int) -> ImageFile:
        """Where the bytes of an image are, or the bytes. Raises Failure: DATA, NO_INPUT or IO."""

    def read(self, samples: SampleIndices) -> Tensor:
        """Decode them, uint8 [n, *stored].

        Raises:
            Failure: DATA for a damaged image, NO_INPUT for a file that is gone; as `image`.
        """
        return self._decode(
            samples,
            lambda row, sample: decode.decode_image(
                self.image(sample), self.size, sample, self.preprocessing, channels=self.channels
            ),
        )

    def read_cropped(self, samples: SampleIndices, draws: CropDraws) -> Tensor:
        """Decode whole images and cut the drawn boxes out of them, uint8 [n, *stored]. Raises as `read`."""
        return self._decode(
            samples,
            lambda row, sample: decode_crop.decode_crop(
                self.image(sample),
                self.size,
                sample,
                partial(draws.box, row),
                self.preprocessing,
                channels=self.channels,
            ),
        )

    def _decode(self, samples: SampleIndices, decode_one: Callable[[int, int], npt.NDArray[np.uint8]]) -> Tensor:
        pixels = np.empty((len(samples), *self.stored), np.uint8)
        for row, sample in enumerate(samples):
            pixels[row] = decode_one(row, int(sample))
        return torch.from_numpy(pixels)
