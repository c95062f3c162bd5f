"""Defines a source of samples, which knows all that is true of one origin, and the splits of a data set."""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import decode, image_lists, partition
from train.data.boxes import CropDraws
from train.data.decode import ImageFile
from train.data.image_lists import PackedPaths
from train.data.partition import Partition
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing, configured_preprocessing
from train.data.shape import COLOR_CHANNELS, ImageSize, Shape, height_and_width
from train.data.shards.order import TrainingRuns
from train.tasks import CLASSIFICATION, TargetScale

FLOAT32_BYTES: Final = 4  # floats of any width are read as float32
LABELS_AT_A_TIME: Final = 2**16  # converted or hashed at once: malloc keeps the memory of larger arrays
SampleIndices = npt.NDArray[np.int64]
CroppedReader = Callable[[SampleIndices, CropDraws], Any]  # pixels, or what a GPU makes pixels of
# What samples were: files, which we read; PIL images, which we cut and scale; or arrays, which the user made.
SampleOrigin = Literal["files", "pictures", "arrays"]
Source = TypeVar("Source", bound="SampleSource")


class SampleSource:
    """Images or clips by number, without randomness.

    A source has labels, and reads samples. All else has a default here, which is true of pixels that are stored
    somewhere: so nobody who uses a source asks for its class. Workers inherit it by forking: it need not be picklable,
    and holds no open file.
    """

    __slots__ = ()
    # Whether the ranks of a machine map the same index, whose hash takes seconds for a hundred million images: one of
    # them computes it for all. Other ranks might see other data, so each of them looks.
    is_mapped: ClassVar[bool] = False
    can_be_read: ClassVar[bool] = True  # false of samples of which only labels and shape are known

    if TYPE_CHECKING:  # at run time it would be the default value of a dataclass's field

        @property
        def labels(self) -> Tensor:
            """Integers [count], the class of each; of other tasks float32: 0 or 1 [count, classes], or numbers."""

    def read(self, samples: SampleIndices) -> Tensor:
        """[n, *shape.stored], bytes (uint8) or float32. Raises Failure (DATA, NO_INPUT) naming the sample."""
        raise NotImplementedError

    def select(self, chosen: Tensor) -> Self:
        """The samples that `chosen` marks, bool [count], of a source that readers split."""
        raise NotImplementedError

    @property
    def file_names(self) -> Sequence[str] | None:
        """The path of each sample; None if samples are not read from files of images."""
        return None

    def names(self, samples: SampleIndices) -> list[str]:
        """What a user calls these samples: paths, rows of an array, or numbers."""
        return [str(sample if self.file_names is None else self.file_names[sample]) for sample in samples.tolist()]

    @property
    def origin(self) -> SampleOrigin:
        """What the samples were, before somebody made arrays of them."""
        return "arrays"

    def encoded_images(self) -> EncodedImageSource | None:
        """The images that are decoded each time they are read; None if pixels are stored, in one size."""
        return None

    def image_files(self) -> ImageFileSource | None:
        """The files of the samples, one for each; None without such files."""
        return None

    def cropped_reader(self) -> CroppedReader | None:
        """How whole images are read and cut; None if samples are stored in one size."""
        return None

    def resized(self, size: ImageSize) -> SampleSource:
        """The same images, read in another size. Raises Failure (USAGE) if they are stored in one size."""
        raise Failure(
            "eval.image_size reads image files in another size, and these samples are stored in one size",
            found=f"eval.image_size: {size}",
            fix="leave eval.image_size out, or set data.name to folder or table or shards",
            code=ExitCode.USAGE,
        )

    def runs(self) -> TrainingRuns | None:
        """The runs in which training samples should be read; None if every order is as fast."""
        return None

    def reading(
        self, requests: Iterable[tuple[Any, SampleIndices]]
    ) -> AbstractContextManager[Iterable[tuple[Any, SampleIndices]]]:
        """The requests as this source hands them to those who read, which may read ahead of them."""
        return nullcontext(requests)

    def unpack(self, request: Any) -> Any:
        """The request that `reading` has handed over, in the process that reads it."""
        return request

    def release(self, request: Any) -> Any:
        """The request that `reading` has handed over, when its samples have been read."""
        return request

    def digest(self, root: str) -> str:
        """A hash of which sample has which number, as far as it is known without reading all samples.

        root: left out of paths, so that the folder may move.
        """
        dtype = "<f4" if self.labels.is_floating_point() else "<i8"
        digest = hashlib.sha256()
        for part in torch.split(self.labels, LABELS_AT_A_TIME):
            digest.update(np.ascontiguousarray(part.numpy(), dtype).data)
        for piece in self.content(root):
            digest.update(piece)
        return digest.hexdigest()[:32]

    def content(self, root: str) -> Iterable[bytes | memoryview]:
        """What `digest` covers beside the labels."""
        return ()


