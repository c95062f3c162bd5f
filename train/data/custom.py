"""Opens the data set that a user's factory (`package.module:factory`) returns, and checks it.

The factory returns DataSplits, or a pair of datasets whose items are (image, label). This process
reads copies of the datasets, so that forked workers get the originals unread: a file that is opened
at the first read, as PyTorch advises for workers, would otherwise be opened here, and all workers
would share its file offset.
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

NUM_CHECKED_ITEMS: Final = 8  # items that are read twice
DATASET_LOCK: Final = threading.Lock()  # a user's dataset (an HDF5 file, a counter) need not stand several threads


@dataclass(frozen=True, slots=True, eq=False)
class DatasetSource:
    """Some items of the user's dataset.

    rows: int64 [count], which of them. labels: int64 [count]. size: what PIL images are scaled and cut to. first: the
    stored shape and type that all must have; None until the first is read. name: for errors.
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
        shape, kind = self.first or ((0,), torch.uint8)
        with DATASET_LOCK:
            read = [self.one(int(sample)) for sample in samples]
        return torch.stack(read) if read else torch.empty((0, *shape), dtype=kind)

    def one(self, sample: int) -> Tensor:
        """One sample, of the same shape and type as the others, with the label that it was listed with."""
        row = int(self.rows[sample])
        image, label = read_item(self.dataset, row, self.name)
        pixels = _image_tensor(image, self.size, f"{self.name} item {row}")
        if self.first is not None and (tuple(pixels.shape), pixels.dtype) != self.first:
            expected, found = describe_sample(*self.first), describe_sample(tuple(pixels.shape), pixels.dtype)
            raise _bad_item_failure(self.name, row, "is not like the first one", found, expected)
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
    """All items; the first is read, and the others must be like it."""
    rows = torch.arange(len(labels))
    first = DatasetSource(dataset, rows, labels, size, name).one(0)
    return DatasetSource(dataset, rows, labels, size, name, (tuple(first.shape), first.dtype))


def find_changing_item(items: DatasetSource) -> int | None:
    """Which of the first few items is another one when it is read again; None where all stay, as a half of random flips
    does not.
    """
    for sample in range(min(NUM_CHECKED_ITEMS, len(items.labels))):
        with suppress(Failure):  # one that cannot be read is counted where it is used
            if not torch.equal(items.one(sample), items.one(sample)):
                return int(items.rows[sample])
    return None


def highest_item_values(items: DatasetSource) -> list[int | None]:
    """As `decode.highest_values`, of the first few items; nothing where they are no PIL images."""
    found: list[int | None] = []
    for row in items.rows[:NUM_CHECKED_ITEMS].tolist():
        with suppress(Failure, *decode.DECODE_ERRORS):
            image, _ = read_item(items.dataset, row, items.name)
            if not isinstance(image, Image.Image):
                return []
            found.append(decode.highest_value(image))
    return found


def are_pil_images(items: DatasetSource) -> bool:
    """Whether they are PIL images, which are cut and scaled here; arrays are as the data set has made them."""
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
        found = dataset[row]
    except (Failure, MemoryError):
        raise
    except Exception as error:
        raise _bad_item_failure(
            name, row, "cannot be read", plugin.describe_user_error(error), "(image, label)"
        ) from error
    try:
        image, label = found
        return image, operator.index(label)
    except (TypeError, ValueError) as error:
        seen = f"{type(found).__name__}: {error}"
        raise _bad_item_failure(name, row, "is no pair", seen, "(image, label), the label an integer") from error


