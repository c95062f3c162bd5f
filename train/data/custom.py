"""Opens the data set that a user's factory (`package.module:factory`) returns, and checks it.

The factory returns DataSplits, or a pair of datasets whose items are (image, label). Each process
that reads samples calls the factory itself: forked workers that inherited an open file would share
its offset.
"""

from __future__ import annotations

import fcntl
import gc
import os
import random
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import plugin
from train.config.schema import DataConfig
from train.data import arrays, decode
from train.data.arrays import move_channels_last
from train.data.boxes import CropDraws
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing, configured_preprocessing
from train.data.shape import COLOR_CHANNELS, ImageSize, Shape
from train.data.splits import (
    CroppedReader,
    DataSplits,
    ImageFileSource,
    RowsSource,
    SampleIndices,
    SampleOrigin,
    SampleSource,
    split_off,
)
from train.files import bad_data_failure
from train.tasks import AUTO, CLASSIFICATION, MULTI_LABEL, REGRESSION, configured_task
from train.tasks.labels import ENCODERS, ItemLabel, configured_encoder, one_number_failure

NUM_CHECKED_ITEMS: Final = 8  # read twice, to see whether they change
DATASET_LOCK: Final = threading.Lock()  # a user's dataset (an HDF5 file, a counter) need not be thread-safe


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSource(RowsSource):
    """Some items of the user's dataset.

    rows: int64 [count], which of them. labels: as `SampleSource.labels`. size, channels: that PIL images get. first:
    shape and dtype of the first item, which all must have; None until it is read. name: for errors. task: what the
    labels are.
    """

    dataset: Any
    rows: Tensor
    labels: Tensor
    size: ImageSize
    name: str
    first: tuple[tuple[int, ...], torch.dtype] | None = None
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING
    task: str = CLASSIFICATION
    channels: int = 3

    @property
    def origin(self) -> SampleOrigin:
        return "pictures" if self.holds_pictures else "arrays"

    @property
    def holds_pictures(self) -> bool:
        """Whether the items are PIL images, which are cut and scaled here; arrays keep the size that they have."""
        return isinstance(read_item(self.dataset, int(self.rows[0]), self.name, self.task)[0], Image.Image)

    def cropped_reader(self) -> CroppedReader | None:
        return self.read_cropped if self.holds_pictures else None

    def read(self, samples: SampleIndices) -> Tensor:
        """uint8 or float32 [n, *size, channels].

        Raises:
            Failure: DATA, naming the item and, for an error in the user's code, its line.
        """
        return self._read_each(samples, None)

    def read_cropped(self, samples: SampleIndices, draws: CropDraws) -> Tensor:
        """Cut the drawn boxes out of whole PIL images, uint8 [n, height, width, 3]. Raises as `read`."""
        return self._read_each(samples, draws)

    def _read_each(self, samples: SampleIndices, draws: CropDraws | None) -> Tensor:
        shape, dtype = self.first or ((0,), torch.uint8)
        with DATASET_LOCK:
            read = [
                self.read_one(int(sample), None if draws is None else partial(draws.box, index))
                for index, sample in enumerate(samples)
            ]
        return torch.stack(read) if read else torch.empty((0, *shape), dtype=dtype)

    def read_one(self, sample: int, choose_box: decode.ChooseBox | None = None) -> Tensor:
        """Read one sample. It must have the shape and dtype of the first one, and the label that the dataset lists."""
        row = int(self.rows[sample])
        image, label = read_item(self.dataset, row, self.name, self.task)
        pixels = self._image_tensor(image, f"{self.name} item {row}", choose_box)
        if self.first is not None and (tuple(pixels.shape), pixels.dtype) != self.first:
            expected, actual = describe_sample(*self.first), describe_sample(tuple(pixels.shape), pixels.dtype)
            raise _bad_item_failure(self.name, row, "is not like the first one", actual, expected)
        if label != (listed := self.labels[sample].tolist()):
            expected = f"label {listed}, as .targets or the first call of the factory says"
            raise _bad_item_failure(
                self.name, row, "has another label than the dataset lists", f"label {label}", expected
            )
        if pixels.is_floating_point() and not pixels.isfinite().all():
            raise _bad_item_failure(
                self.name, row, "holds numbers that are not finite", "NaN or infinity", "finite numbers"
            )
        return pixels

    def _image_tensor(self, image: Any, name: str, choose_box: decode.ChooseBox | None) -> Tensor:
        """One image or clip as [*size, channels]: a PIL image is fitted, or its box is cut out."""
        if not isinstance(image, Image.Image):
            return _array_tensor(image, name)
        rgb = _to_8_bit_rgb(image, name, self.preprocessing)
        if choose_box:
            pixels = decode.crop_image(rgb, self.size, choose_box, self.preprocessing, self.channels)
        else:
            fitted = decode.fit_image(rgb, self.size, self.preprocessing)
            pixels = decode.as_pixels(fitted, self.channels)
        return torch.from_numpy(np.array(pixels))