class RowsSource(SampleSource):
    """Some rows of samples that are stored together: splits and folds select them, and no sample is copied."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def rows(self) -> Tensor:
            """int64 [count], which of the stored samples."""

    def names(self, samples: SampleIndices) -> list[str]:
        return [str(row) for row in self.rows[torch.from_numpy(samples)].tolist()]

    def select(self, chosen: Tensor) -> Self:
        return replace(self, rows=self.rows[chosen], labels=self.labels[chosen])  # type: ignore[type-var]


@dataclass(frozen=True, slots=True)
class EncodedImageSource(SampleSource):
    """Images that are decoded each time they are read, wherever their bytes lie.

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

    @property
    def file_names(self) -> Sequence[str]:
        return self.paths

    @property
    def origin(self) -> SampleOrigin:
        return "files"

    def encoded_images(self) -> Self:
        return self

    def cropped_reader(self) -> CroppedReader:
        return self.read_cropped

    def resized(self, size: ImageSize) -> Self:
        return replace(self, size=size)

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
            lambda row, sample: decode.decode_crop(
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


@dataclass(frozen=True, slots=True)
class ImageFileSource(EncodedImageSource):
    """Image files and their classes. paths: `PackedPaths`, or any sequence from a user's factory."""

    def __reduce__(self) -> tuple[Any, ...]:
        """As arrays: the ranks of a machine share their memory, and not that of a pickled tensor."""
        return open_image_files, (self.paths, self.labels.numpy(), self.size, self.preprocessing, self.channels)

    def select(self, chosen: Tensor) -> Self:
        paths = image_lists.as_packed_paths(self.paths).part(chosen.numpy())
        return replace(self, paths=paths, labels=self.labels[chosen])

    def names(self, samples: SampleIndices) -> list[str]:
        """The paths; those of a table as it has them, so that the user can join by them."""
        if isinstance(self.paths, PackedPaths) and self.paths.are_listed:
            return [self.paths.name(sample) for sample in samples.tolist()]
        return SampleSource.names(self, samples)

    def image(self, sample: int) -> Path:
        """The file of an image."""
        return Path(str(self.paths[sample]))

    def image_files(self) -> Self:
        return self

    def content(self, root: str) -> Iterator[memoryview]:
        """The paths below their folder; below `root` in a user's own list."""
        if isinstance(self.paths, PackedPaths):
            return self.paths.pieces()
        return image_lists.pack_paths(str(path).removeprefix(root) for path in self.paths).pieces()


def open_image_files(
    paths: Sequence[str], labels: npt.NDArray[Any], size: ImageSize, preprocessing: Preprocessing, channels: int
) -> ImageFileSource:
    """Image files whose labels are in an array. Arguments: as the fields of `EncodedImageSource`."""
    return ImageFileSource(paths, torch.from_numpy(labels), size, preprocessing, channels)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSplits:
    """The splits of the data. validation may be empty (data.val_fraction: 0).

    classes: the names of the model's outputs. task: what the labels are. target: of numbers, their scale.
    test: measured once at the end of a run, and never to choose anything; None if there is none.
    floats: whether samples are read as float32, not as bytes. notes, warnings: for the user, about the data.
    mirror: whether a sample's mirror image is of the same class, so that data.augment: standard may use it; false
    for digits, and if the class is a direction. shared: an open file whose offset forked processes would share.
    evaluation_shape: of validation and test samples, if it is another than `shape`.
    has_own_validation: whether data.root holds a separate validation split, so that data.val_fraction is unused.
    weights: how much each training sample counts in the loss, float32 [count], 1 on average; None: all alike.
    """

    training: SampleSource
    validation: SampleSource
    classes: tuple[str, ...]
    shape: Shape
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    mirror: bool = True
    floats: bool = False
    shared: str | None = None
    weights: Tensor | None = None
    task: str = CLASSIFICATION
    target: TargetScale | None = None
    test: SampleSource | None = None
    evaluation_shape: Shape | None = None
    has_own_validation: bool = False

    def map(self, convert: Callable[[SampleSource], SampleSource]) -> DataSplits:
        """The same data with each of its sources converted."""
        test = None if self.test is None else convert(self.test)
        return replace(self, training=convert(self.training), validation=convert(self.validation), test=test)

    @property
    def evaluated_shape(self) -> Shape:
        """Of validation and test samples."""
        return self.evaluation_shape or self.shape

    @property
    def bytes_(self) -> int:
        """The size of the training and validation samples as they are read."""
        training = len(self.training.labels) * math.prod(self.shape.stored)
        validation = len(self.validation.labels) * math.prod(self.evaluated_shape.stored)
        return (training + validation) * (FLOAT32_BYTES if self.floats else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptySource(SampleSource):
    """An empty training split, since an evaluation does not read it; or data that is still to be fetched."""

    can_be_read: ClassVar[bool] = False
    labels: Tensor
    stored: tuple[int, ...]

    def read(self, samples: SampleIndices) -> Tensor:
        """An empty tensor [0, *stored]."""
        return torch.empty((0, *self.stored), dtype=torch.uint8)


def configured_images(data: DataConfig, paths: Sequence[str], labels: npt.NDArray[Any]) -> ImageFileSource:
    """Image files that are read as the config says."""
    return open_image_files(paths, labels, data.image_size, configured_preprocessing(data), COLOR_CHANNELS[data.color])


def configured_image_shape(data: DataConfig) -> Shape:
    """The shape of images that are read as the config says."""
    return Shape(channels=COLOR_CHANNELS[data.color], size=height_and_width(data.image_size))


def split_off(
    training: Source,
    data: DataConfig,
    strata: npt.NDArray[np.int64],
    *,
    validation: Source | None = None,
    test: Source | None = None,
    groups: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Source, Source, Source | None, Partition]:
    """The splits: training samples are taken for those that have none of their own. And which samples these were.

    Args:
        strata: of the training samples, as `LabelEncoder.strata`.
        groups: that of each sample of each split, by the split's name; no group may be in two of them.

    Raises:
        Failure: DATA for groups in two splits, and for those that cannot be kept in one split.
    """
    if groups is not None:
        partition.refuse_leaks(groups)
    parts = partition.partition_samples(
        strata,
        data,
        groups=None if groups is None else groups["training"],
        has_validation=validation is not None,
    )
    if parts.test.any():
        test = training.select(torch.from_numpy(parts.test))
    if validation is None:
        validation = training.select(torch.from_numpy(parts.validation))
    if not parts.training.all():
        training = training.select(torch.from_numpy(parts.training))
    return training, validation, test, parts


def without_training(splits: DataSplits) -> DataSplits:
    """The same data with an empty training split, to evaluate without reading the training samples."""
    labels = torch.empty(0, dtype=torch.int64)
    return replace(splits, training=EmptySource(labels=labels, stored=tuple(splits.shape.stored)))


def with_test_as_validation(splits: DataSplits) -> DataSplits:
    """The same data with the test split in the place of the validation split. It must have a test split."""
    assert splits.test is not None
    return replace(splits, validation=splits.test)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcatSource(SampleSource):
    """The samples of one source, followed by those of another. labels: int64 [count] of all."""

    first: SampleSource
    second: SampleSource
    labels: Tensor

    def names(self, samples: SampleIndices) -> list[str]:
        count = len(self.first.labels)
        return [
            f"training {self.first.names(sample)[0]}"
            if sample < count
            else f"validation {self.second.names(sample - count)[0]}"
            for sample in samples[:, None]
        ]

    def read(self, samples: SampleIndices) -> Tensor:
        """As `SampleSource.read`; each source reads its own samples."""
        count = len(self.first.labels)
        in_first = samples < count
        if in_first.all():
            return self.first.read(samples)
        if not in_first.any():
            return self.second.read(samples - count)
        first_images, second_images = self.first.read(samples[in_first]), self.second.read(samples[~in_first] - count)
        images = torch.empty((len(samples), *first_images.shape[1:]), dtype=first_images.dtype)
        images[torch.from_numpy(in_first)], images[torch.from_numpy(~in_first)] = first_images, second_images
        return images


def with_all_as_validation(splits: DataSplits) -> DataSplits:
    """The same data with all samples in the validation split, the training samples first."""
    both = _concatenate(splits.training, splits.validation)
    return replace(splits, validation=both if splits.test is None else _concatenate(both, splits.test))


def _concatenate(first: SampleSource, second: SampleSource) -> SampleSource:
    if not len(second.labels):
        return first
    labels = torch.cat([first.labels, second.labels])
    files, others = first.image_files(), second.image_files()
    if files is None or others is None:
        return ConcatSource(first=first, second=second, labels=labels)
    # One source of files, so that an unreadable image has one number.
    packed = (image_lists.as_packed_paths(each.paths) for each in (files, others))
    return replace(files, paths=image_lists.concatenate_paths(*packed), labels=labels)
