"""Opens the data set that a user's factory (`package.module:factory`) returns, and checks it.

The factory returns DataSplits, or a pair of datasets whose items are (image, label). This process
reads copies of the datasets, so that forked workers get the originals unread. Many datasets open
their file at the first read, as PyTorch advises for workers. If this process read the originals,
it would open that file before the fork, and all workers would share its offset.
"""

from __future__ import annotations

import gc
import operator
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
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
from train.data.image_folder import ImageFileSource
from train.data.shape import Shape
from train.data.splits import DataSplits, SampleIndices, SampleSource

NUM_CHECKED_ITEMS: Final = 8  # read twice, to see whether they change
DATASET_LOCK: Final = threading.Lock()  # a user's dataset (an HDF5 file, a counter) need not be thread-safe


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSource:
    """Some items of the user's dataset.

    rows: int64 [count], which of them. labels: int64 [count]. size: PIL images are scaled and cut to it. first: shape
    and dtype of the first item, which all must have; None until it is read. name: for errors.
    """

    dataset: Any
    rows: Tensor
    labels: Tensor
    size: int
    name: str
    first: tuple[tuple[int, ...], torch.dtype] | None = None

    def read(self, samples: SampleIndices) -> Tensor:
        """uint8 or float32 [n, *size, channels].

        Raises:
            Failure: DATA, naming the item and, for an error in the user's code, its line.
        """
        shape, dtype = self.first or ((0,), torch.uint8)
        with DATASET_LOCK:
            read = [self.read_one(int(sample)) for sample in samples]
        return torch.stack(read) if read else torch.empty((0, *shape), dtype=dtype)

    def read_one(self, sample: int) -> Tensor:
        """Read one sample. It must have the shape and dtype of the first one, and the label that the dataset lists."""
        row = int(self.rows[sample])
        image, label = read_item(self.dataset, row, self.name)
        pixels = _image_tensor(image, self.size, f"{self.name} item {row}")
        if self.first is not None and (tuple(pixels.shape), pixels.dtype) != self.first:
            expected, actual = describe_sample(*self.first), describe_sample(tuple(pixels.shape), pixels.dtype)
            raise _bad_item_failure(self.name, row, "is not like the first one", actual, expected)
        if label != int(self.labels[sample]):
            expected = f"label {int(self.labels[sample])}, as .targets says"
            raise _bad_item_failure(
                self.name, row, "has another label than the dataset lists", f"label {label}", expected
            )
        if pixels.is_floating_point() and not pixels.isfinite().all():
            raise _bad_item_failure(
                self.name, row, "holds numbers that are not finite", "NaN or infinity", "finite numbers"
            )
        return pixels


def open_dataset_source(dataset: Any, labels: Tensor, size: int, name: str) -> DatasetSource:
    """A source of all items. The first is read; the others must have its shape and dtype."""
    rows = torch.arange(len(labels))
    first = DatasetSource(dataset, rows, labels, size, name).read_one(0)
    return DatasetSource(dataset, rows, labels, size, name, (tuple(first.shape), first.dtype))


def find_changing_item(items: DatasetSource) -> int | None:
    """The first of a few items that changes when it is read again (random transforms); None if none changes."""
    for sample in range(min(NUM_CHECKED_ITEMS, len(items.labels))):
        with suppress(Failure):  # an unreadable item is reported when it is used
            if not torch.equal(items.read_one(sample), items.read_one(sample)):
                return int(items.rows[sample])
    return None


def highest_item_values(items: DatasetSource) -> list[int | None]:
    """Like `decode.highest_values`, for the first few items; empty if they are no PIL images."""
    values: list[int | None] = []
    for row in items.rows[:NUM_CHECKED_ITEMS].tolist():
        with suppress(Failure, *decode.DECODE_ERRORS):
            image, _ = read_item(items.dataset, row, items.name)
            if not isinstance(image, Image.Image):
                return []
            values.append(decode.highest_value(image))
    return values


def are_pil_images(items: DatasetSource) -> bool:
    """Whether the items are PIL images, which are cut and scaled here; arrays keep the size that the dataset gives."""
    return isinstance(read_item(items.dataset, int(items.rows[0]), items.name)[0], Image.Image)