def open_dataset_source(
    dataset: Any, labels: Tensor, size: ImageSize, name: str, task: str = CLASSIFICATION, channels: int = 3
) -> DatasetSource:
    """A source of all items. The first is read; the others must have its shape and dtype.

    Raises:
        Failure: USAGE for arrays that have other channels than data.color asks for.
    """
    source = DatasetSource(dataset, torch.arange(len(labels)), labels, size, name, task=task, channels=channels)
    first = source.read_one(0)
    if channels == 1:
        _refuse_colors(first.shape[-1], name)
    return replace(source, first=(tuple(first.shape), first.dtype))


def _refuse_colors(channels: int, name: str) -> None:
    """Refuse other samples than gray ones, where the user's code makes them and data.color is gray."""
    if channels != 1:
        raise Failure(
            "data.color: gray converts image files and PIL images only",
            found=f"{name} samples of {channels} channels",
            fix="return PIL images or gray samples; or leave data.color out",
            code=ExitCode.USAGE,
        )


def look_at_items(items: DatasetSource) -> tuple[int | None, list[decode.ImageFacts]]:
    """The first of a few items that changes when it is read again (random transforms); and the facts about those that
    are PIL images, as `decode.sample_facts`. An item that cannot be read is reported when it is used."""
    changing, facts = None, list[decode.ImageFacts]()
    for sample, row in enumerate(items.rows[:NUM_CHECKED_ITEMS].tolist()):
        with suppress(Failure):
            if changing is None and not torch.equal(items.read_one(sample), items.read_one(sample)):
                changing = row
        with suppress(Failure, *decode.DECODE_ERRORS):
            image, _ = read_item(items.dataset, row, items.name, items.task)
            if isinstance(image, Image.Image):
                facts.append(decode.find_facts(image))
    return changing, facts


def read_item(dataset: Any, row: int, name: str, task: str = CLASSIFICATION) -> tuple[Any, ItemLabel]:
    """(image, label) of one item. The label is of the task.

    Raises:
        Failure: DATA.
    """
    try:
        item = dataset[row]
    except (Failure, MemoryError):
        raise
    except Exception as error:
        raise _bad_item_failure(
            name, row, "cannot be read", plugin.describe_user_error(error), "(image, label)"
        ) from error
    try:
        image, label = item
    except (TypeError, ValueError) as error:
        seen = f"{type(item).__name__}: {error}"
        raise _bad_item_failure(name, row, "is no pair", seen, "(image, label), the label an integer") from error
    try:
        return image, ENCODERS[task].from_item(label)
    except (TypeError, ValueError, OverflowError) as error:
        raise _label_failure(f"{name} the label of item {row}", label, task) from error


TEXT_LABEL_FIX: Final = (
    "number the classes in the dataset: names = sorted(set(all labels)); return names.index(label) as the label, and "
    "set .classes = names"
)