def _image_tensor(image: Any, size: int, name: str) -> Tensor:
    """One image or clip as [*size, channels]: tensors have their channels first, arrays last, as files of them do."""
    if isinstance(image, Image.Image):
        return torch.from_numpy(np.array(decode.center_crop_and_resize(_to_8_bit_rgb(image, name), size)))
    if not isinstance(image, (Tensor, np.ndarray)):
        raise _not_an_image_failure(name, f"a {type(image).__name__}")
    if isinstance(image, np.ndarray) and image.dtype.kind not in "biufc":
        raise _not_an_image_failure(name, f"an array of {image.dtype}")
    found = torch.as_tensor(image)
    if found.dtype != torch.uint8 and not found.is_floating_point():
        raise _not_an_image_failure(name, f"an array of {str(found.dtype).removeprefix('torch.')}")
    laid = move_channels_last(found[None], name, channels_first=isinstance(image, Tensor))[0]
    return laid.contiguous() if laid.dtype == torch.uint8 else laid.float().contiguous()


def _to_8_bit_rgb(image: Image.Image, name: str) -> Image.Image:
    """Upright and in 8 bits. Mode I also comes of numbers up to 255: their upper 8 of 16 bits would be black."""
    try:
        flat = decode.to_rgb(image)
        if image.mode == "I" and 0 < np.asarray(image).max() <= 0xFF:
            raise ValueError("pixels of 32 bits (mode I), none above 255: save it with 8 or 16 bits")
    except decode.DECODE_ERRORS as error:  # an image that was opened is read only here
        if isinstance(error, OSError) and error.errno in decode.OS_ERRORS:
            raise
        raise _not_an_image_failure(name, str(error)) from error
    return flat


def describe_sample(shape: tuple[int, ...], kind: torch.dtype) -> str:
    """In words."""
    return f"{list(shape)}, {str(kind).removeprefix('torch.')}"


def _bad_item_failure(name: str, row: int, what: str, found: str, expected: str) -> Failure:
    said = f"{name} item {row} {what}"
    return Failure(said, found=found, expected=expected, fix="mend the dataset, or leave it out", code=ExitCode.DATA)


def _not_an_image_failure(name: str, found: str) -> Failure:
    expected = "a PIL image, or an array or tensor of uint8 or floats"
    fix = "convert it in the dataset's __getitem__, or leave it out"
    return Failure(f"{name} is no image", found=found, expected=expected, fix=fix, code=ExitCode.DATA)


MAX_CONTAINER_LENGTH: Final = (
    1000  # of a list or a dict that is looked into: longer ones hold samples, and no open files
)
MAX_COPIED_OBJECTS: Final = 10_000  # objects that are copied
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
    """Reads `here` in this process, and `elsewhere` in those that are forked from it. Not frozen: see
    `renew_copies`."""

    here: Any
    elsewhere: Any
    process: int

    @property
    def mine(self) -> Any:
        """What the process that asks may read."""
        return self.here if os.getpid() == self.process else self.elsewhere

    def __len__(self) -> int:
        return len(self.mine)

    def __getitem__(self, row: int) -> Any:
        return self.mine[row]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mine, name)


def make_fork_safe(given: Sequence[Any], read: Callable[[Any, int], object]) -> tuple[list[Any], str | None]:
    """Each of them for two, where it can be copied, and its copy can be read; else as it is. And the file that both
    have open all the same, whose position moves as they are read.

    Args:
        read: reads one sample, the first (0) or the last (-1).
    """
    before, copies = open_file_positions(), _copy_datasets(given)
    made = [
        ForkSafeProxy(copy, one, os.getpid()) if copy is not one and _try_read(read, copy, 0) else one
        for one, copy in zip(given, copies, strict=True)
    ]
    if not any(isinstance(one, ForkSafeProxy) for one in made):  # what they open at their first read both have too
        for one in given:
            _try_read(read, one, 0)
        before = open_file_positions()
    return made, _find_moved_file(before, [partial(_try_read, read, one, sample) for one in made for sample in (0, -1)])


def renew_copies(given: Sequence[Any]) -> None:
    """Let what the copies have opened be closed, and take new ones. LMDB, for one, does not open what was open in the
    process that its own was forked from.
    """
    kept = [one for one in given if isinstance(one, ForkSafeProxy)]
    for one, copy in zip(kept, _copy_datasets([one.elsewhere for one in kept]), strict=True):
        one.here = copy
    gc.collect()  # a data set that holds a method of its own is a circle