def select_items(items: DatasetSource, chosen: Tensor) -> DatasetSource:
    """The items where `chosen` (bool [count]) is true."""
    return DatasetSource(items.dataset, items.rows[chosen], items.labels[chosen], items.size, items.name, items.first)


def read_item(dataset: Any, row: int, name: str) -> tuple[Any, int]:
    """(image, label) of one item.

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
        return image, operator.index(label)
    except (TypeError, ValueError) as error:
        seen = f"{type(item).__name__}: {error}"
        raise _bad_item_failure(name, row, "is no pair", seen, "(image, label), the label an integer") from error


def _image_tensor(image: Any, size: int, name: str) -> Tensor:
    """One image or clip as [*size, channels]. Tensors have the channels first, arrays last, as in their files."""
    if isinstance(image, Image.Image):
        return torch.from_numpy(np.array(decode.center_crop_and_resize(_to_8_bit_rgb(image, name), size)))
    if not isinstance(image, (Tensor, np.ndarray)):
        raise _not_an_image_failure(name, f"a {type(image).__name__}")
    if isinstance(image, np.ndarray) and image.dtype.kind not in "biufc":
        raise _not_an_image_failure(name, f"an array of {image.dtype}")
    tensor = torch.as_tensor(image)
    if tensor.dtype != torch.uint8 and not tensor.is_floating_point():
        raise _not_an_image_failure(name, f"an array of {str(tensor.dtype).removeprefix('torch.')}")
    laid = move_channels_last(tensor[None], name, channels_first=isinstance(image, Tensor))[0]
    return laid.contiguous() if laid.dtype == torch.uint8 else laid.float().contiguous()


def _to_8_bit_rgb(image: Image.Image, name: str) -> Image.Image:
    """Upright and in 8 bits. Refuses mode I with values up to 255: their upper 8 of 16 bits would be black."""
    try:
        flat = decode.to_rgb(image)
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


MAX_CONTAINER_LENGTH: Final = 1000  # a longer list or dict holds samples, not open files, and is not copied
MAX_COPIED_OBJECTS: Final = 10_000
SHARED_PACKAGES: Final = ("train", "torch", "numpy", "pandas", "pyarrow", "PIL")
TORCH_DATASET_MODULE: Final = "torch.utils.data"
SHARED_TYPES: Final = (
    *(type(None), int, float, complex, str, bytes, range, slice, list, tuple, dict, set, frozenset, type, Enum),
    *(FunctionType, BuiltinFunctionType, ModuleType, np.ndarray, np.generic, Tensor, PurePath, re.Pattern),
)
PSEUDO_FILE_SYSTEMS: Final = ("/proc/", "/sys/", "/dev/")
OPEN_FILES_FOLDER: Final = Path("/proc/self/fd")

FilePosition = tuple[int, int, int]  # device, inode, position


@dataclass(slots=True, eq=False)
class ForkSafeProxy:
    """Reads `local_copy` in the process that created it, and `original` in processes forked from it.

    Not frozen, because `renew_copies` replaces `local_copy`.
    """

    local_copy: Any
    original: Any
    process: int

    @property
    def current(self) -> Any:
        """The dataset that the calling process may read."""
        return self.local_copy if os.getpid() == self.process else self.original

    def __len__(self) -> int:
        return len(self.current)

    def __getitem__(self, row: int) -> Any:
        return self.current[row]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.current, name)


def make_fork_safe(datasets: Sequence[Any], read: Callable[[Any, int], object]) -> tuple[list[Any], str | None]:
    """Wrap each dataset that can be copied, and whose copy can be read, in a ForkSafeProxy.

    Args:
        read: reads one sample, the first (0) or the last (-1).

    Returns:
        The proxies, with the dataset itself where it was not copied; and the path of an open file whose offset
        moves when they are read, so that forked workers would still share it; None if there is none.
    """
    before, copies = open_file_positions(), _copy_datasets(datasets)
    proxies = [
        ForkSafeProxy(copy, dataset, os.getpid()) if copy is not dataset and _try_read(read, copy, 0) else dataset
        for dataset, copy in zip(datasets, copies, strict=True)
    ]
    if not any(isinstance(proxy, ForkSafeProxy) for proxy in proxies):
        # Forked workers would also share a file that a dataset opens at its first read.
        for dataset in datasets:
            _try_read(read, dataset, 0)
        before = open_file_positions()
    reads = [partial(_try_read, read, proxy, sample) for proxy in proxies for sample in (0, -1)]
    return proxies, _find_moved_file(before, reads)


def renew_copies(datasets: Sequence[Any]) -> None:
    """Replace the copies by unread ones, so that the files that they have opened are closed.

    LMDB, for example, does not open an environment that was open in the parent process.
    """
    proxies = [proxy for proxy in datasets if isinstance(proxy, ForkSafeProxy)]
    for proxy, copy in zip(proxies, _copy_datasets([proxy.original for proxy in proxies]), strict=True):
        proxy.local_copy = copy
    gc.collect()  # a dataset that holds a bound method of itself is a reference cycle


def _try_read(read: Callable[[Any, int], object], dataset: Any, sample: int) -> bool:
    """Whether the sample can be read. The error itself is reported by the next reader, which names the item."""
    try:
        read(dataset, sample)
    except Failure as failure:
        if failure.code == ExitCode.STOPPED:  # a stop signal came during the read
            raise
        return False
    except Exception:
        return False
    return True


def _find_moved_file(before: dict[int, FilePosition], reads: Iterable[Callable[[], object]]) -> str | None:
    """The path of the first file whose position the reads have moved; None if none moved."""
    for read in reads:
        read()
        after = open_file_positions()
        for number, (device, inode, position) in before.items():
            if number in after and after[number][:2] == (device, inode) and after[number][2] != position:
                return open_file_path(number)
    return None


def _copy_datasets(datasets: Sequence[Any]) -> list[Any]:
    """Copies of the datasets, which share what the originals share; the originals if there is too much to copy."""
    copier = _Copier()
    try:
        return [copier.copy(dataset) for dataset in datasets]
    except (RecursionError, _TooManyObjectsError):
        return list(datasets)


class _TooManyObjectsError(Exception):
    """A data set consists of more than MAX_COPIED_OBJECTS objects."""


@dataclass(slots=True)
class _Copier:
    """Copies the objects that a data set consists of, but not their data.

    Original and copy share arrays, long lists, and the objects of libraries. None of the user's code is called.
    copies: by the id of the original. opaque: how many objects of unknown type, maybe open files, both share.
    """

    copies: dict[int, Any] = field(default_factory=dict)
    opaque: int = 0

    def copy(self, value: Any) -> Any:
        if id(value) not in self.copies:
            self.copies[id(value)] = self._new(value)
        return self.copies[id(value)]

    def _new(self, value: Any) -> Any:
        if len(self.copies) > MAX_COPIED_OBJECTS:
            raise _TooManyObjectsError
        if type(value) is MethodType:  # `self.read = self._read_tar`
            return MethodType(value.__func__, self.copy(value.__self__))
        if type(value) in (list, tuple, dict) and len(value) <= MAX_CONTAINER_LENGTH:
            return self._filled(value)
        if not _is_copyable(value):
            self.opaque += not isinstance(value, SHARED_TYPES)
            return value
        return self._object(value)

    def _filled(self, container: Any) -> Any:
        if isinstance(container, tuple):
            return tuple(map(self.copy, container))
        copy = self.copies[id(container)] = type(container)()
        if isinstance(container, list):
            copy.extend(map(self.copy, container))
        else:
            copy.update((key, self.copy(value)) for key, value in container.items())
        return copy

    def _object(self, instance: Any) -> Any:
        """A copy; the object itself if its finalizer might close something that both share."""
        cls, before, has_finalizer = type(instance), self.opaque, hasattr(instance, "__del__")
        try:
            copy: Any = object.__new__(_without_finalizer(cls) if has_finalizer else cls)
            self.copies[id(instance)] = copy
            for name, value in getattr(instance, "__dict__", {}).copy().items():
                copy.__dict__[name] = self.copy(value)
            for name in _slot_names(instance):
                with suppress(AttributeError):  # the slot is empty
                    object.__setattr__(copy, name, self.copy(getattr(instance, name)))
            if has_finalizer and self.opaque == before:
                copy.__class__ = cls
        except TypeError:  # a C type, or a type with slots and a finalizer
            self.opaque += 1
            return instance
        return instance if has_finalizer and self.opaque > before else copy


def _without_finalizer(cls: type) -> type:
    """A subclass without the finalizer, for a copy whose finalizer is not known to be harmless yet."""
    return type(cls)(cls.__name__, (cls,), {"__slots__": (), "__del__": lambda self: None})


def _is_copyable(value: Any) -> bool:
    """Whether it is an object of a user's class, or of one of torch's nested data sets (Subset, ConcatDataset)."""
    if isinstance(value, SHARED_TYPES) or not (hasattr(value, "__dict__") or _slot_names(value)):
        return False
    module = type(value).__module__
    package = module.partition(".")[0]
    return package not in sys.stdlib_module_names and (
        package not in SHARED_PACKAGES or module.startswith(TORCH_DATASET_MODULE)
    )


def _slot_names(instance: Any) -> list[str]:
    """The names of the `__slots__` of its classes."""
    slots = []
    for cls in type(instance).__mro__:
        names = cls.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__")
            slots.append(f"_{cls.__name__.lstrip('_')}{name}" if private else name)
    return [name for name in slots if name not in ("__dict__", "__weakref__")]


def open_file_positions() -> dict[int, FilePosition]:
    """Device, inode and position of each regular file that is open read-only, by file descriptor."""
    positions = {}
    for number in _open_file_descriptors():
        with suppress(OSError, KeyError):  # closed in the meantime
            status = os.fstat(number)
            lines = Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()
            fields = dict(
                line.split(":", 1) for line in lines if ":" in line
            )  # some lines of an io_uring have no colon
            read_only = int(fields["flags"], 8) & os.O_ACCMODE == os.O_RDONLY
            if (
                read_only
                and stat.S_ISREG(status.st_mode)
                and not open_file_path(number).startswith(PSEUDO_FILE_SYSTEMS)
            ):
                positions[number] = (status.st_dev, status.st_ino, int(fields["pos"]))
    return positions


def open_file_path(number: int) -> str:
    """The path of an open file."""
    return os.readlink(OPEN_FILES_FOLDER / str(number))


def _open_file_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir(OPEN_FILES_FOLDER)]
    except OSError:  # not Linux
        return []


SPLIT_NAMES: Final = ("training", "validation")
FACTORY_CONTRACT: Final = (
    "train.data.splits.DataSplits, or (training, validation): datasets with len() whose items are (image, label)"
)


def open_custom(data: DataConfig) -> DataSplits:
    """Call the factory with the data section of the config, and check what it returns.

    Raises:
        Failure: USAGE for a factory that cannot be called or fails, DATA for what it returns, naming the item.
    """
    returned = plugin.call_factory(data.name, "data.name", data)
    try:
        return _as_splits(returned, data)
    except (Failure, MemoryError):
        raise
    except Exception as error:  # in the user's dataset: its len(), its read()
        raise plugin.user_code_failure(f"data.name {data.name}: what it returned failed", error) from error


def _as_splits(returned: Any, data: DataConfig) -> DataSplits:
    if isinstance(returned, DataSplits):
        return _check_splits(returned, data)
    if not (isinstance(returned, (tuple, list)) and len(returned) == 2):
        raise _contract_failure(data, type(returned).__name__)
    if returned[0] is None:
        raise _contract_failure(data, "(None, ...)")
    _refuse_non_datasets(returned, data)
    datasets, shared = make_fork_safe(returned, lambda dataset, row: dataset[row % len(dataset)])
    training = _open_dataset(datasets[0], data, SPLIT_NAMES[0])
    validation = None if datasets[1] is None else _open_dataset(datasets[1], data, SPLIT_NAMES[1])
    if validation and validation.first != training.first:
        raise _contract_failure(data, "training and validation samples of different shapes or types")
    names = getattr(datasets[0], "classes", None)
    claimed = len(names) if names else arrays.configured_class_count(data)
    count = arrays.count_classes(data.name, claimed, training.labels, validation.labels if validation else None)
    if validation is None:
        is_validation = arrays.validation_fraction_mask(data, training.labels)
        training, validation = select_items(training, ~is_validation), select_items(training, is_validation)
    shape, dtype = training.first or ((), torch.uint8)
    changing = find_changing_item(training)
    warnings = () if changing is None else (_changing_item_warning(data, changing),)
    deep = decode.bit_depth_warnings(highest_item_values(training), data.name)
    renew_copies(datasets)
    return DataSplits(
        training=training,
        validation=validation,
        classes=tuple(map(str, names or range(count))),
        shape=Shape(channels=shape[-1], size=shape[:-1]),
        floats=dtype.is_floating_point,
        warnings=(*warnings, *deep),
        shared=shared,
    )


def _changing_item_warning(data: DataConfig, row: int) -> str:
    return (
        f"{data.name}: item {row} is not the same when it is read again (random transforms?). Kept in memory, items "
        "are read once and stay so in all epochs; data.loader=workers reads them anew, and a run that goes on or has "
        "other ranks then sees other ones. Take what is random out: data.augment moves images by keys"
    )


def _refuse_non_datasets(datasets: Sequence[Any], data: DataConfig) -> None:
    for dataset, split in zip(datasets, SPLIT_NAMES, strict=True):
        if dataset is not None and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise _contract_failure(data, f"{split}: {type(dataset).__name__}, without len() or without [ ]")


def _open_dataset(dataset: Any, data: DataConfig, split: str) -> DatasetSource:
    name = f"{data.name}, {split} data:"
    if not (count := len(dataset)):
        raise _contract_failure(data, f"{split}: a {type(dataset).__name__} without items")
    labels = arrays.checked_labels(_read_labels(dataset, name), name)
    if len(labels) != count:
        raise _contract_failure(data, f"{split}: {count} items, and {len(labels)} labels in .targets or .labels")
    return open_dataset_source(dataset, labels, data.image_size, name)


def _read_labels(dataset: Any, name: str) -> Tensor:
    """The labels from .targets or .labels, or, without these, from every item."""
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and indices is not None:  # a torch.utils.data.Subset
        return _read_labels(inner, name)[torch.as_tensor(indices)]
    listed = next(
        (labels for key in ("targets", "labels") if (labels := getattr(dataset, key, None)) is not None), None
    )
    if listed is None:
        listed = [read_item(dataset, row, name)[1] for row in range(len(dataset))]
    try:
        return torch.as_tensor(np.asarray(listed))
    except (TypeError, ValueError, RuntimeError) as error:
        raise arrays.bad_data_failure(
            name, "labels are not integers", str(error), "one integer for each item"
        ) from error


def _check_splits(splits: DataSplits, data: DataConfig) -> DataSplits:
    """Check the user's DataSplits: labels within the classes, and a first sample of the declared shape."""
    for source in (splits.training, splits.validation):
        if not (isinstance(getattr(source, "labels", None), Tensor) and callable(getattr(source, "read", None))):
            raise _contract_failure(data, f"a {type(source).__name__} without a tensor of labels, or without read()")
        labels = arrays.checked_labels(source.labels, data.name)
        if len(labels) and int(labels.max()) >= len(splits.classes):
            raise _contract_failure(data, f"label {int(labels.max())}, and {len(splits.classes)} classes")
    if not len(splits.training.labels):
        raise _contract_failure(data, "no training samples")
    sources, shared = make_fork_safe(
        [splits.training, splits.validation], lambda source, row: source.read(np.array([row % len(source.labels)]))
    )
    training, validation = (
        source
        if isinstance(source, ImageFileSource)
        else CheckedSource(source, arrays.checked_labels(source.labels, data.name), splits.shape, data)
        for source in sources
    )
    first = training.read(np.arange(1))
    renew_copies(sources)
    return replace(
        splits,
        training=training,
        validation=validation,
        floats=first.is_floating_point(),
        shared=shared,
    )


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """Checks every read of a user's source: torch would broadcast a single row to all samples."""

    source: SampleSource
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