def _label_failure(which: str, label: Any, task: str = CLASSIFICATION) -> Failure:
    """The Failure for a label that is none of the task, with what to return instead."""
    try:
        numbers = label.detach().cpu().numpy() if isinstance(label, Tensor) else np.asarray(label)
    except Exception:  # lists of different lengths, or an object of the user's
        numbers = np.array(None)
    if isinstance(label, str):
        what, seen, fix = "is text", repr(label), TEXT_LABEL_FIX
    elif numbers.ndim and numbers.dtype.kind in "biuf":
        what, seen = "is a vector", f"{type(label).__name__} of the shape {list(numbers.shape)}"
        fix = f"return int(label.argmax()) if it marks one class (one-hot), or set data.task={MULTI_LABEL}"
    elif numbers.dtype.kind == "f":
        what, seen = "is a number with a decimal point", f"{label!r:.80}"
        fix = f"return int(label) if it is the number of a class, or set data.task={REGRESSION}"
    else:
        what, seen, fix = "is no number", f"a {type(label).__name__}", "return the number of the class"
    expected = ENCODERS[task].expected
    if task != CLASSIFICATION:
        fix = f"return {expected.partition(',')[0]}; or set another data.task"
    return Failure(f"{which} {what}", found=seen, expected=expected, fix=fix, code=ExitCode.DATA)


def _array_tensor(image: Any, name: str) -> Tensor:
    """One image or clip as [*size, channels]. Tensors have the channels first, arrays last, as in their files."""
    if not isinstance(image, (Tensor, np.ndarray)):
        raise _not_an_image_failure(name, f"a {type(image).__name__}")
    if isinstance(image, np.ndarray) and image.dtype.kind not in "biufc":
        raise _not_an_image_failure(name, f"an array of {image.dtype}")
    tensor = torch.as_tensor(image)
    if tensor.dtype != torch.uint8 and not tensor.is_floating_point():
        raise _not_an_image_failure(name, f"an array of {str(tensor.dtype).removeprefix('torch.')}")
    laid = move_channels_last(tensor[None], name, channels_first=isinstance(image, Tensor))[0]
    return laid.contiguous() if laid.dtype == torch.uint8 else laid.float().contiguous()


def _to_8_bit_rgb(image: Image.Image, name: str, preprocessing: Preprocessing) -> Image.Image:
    """Upright and in 8 bits. Refuses mode I with values up to 255: their upper 8 of 16 bits would be black."""
    try:
        flat = decode.to_8_bits(image, len("RGB"), preprocessing)
        if image.mode == "I" and 0 < np.asarray(image).max() <= 0xFF:
            raise ValueError("pixels of 32 bits (mode I), none above 255: save it with 8 or 16 bits")
    except decode.DECODE_ERRORS as error:  # Pillow decodes an opened image only here
        if isinstance(error, OSError) and error.errno in decode.OS_ERRORS:
            raise
        raise _not_an_image_failure(name, str(error)) from error
    return flat