def _try_read(read: Callable[[Any, int], object], one: Any, sample: int) -> bool:
    """An error is told by who reads next, with its place."""
    try:
        read(one, sample)
    except Failure as failure:
        if failure.code == ExitCode.STOPPED:  # a signal that came meanwhile
            raise
        return False
    except Exception:
        return False
    return True


def _find_moved_file(before: dict[int, FilePosition], reads: Iterable[Callable[[], object]]) -> str | None:
    """The first of these files that is still open, and was read on."""
    for read in reads:
        read()
        now = open_file_positions()
        for number, (device, inode, position) in before.items():
            if number in now and now[number][:2] == (device, inode) and now[number][2] != position:
                return open_file_path(number)
    return None


def _copy_datasets(given: Sequence[Any]) -> list[Any]:
    """What they share their copies share too."""
    copier = _Copier()
    try:
        return [copier.of(one) for one in given]
    except (RecursionError, _TooManyObjectsError):
        return list(given)


class _TooManyObjectsError(Exception):
    """More objects than a data set has open files."""


@dataclass(slots=True)
class _Copier:
    """Copies the objects that a data set is built of, and none of their data: arrays, long lists and what a library or
    the system has made are the same in both. No code of the user's is called.

    opaque: how many objects of unknown kinds, an open file perhaps, are in both.
    """

    known: dict[int, Any] = field(default_factory=dict)
    opaque: int = 0

    def of(self, one: Any) -> Any:
        if id(one) not in self.known:
            self.known[id(one)] = self._new(one)
        return self.known[id(one)]

    def _new(self, one: Any) -> Any:
        if len(self.known) > MAX_COPIED_OBJECTS:
            raise _TooManyObjectsError
        if type(one) is MethodType:  # `self.read = self._read_tar`
            return MethodType(one.__func__, self.of(one.__self__))
        if type(one) in (list, tuple, dict) and len(one) <= MAX_CONTAINER_LENGTH:
            return self._filled(one)
        if not _is_copyable(one):
            self.opaque += not isinstance(one, SHARED_TYPES)
            return one
        return self._object(one)

    def _filled(self, one: Any) -> Any:
        if isinstance(one, tuple):
            return tuple(map(self.of, one))
        made = self.known[id(one)] = type(one)()
        if isinstance(one, list):
            made.extend(map(self.of, one))
        else:
            made.update((key, self.of(value)) for key, value in one.items())
        return made

    def _object(self, one: Any) -> Any:
        """The same object where its end would close what both have."""
        kind, before, ends = type(one), self.opaque, hasattr(one, "__del__")
        try:
            made: Any = object.__new__(_without_finalizer(kind) if ends else kind)
            self.known[id(one)] = made
            for name, value in getattr(one, "__dict__", {}).copy().items():
                made.__dict__[name] = self.of(value)
            for name in _slot_names(one):
                with suppress(AttributeError):  # nothing was put there
                    object.__setattr__(made, name, self.of(getattr(one, name)))
            if ends and self.opaque == before:
                made.__class__ = kind
        except TypeError:  # made in C, or with slots where it has an end
            self.opaque += 1
            return one
        return one if ends and self.opaque > before else made


def _without_finalizer(kind: type) -> type:
    """What becomes an object of a class with an end, once it is known to be harmless."""
    return type(kind)(kind.__name__, (kind,), {"__slots__": (), "__del__": lambda self: None})


def _is_copyable(one: Any) -> bool:
    """Whether it is an object of a class of the user's own, or of torch's nested data sets."""
    if isinstance(one, SHARED_TYPES) or not (hasattr(one, "__dict__") or _slot_names(one)):
        return False
    module = type(one).__module__
    package = module.partition(".")[0]
    return package not in sys.stdlib_module_names and (
        package not in SHARED_PACKAGES or module.startswith(TORCH_DATASET_MODULE)
    )


