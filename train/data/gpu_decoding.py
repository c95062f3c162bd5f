"""Decodes JPEGs on a GPU (data.decode: gpu): data workers only read files and draw the boxes of random_resized_crop.

The GPU decodes, cuts and scales two batches ahead of the step. What it cannot decode, a worker decodes on the CPU. The
pixels differ a little from those of a CPU: nvJPEG does not smooth the colours, which most files hold at half the size.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import decode
from train.data.augmenter import CROP, Augmenter
from train.data.batch import Batch
from train.data.boxes import CropDraws
from train.data.preprocessing import Preprocessing, configured_preprocessing
from train.data.shape import height_and_width
from train.data.splits import DataSplits, EncodedImageSource, SampleIndices, SampleSource

THREADS: Final = 2  # one has nvJPEG decode while the other one's boxes are scaled
MAX_PIXELS_AT_ONCE: Final = 2**25  # of whole images: 100 MB, and as much again for the scaled boxes
RGB_WITHOUT_TRANSFORM: Final = 0  # in Adobe's marker: red, green and blue as they are, no luma
END_OF_JPEG: Final = b"\xff\xd9"
Bad = dict[int, str]  # path and reason of each broken image
ReadAgain = Callable[[Any, SampleIndices], tuple[Batch | None, SampleIndices, Bad]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBatch:
    """n images as a worker leaves them to the GPU, k of them JPEGs.

    data: the JPEGs one behind the other, uint8 [bytes]. lengths, rows, sizes, boxes: of each JPEG its bytes and its
    row in the batch, int64 [k]; height and width, int64 [k, 2]; top, left, height and width of its box, int64 [k, 4].
    decoded: the images of all other rows, uint8 [n - k, height, width, 3]; None if there are none.
    """

    data: Tensor
    lengths: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    boxes: npt.NDArray[np.int64]
    decoded: Tensor | None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those that travel through shared memory."""
        return (self.data,) if self.decoded is None else (self.data, self.decoded)

    def other_rows(self) -> npt.NDArray[np.int64]:
        """The rows of `decoded`."""
        count = len(self.rows) + (0 if self.decoded is None else len(self.decoded))
        return np.setdiff1d(np.arange(count), self.rows)

    def parts(self) -> list[slice]:
        """Slices of the JPEGs which the GPU decodes at once."""
        starts, pixels = list[int](), 0
        for jpeg, size in enumerate(self.sizes.prod(axis=1).tolist()):
            pixels += size
            if not starts or pixels > MAX_PIXELS_AT_ONCE:
                starts.append(jpeg)
                pixels = size
        return [slice(first, end) for first, end in pairwise([*starts, len(self.sizes)])]


def read_encoded(source: EncodedImageSource, samples: SampleIndices, draws: CropDraws) -> EncodedBatch:
    """Read images and draw their boxes; decode those that are no plain JPEG.

    Raises:
        Failure: as `EncodedImageSource.read_cropped`.
    """
    files, table, decoded = list[bytes](), list[tuple[int, ...]](), list[npt.NDArray[np.uint8]]()
    for row, sample in enumerate(samples.tolist()):
        file, choose_box = source.image(sample), partial(draws.box, row)
        jpeg = _read_plain_jpeg(file)
        if jpeg is None:
            decoded.append(decode.decode_crop(file, source.size, sample, choose_box, source.preprocessing))
        else:
            data, height, width = jpeg
            files.append(data)
            table.append((len(data), row, height, width, *choose_box(height, width)))
    numbers = np.array(table, np.int64).reshape(-1, 8)
    return EncodedBatch(
        data=torch.from_numpy(np.frombuffer(bytearray().join(files), np.uint8)),
        lengths=numbers[:, 0],
        rows=numbers[:, 1],
        sizes=numbers[:, 2:4],
        boxes=numbers[:, 4:],
        decoded=torch.from_numpy(np.stack(decoded)) if decoded else None,
    )