def describe_sample(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    """Shape and dtype, for messages."""
    return f"{list(shape)}, {str(dtype).removeprefix('torch.')}"


def _bad_item_failure(name: str, row: int, what: str, actual: str, expected: str) -> Failure:
    message = f"{name} item {row} {what}"
    return Failure(
        message, found=actual, expected=expected, fix="mend the dataset, or leave it out", code=ExitCode.DATA
    )


def _not_an_image_failure(name: str, actual: str) -> Failure:
    expected = "a PIL image, or an array or tensor of uint8 or floats"
    fix = "convert it in the dataset's __getitem__, or leave it out"
    return Failure(f"{name} is no image", found=actual, expected=expected, fix=fix, code=ExitCode.DATA)


PSEUDO_FILE_SYSTEMS: Final = ("/proc/", "/sys/", "/dev/")
OPEN_FILES_FOLDER: Final = Path("/proc/self/fd")


@dataclass(slots=True, eq=False)
class FactoryCall:
    """Calls the user's factory in each process that reads, so that no process reads files of another.

    The random numbers of the first call are drawn in each call: an unseeded `random_split` gives
    the same splits. Not frozen, because it holds what the factory returned in this process.

    labels: what each call must return, for DataSplits; a dataset returns the label with each item.
    """

    data: DataConfig
    returned: Any = None
    process: int = 0
    labels: tuple[Tensor, Tensor] | None = None
    random_state: tuple[Any, ...] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def splits(self) -> Any:
        """What the factory returned in this process."""
        with self.lock:
            if self.process != os.getpid():
                with self._random_state_of_the_first_call():
                    self.returned = plugin.call_factory(self.data.name, "data.name", self.data)
                returned = self.returned
                if self.labels is not None and not all(
                    torch.equal(current.labels, first)
                    for current, first in zip((returned.training, returned.validation), self.labels, strict=True)
                ):
                    raise Failure(
                        f"data.name {self.data.name} returned other labels when it was called again",
                        fix="sort what the factory lists, and seed its generators",
                        code=ExitCode.DATA,
                    )
                self.process = os.getpid()
            return self.returned

    def split(self, number: int) -> Any:
        """The training (0), the validation (1) or the test data (2)."""
        splits = self.splits()
        if isinstance(splits, DataSplits):
            splits = (splits.training, splits.validation, splits.test)
        return splits[number]

    def release(self) -> None:
        """Forget what the factory returned, so that its files are closed; the next reader calls it again.

        LMDB, for example, does not open an environment that was open in the parent process.
        """
        self.returned, self.process = None, 0
        gc.collect()  # a dataset that holds a bound method of itself is a reference cycle

    @contextmanager
    def _random_state_of_the_first_call(self) -> Iterator[None]:
        """Leaves no trace in a later reader's random numbers."""
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        if self.random_state is None:
            self.random_state = before
            yield
            return
        _set_random_state(self.random_state)
        try:
            yield
        finally:
            _set_random_state(before)


def _set_random_state(state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


@dataclass(frozen=True, slots=True, eq=False)
class FactoryDataset:
    """One split out of the factory, as each process has it."""

    factory: FactoryCall
    split: int

    def __getitem__(self, row: int) -> Any:
        return self.factory.split(self.split)[row]

    def read(self, samples: SampleIndices) -> Any:
        """For a split that is a SampleSource."""
        return self.factory.split(self.split).read(samples)


def find_moved_file(reads: Iterable[Callable[[], object]], release: Callable[[], None]) -> str | None:
    """The path of a file whose position the reads move and that `release` leaves open; None if there is none.

    A module of the user holds such a file. Forked workers would share its position, and read each
    other's samples.
    """
    positions = []
    for read in reads:
        try:
            read()
        except (Failure, OSError) as error:  # the next reader of this sample reports it
            if isinstance(error, Failure) and error.code == ExitCode.STOPPED:
                raise
        positions.append(open_file_positions())
    release()
    for number, (device, inode, _) in open_file_positions().items():
        seen = {at[number] for at in positions if number in at and at[number][:2] == (device, inode)}
        if len(seen) > 1:
            return os.readlink(OPEN_FILES_FOLDER / str(number))
    return None


def open_file_positions() -> dict[int, tuple[int, int, int]]:
    """Device, inode and position of each regular file that is open read-only, by file descriptor.

    psutil's `open_files` leaves out a file that was deleted after it was opened.
    """
    positions = {}
    for name in os.listdir(OPEN_FILES_FOLDER) if os.path.isdir(OPEN_FILES_FOLDER) else ():  # not Linux
        with suppress(OSError):  # closed in the meantime
            number, path = int(name), os.readlink(OPEN_FILES_FOLDER / name)
            status, access = os.fstat(number), fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
            if access == os.O_RDONLY and stat.S_ISREG(status.st_mode) and not path.startswith(PSEUDO_FILE_SYSTEMS):
                positions[number] = (status.st_dev, status.st_ino, os.lseek(number, 0, os.SEEK_CUR))
    return positions


SPLIT_NAMES: Final = ("training", "validation")
FACTORY_CONTRACT: Final = (
    "train.data.splits.DataSplits, or (training, validation): datasets with len() whose items are (image, label)"
)


def open_custom(data: DataConfig, *_: object) -> DataSplits:
    """Call the factory with the data section of the config, and check what it returns.

    Raises:
        Failure: USAGE for a factory that cannot be called or fails, DATA for what it returns, naming the item.
    """
    factory = FactoryCall(data)
    returned = factory.splits()
    try:
        splits = _as_splits(returned, factory)
        del returned  # `release` frees it
        sources = [source for source in (splits.training, splits.validation) if len(source.labels)]
        reads = [partial(source.read, np.array([row % len(source.labels)])) for source in sources for row in (0, -1)]
        return replace(splits, shared=find_moved_file(reads, factory.release))
    except (Failure, MemoryError):
        raise
    except Exception as error:  # in the user's dataset: its len(), its read()
        raise plugin.user_code_failure(f"data.name {data.name}: what it returned failed", error) from error


def _as_splits(returned: Any, factory: FactoryCall) -> DataSplits:
    data = factory.data
    if isinstance(returned, DataSplits):
        return _check_splits(returned, factory)
    if not (isinstance(returned, (tuple, list)) and len(returned) == 2):
        raise _contract_failure(data, type(returned).__name__)
    if returned[0] is None:
        raise _contract_failure(data, "(None, ...)")
    for dataset, split in zip(returned, SPLIT_NAMES, strict=True):
        if dataset is not None and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise _contract_failure(data, f"{split}: {type(dataset).__name__}, without len() or without [ ]")
    training = _open_dataset(returned[0], factory, 0)
    validation = None if returned[1] is None else _open_dataset(returned[1], factory, 1)
    if validation and validation.first != training.first:
        raise _contract_failure(data, "training and validation samples of different shapes or types")
    names = getattr(returned[0], "classes", None)
    claimed = len(names) if names else arrays.configured_class_count(data)
    encoder = configured_encoder(data)
    outputs = encoder.names(data.name, claimed, training.labels, validation.labels if validation else None)
    training, validation, _, _ = split_off(training, data, encoder.strata(training.labels), validation=validation)
    shape, dtype = training.first or ((), torch.uint8)
    (changing, facts), warnings = look_at_items(training), list[str]()
    if changing is not None:
        warnings.append(
            f"{data.name}: item {changing} is not the same when it is read again (random transforms?). Kept in memory, "
            "items are read once and stay so in all epochs; data.loader=workers reads them again, and a run that goes "
            "on or has other ranks then sees other ones. Take what is random out: data.augment moves images by keys"
        )
    warnings += decode.sample_warnings(facts, data.name)
    return DataSplits(
        training=training,
        validation=validation,
        classes=tuple(map(str, names)) if names and len(names) == len(outputs) else outputs,
        shape=Shape(channels=shape[-1], size=shape[:-1]),
        floats=dtype.is_floating_point,
        warnings=tuple(warnings),
        task=configured_task(data),
        target=encoder.scale(training.labels, partial(one_number_failure, data.name, len(training.labels))),
    )


def _open_dataset(dataset: Any, factory: FactoryCall, number: int) -> DatasetSource:
    data, split = factory.data, SPLIT_NAMES[number]
    name = f"{data.name}, {split} data:"
    if not (count := len(dataset)):
        raise _contract_failure(data, f"{split}: a {type(dataset).__name__} without items")
    task = configured_task(data)
    labels = configured_encoder(data).read(_read_labels(dataset, name, task), name)
    if len(labels) != count:
        raise _contract_failure(data, f"{split}: {count} items, and {len(labels)} labels in .targets or .labels")
    channels = COLOR_CHANNELS[data.color]
    source = open_dataset_source(FactoryDataset(factory, number), labels, data.image_size, name, task, channels)
    return replace(source, preprocessing=configured_preprocessing(data))


def _read_labels(dataset: Any, name: str, task: str) -> Tensor:
    """The labels from .targets or .labels, or, without these, from every item."""
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and indices is not None:  # a torch.utils.data.Subset
        return _read_labels(inner, name, task)[torch.as_tensor(indices)]
    listed = next(
        (labels for key in ("targets", "labels") if (labels := getattr(dataset, key, None)) is not None), None
    )
    if listed is None:
        listed = [read_item(dataset, row, name, task)[1] for row in range(len(dataset))]
    if len(listed) and isinstance(listed[0], str):
        raise _label_failure(f"{name} the first of .targets or .labels", listed[0], task)
    try:
        return torch.as_tensor(np.asarray(listed))
    except (TypeError, ValueError, RuntimeError) as error:
        raise bad_data_failure(name, "labels are no numbers", str(error), ENCODERS[task].expected) from error


def _check_splits(splits: DataSplits, factory: FactoryCall) -> DataSplits:
    """Check the user's DataSplits: labels that fit the classes, and a first sample of the declared shape."""
    data = factory.data
    task = splits.task if data.task == AUTO else data.task
    encoder = ENCODERS[task]
    labels, sources = list[Tensor](), [splits.training, splits.validation]
    sources += [] if splits.test is None else [splits.test]
    for source in sources:
        if not (isinstance(getattr(source, "labels", None), Tensor) and callable(getattr(source, "read", None))):
            raise _contract_failure(data, f"a {type(source).__name__} without a tensor of labels, or without read()")
        labels.append(encoder.read(source.labels, data.name) if len(source.labels) else source.labels)
        if len(source.labels) and (mismatch := encoder.mismatch(labels[-1], len(splits.classes))):
            raise _contract_failure(data, f"{mismatch}, and {len(splits.classes)} classes")
    if not len(splits.training.labels):
        raise _contract_failure(data, "no training samples")
    if data.color == "gray":
        _refuse_colors(splits.shape.channels, data.name)
    factory.labels = (splits.training.labels, splits.validation.labels)
    training, validation, *test = (
        source
        if isinstance(source, ImageFileSource)  # opens each file for one read
        else CheckedSource(FactoryDataset(factory, number), labels[number], splits.shape, data)
        for number, source in enumerate(sources)
    )
    first = training.read(np.arange(1))
    return replace(
        splits,
        training=training,
        validation=validation,
        test=next(iter(test), None),
        floats=first.is_floating_point(),
        task=task,
        target=splits.target or encoder.scale(labels[0], partial(one_number_failure, data.name, len(labels[0]))),
    )


@dataclass(frozen=True, slots=True)
class CheckedSource(SampleSource):
    """Checks every read of a user's source: torch would broadcast a single row to all samples."""

    source: FactoryDataset
    labels: Tensor
    shape: Shape
    data: DataConfig

    def read(self, samples: SampleIndices) -> Tensor:
        """As `SampleSource.read`. Raises Failure: DATA for other shapes and types, USAGE for the user's errors."""
        try:
            read = self.source.read(samples)
        except (Failure, MemoryError):
            raise
        except Exception as error:
            raise plugin.user_code_failure(f"data.name {self.data.name}: reading samples failed", error) from error
        if not isinstance(read, Tensor):
            raise _contract_failure(self.data, f"samples as {type(read).__name__}")
        if tuple(read.shape) != (len(samples), *self.shape.stored) or read.dtype not in (torch.uint8, torch.float32):
            rows = (
                f"{read.shape[0]} samples of {describe_sample(tuple(read.shape[1:]), read.dtype)}"
                if read.dim()
                else "one number"
            )
            actual = f"{rows} for {len(samples)}, and the shape {self.shape}"
            raise _contract_failure(self.data, actual)
        if not read.isfinite().all():
            raise _contract_failure(
                self.data, f"NaN or infinity in one of the samples {', '.join(map(str, samples[:5]))}, ..."
            )
        return read


def _contract_failure(data: DataConfig, actual: str) -> Failure:
    what = f"data.name {data.name} returned something else than a data set"
    return Failure(what, found=actual, expected=FACTORY_CONTRACT, fix="return that", code=ExitCode.DATA)