def _slot_names(one: Any) -> list[str]:
    """The names that its classes keep beside a `__dict__`."""
    found = []
    for kind in type(one).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{kind.__name__.lstrip('_')}{name}" if private else name)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def open_file_positions() -> dict[int, FilePosition]:
    """Of each file that is open to be read only: which it is, and where it is read next."""
    found = {}
    for number in _open_file_descriptors():
        with suppress(OSError, KeyError):  # closed meanwhile
            status = os.fstat(number)
            lines = Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()
            told = dict(line.split(":", 1) for line in lines if ":" in line)  # io_uring's has lines without
            reads = int(told["flags"], 8) & os.O_ACCMODE == os.O_RDONLY
            if reads and stat.S_ISREG(status.st_mode) and not open_file_path(number).startswith(PSEUDO_FILE_SYSTEMS):
                found[number] = (status.st_dev, status.st_ino, int(told["pos"]))
    return found


def open_file_path(number: int) -> str:
    """Of an open file."""
    return os.readlink(OPEN_FILES_FOLDER / str(number))


def _open_file_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir(OPEN_FILES_FOLDER)]
    except OSError:  # not Linux
        return []


SPLIT_NAMES: Final = ("training", "held-out")
FACTORY_CONTRACT: Final = (
    "train.data.splits.DataSplits, or (training, validation): datasets with len() whose items are (image, label)"
)


def open_custom(data: DataConfig) -> DataSplits:
    """Call the factory with the data section of the config, and take what it returns.

    Raises:
        Failure: USAGE for a factory that cannot be called or fails, DATA for what it returns, naming the item.
    """
    made = plugin.call_factory(data.name, "data.name", data)
    try:
        return _as_splits(made, data)
    except (Failure, MemoryError):
        raise
    except Exception as error:  # in what the user's data set does: its len(), its read()
        raise plugin.user_code_failure(f"data.name {data.name}: what it returned failed", error) from error


def _as_splits(made: Any, data: DataConfig) -> DataSplits:
    if isinstance(made, DataSplits):
        return _check_splits(made, data)
    if not (isinstance(made, (tuple, list)) and len(made) == 2):
        raise _contract_failure(data, type(made).__name__)
    if made[0] is None:
        raise _contract_failure(data, "(None, ...)")
    _refuse_non_datasets(made, data)
    made, shared = make_fork_safe(made, lambda dataset, row: dataset[row % len(dataset)])
    training, others = (
        _open_dataset(made[0], data, SPLIT_NAMES[0]),
        None if made[1] is None else _open_dataset(made[1], data, SPLIT_NAMES[1]),
    )
    if others and others.first != training.first:
        raise _contract_failure(data, "training and held-out samples of different shapes or types")
    names = getattr(made[0], "classes", None)
    claimed = len(names) if names else arrays.configured_class_count(data)
    count = arrays.count_classes(data.name, claimed, training.labels, others.labels if others else None)
    if others is None:
        chosen = arrays.validation_fraction_mask(data, training.labels)
        training, others = select_items(training, ~chosen), select_items(training, chosen)
    shape, kind = training.first or ((), torch.uint8)
    changing = find_changing_item(training)
    warnings = () if changing is None else (_changing_item_warning(data, changing),)
    deep = decode.bit_depth_warnings(highest_item_values(training), data.name)
    renew_copies(made)
    return DataSplits(
        training=training,
        validation=others,
        classes=tuple(map(str, names or range(count))),
        shape=Shape(channels=shape[-1], size=shape[:-1]),
        floats=kind.is_floating_point,
        warnings=(*warnings, *deep),
        shared=shared,
    )