def _read_plain_jpeg(file: decode.ImageFile) -> tuple[bytes, int, int] | None:
    """The bytes, height and width of an upright JPEG of three colours that was not cut short; None for another file,
    or one that cannot be read: decoding it says why."""
    try:
        read = decode.read_image(file)
        with decode.open_image(read) as image:
            is_plain = (image.format, image.mode) == ("JPEG", "RGB") and decode.exif_transpose(image) is None
            is_plain = is_plain and image.info.get("adobe_transform") != RGB_WITHOUT_TRANSFORM
            # nvJPEG would decode a part of a file without an error. Padding may follow the end.
            is_complete = read.data.rstrip(b"\0").endswith(END_OF_JPEG)
            return (read.data, image.height, image.width) if is_plain and is_complete else None
    except decode.DECODE_ERRORS:
        return None


def for_reading(augmenter: Augmenter, source: SampleSource) -> Augmenter:
    """What workers do with the files of a source that a GPU decodes: its pixels are augmented later."""
    images = source.encoded_images()
    assert images is not None  # else `find_obstacle` has found one
    return replace(augmenter, stored=(), read_cropped=partial(read_encoded, images))


class GpuDecoder:
    """Decodes the batches of data workers two ahead of the step.

    size: (height, width) of the result. warn: called with a line when the GPU cannot decode a batch for the first time.
    """

    def __init__(
        self, device: torch.device, size: tuple[int, int], preprocessing: Preprocessing, warn: Callable[[str], None]
    ) -> None:
        self._device, self._size, self._preprocessing, self._warn = device, size, preprocessing, warn
        self._streams = threading.local()
        self._reads_again = threading.Lock()
        self._has_warned = False

    def decode_ahead(
        self, batches: Iterable[tuple[Any, SampleIndices, Batch]], read_again: ReadAgain
    ) -> Iterator[tuple[Any, SampleIndices, Batch | None, Bad]]:
        """The batches, with pixels on the device instead of each `EncodedBatch`: uint8 [n, *size, 3].

        read_again: reads a batch on the CPU that the GPU could not decode; another image may replace a broken one.

        Raises:
            Failure: as `read_again`.
        """
        waiting = deque[Future[tuple[Any, SampleIndices, Batch | None, Bad]]]()
        with ThreadPoolExecutor(THREADS, "decode on the GPU") as threads:
            for request, samples, batch in batches:
                waiting.append(threads.submit(self._decode_or_read_again, request, samples, batch, read_again))
                if len(waiting) > THREADS:
                    yield self._receive(waiting.popleft())
            while waiting:
                yield self._receive(waiting.popleft())

    def _receive(self, ready: Future[Any]) -> Any:
        request, samples, batch, bad = ready.result()
        if batch is not None and (pixels := batch["image"]).device.type == "cuda":
            pixels.record_stream(torch.cuda.current_stream(pixels.device))
        return request, samples, batch, bad

    def _decode_or_read_again(
        self, request: Any, samples: SampleIndices, batch: Batch, read_again: ReadAgain
    ) -> tuple[Any, SampleIndices, Batch | None, Bad]:
        try:
            return request, samples, {**batch, "image": self.decode(batch["image"])}, {}
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            raise
        except RuntimeError as error:  # of nvJPEG, which does not say for which image
            if not self._has_warned:
                reason = str(error).splitlines()[0]
                self._warn(f"warning: the GPU cannot decode a batch, so the CPU does: {reason}; not said again")
            self._has_warned = True
        with self._reads_again:
            decoded, taken, bad = read_again(request, samples)
        return request, taken, decoded, bad

    def decode(self, batch: EncodedBatch) -> Tensor:
        """The boxes, cut out and scaled, on the device, uint8 [n, *size, 3].

        Raises:
            RuntimeError: an image cannot be decoded.
        """
        files = torch.split(batch.data, batch.lengths.tolist())
        count = len(batch.rows) + (0 if batch.decoded is None else len(batch.decoded))
        with self._beside_the_step():
            pixels = torch.empty((count, *self._size, 3), dtype=torch.uint8, device=self._device)
            for part in batch.parts():
                images = decode_jpegs(files[part], self._device)
                scaled = self._scale_boxes(images, batch.boxes[part].tolist())
                pixels[torch.from_numpy(batch.rows[part])] = scaled
            if batch.decoded is not None:
                pixels[torch.from_numpy(batch.other_rows())] = batch.decoded.to(self._device)
            if self._device.type == "cuda":
                torch.cuda.current_stream(self._device).synchronize()  # the next batch takes this one's memory
        return pixels

    def _scale_boxes(self, images: list[Tensor], boxes: list[list[int]]) -> Tensor:
        """uint8 [n, *size, 3] of images [3, height, width]. In floats: torch scales no bytes on a GPU."""
        scaled = torch.cat(
            [
                interpolate(
                    image[None, :, top : top + height, left : left + width].float(),
                    self._size,
                    mode=self._preprocessing.interpolation,
                    antialias=True,
                )
                for image, (top, left, height, width) in zip(images, boxes, strict=True)
            ]
        )
        return scaled.round_().clamp_(0, decode.MAX_BYTE).to(torch.uint8).permute(0, 2, 3, 1)

    def _beside_the_step(self) -> AbstractContextManager[Any]:
        """This thread's stream, whose kernels do not wait behind those of the step."""
        if self._device.type != "cuda":
            return nullcontext()
        if not hasattr(self._streams, "own"):
            self._streams.own = torch.cuda.Stream(self._device, priority=-1)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._streams.own)