def _changing_item_warning(data: DataConfig, row: int) -> str:
    return (
        f"{data.name}: item {row} is not the same when it is read again (random transforms?). Kept in memory, items "
        "are read once and stay so in all epochs; data.loader=workers reads them anew, and a run that goes on or has "
        "other ranks then sees other ones. Take what is random out: data.augment moves images by keys"
    )


def _refuse_non_datasets(made: Sequence[Any], data: DataConfig) -> None:
    for dataset, side in zip(made, SPLIT_NAMES, strict=True):
        if dataset is not None and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise _contract_failure(data, f"{side}: {type(dataset).__name__}, without len() or without [ ]")


def _open_dataset(dataset: Any, data: DataConfig, side: str) -> DatasetSource:
    name = f"{data.name}, {side} data:"
    if not (count := len(dataset)):
        raise _contract_failure(data, f"{side}: a {type(dataset).__name__} without items")
    found = arrays.checked_labels(_read_labels(dataset, name), name)
    if len(found) != count:
        raise _contract_failure(data, f"{side}: {count} items, and {len(found)} labels in .targets or .labels")
    return open_dataset_source(dataset, found, data.image_size, name)


def _read_labels(dataset: Any, name: str) -> Tensor:
    """As the dataset lists them, or, where it does not, out of every item."""
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and indices is not None:  # a torch.utils.data.Subset
        return _read_labels(inner, name)[torch.as_tensor(indices)]
    listed = next((found for key in ("targets", "labels") if (found := getattr(dataset, key, None)) is not None), None)
    if listed is None:
        listed = [read_item(dataset, row, name)[1] for row in range(len(dataset))]
    try:
        return torch.as_tensor(np.asarray(listed))
    except (TypeError, ValueError, RuntimeError) as error:
        raise arrays.bad_data_failure(
            name, "labels are not integers", str(error), "one integer for each item"
        ) from error


def _check_splits(made: DataSplits, data: DataConfig) -> DataSplits:
    """The user's own Sets: labels within the classes, and a first sample of the promised shape."""
    for side in (made.training, made.validation):
        if not (isinstance(getattr(side, "labels", None), Tensor) and callable(getattr(side, "read", None))):
            raise _contract_failure(data, f"a {type(side).__name__} without a tensor of labels, or without read()")
        found = arrays.checked_labels(side.labels, data.name)
        if len(found) and int(found.max()) >= len(made.classes):
            raise _contract_failure(data, f"label {int(found.max())}, and {len(made.classes)} classes")
    if not len(made.training.labels):
        raise _contract_failure(data, "no training samples")
    sides, shared = make_fork_safe(
        [made.training, made.validation], lambda side, row: side.read(np.array([row % len(side.labels)]))
    )
    training, validation = (
        side
        if isinstance(side, ImageFileSource)
        else CheckedSource(side, arrays.checked_labels(side.labels, data.name), made.shape, data)
        for side in sides
    )
    first = training.read(np.arange(1))
    renew_copies(sides)
    return replace(
        made,
        training=training,
        validation=validation,
        floats=first.is_floating_point(),
        shared=shared,
    )


@dataclass(frozen=True, slots=True)
class CheckedSource:
    """A source of the user's own, held to what it says in every read: one row too few would be given to all samples."""

    source: SampleSource
    labels: Tensor
    shape: Shape
    data: DataConfig

    def read(self, samples: SampleIndices) -> Tensor:
        """As `Source.read`. Raises Failure: DATA for other shapes and types, USAGE for an error in the user's code."""
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
            found = f"{rows} for {len(samples)}, and the shape {self.shape}"
            raise _contract_failure(self.data, found)
        if not read.isfinite().all():
            raise _contract_failure(
                self.data, f"NaN or infinity in one of the samples {', '.join(map(str, samples[:5]))}, ..."
            )
        return read


def _contract_failure(data: DataConfig, found: str) -> Failure:
    what = f"data.name {data.name} returned something else than a data set"
    return Failure(what, found=found, expected=FACTORY_CONTRACT, fix="return that", code=ExitCode.DATA)