def decode_jpegs(files: tuple[Tensor, ...], device: torch.device) -> list[Tensor]:
    """RGB images on the device, uint8 [3, height, width] each. Raises RuntimeError for a file that is no JPEG."""
    warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"torchvision\.io")
    from torchvision.io import ImageReadMode, decode_jpeg  # a second, which other runs need not spend

    images: list[Tensor] = decode_jpeg(list(files), mode=ImageReadMode.RGB, device=device)
    return images


def find_obstacle(data: DataConfig, splits: DataSplits, augmenter: Augmenter, device: torch.device) -> str | None:
    """Why no GPU can decode the images to train on; None if it can."""
    obstacles = {
        f"--device {device.type}": device.type != "cuda",
        f"data.name: {data.name}, which gives pixels": splits.training.encoded_images() is None,
        f"no {CROP} in data.augment: whole images are decoded on the CPU": augmenter.crop is None,
        "data.color: gray": splits.shape.channels != len("RGB"),
    }
    return next((text for text, is_there in obstacles.items() if is_there), None)


def refuse_gpu_decoding(
    data: DataConfig, splits: DataSplits, augmenter: Augmenter, device: torch.device, *, attempt: bool = True
) -> None:
    """Refuse data.decode: gpu for a training that cannot use it. attempt: whether to decode a JPEG on the device.

    Raises:
        Failure: USAGE; IMAGE_MISMATCH if this torchvision cannot decode on a GPU.
    """
    if configured_preprocessing(data).decode != "gpu":
        return
    obstacle = find_obstacle(data, splits, augmenter, device)
    if obstacle is not None:
        raise Failure(
            "data.decode: gpu decodes JPEG files on a GPU, for random_resized_crop",
            found=obstacle,
            expected="GPUs, images in files or shards, three colours, and data.augment: imagenet or the like",
            fix="set data.decode to auto",
            code=ExitCode.USAGE,
        )
    if not attempt:
        return
    jpeg = simplejpeg.encode_jpeg(np.zeros((16, 16, 3), np.uint8))
    try:
        decode_jpegs((torch.frombuffer(bytearray(jpeg), dtype=torch.uint8),), device)
    except torch.OutOfMemoryError:
        raise
    except (ImportError, RuntimeError) as error:
        raise Failure(
            "data.decode: gpu cannot be used here: torchvision does not decode a JPEG on this GPU",
            found=str(error).splitlines()[0],
            expected="a torchvision with nvJPEG, as in the image",
            fix="set data.decode to auto",
            code=ExitCode.IMAGE_MISMATCH,
        ) from error


def decoder_for(
    splits: DataSplits, data: DataConfig, augmenter: Augmenter, device: torch.device, warn: Callable[[str], None]
) -> GpuDecoder | None:
    """The decoder of the training images; None if the CPU decodes them."""
    preprocessing = configured_preprocessing(data)
    if preprocessing.decode != "gpu" or find_obstacle(data, splits, augmenter, device):
        return None
    return GpuDecoder(device, height_and_width(splits.shape.size), preprocessing, warn)
