"""Opens data sets stored in .npz, .safetensors and .pt files.

Pickled objects are never loaded. Where possible arrays are memory-mapped, so that ranks share them;
names and shapes of .npz and .safetensors files are read from the headers alone. Samples have the
axes [N, (frames,) height, width, channels] after opening.
"""

from __future__ import annotations

import math
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from errno import EINVAL
from itertools import chain, islice
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn.functional import interpolate

from entrypoint import ExitCode, Failure
from train.config import batches
from train.config.schema import DataConfig
from train.data import array_files, image_folder
from train.data.shape import Shape
from train.data.splits import DataSplits
from train.files import format_bytes

FIRST_BYTES: Final = (
    b"P",
    b"\x93",
    b"\x80",
)  # of a zip archive, of one array, and of a pickle, which is refused as one
HEADER_READERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
ZIP_LOCAL_HEADER: Final = struct.Struct("<26xHH")  # at the end of a local header: of the name and of what follows it
READ_CHUNK_BYTES: Final = 2**20
MIN_IMAGE_AXES: Final = 3  # of images: labels have fewer, and are read
MIN_REPORTED_BYTES: Final = 2**28  # bytes of memory of each rank
ArraySelector = Callable[[Iterable[str]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArrayLocation:
    """Where the numbers of an array lie in the file, [shape] of a type of this machine's."""

    offset: int
    shape: tuple[int, ...]
    kind: np.dtype[Any]


def load_npz(file: Path, pick: ArraySelector) -> dict[str, Tensor]:
    """The arrays that `pick` chooses of their names, each compared with its checksum.

    Raises:
        ValueError, KeyError, OSError, zipfile.BadZipFile, zlib.error: for what is no such file, or is damaged.
        Failure: as `array_files.read_shapes`.
    """
    with file.open("rb") as stream:  # numpy would leave a broken file open
        if stream.read(1) not in FIRST_BYTES:  # numpy would call a text a pickle
            raise ValueError("no archive of numpy's")
        stream.seek(0)
        archive = np.load(stream, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("one array, and no archive of several")
        array_files.read_shapes(file)  # refuses arrays larger than their bytes, for which numpy would ask for memory
        return {name: _as_tensor(name, _read_array(archive, stream, name)) for name in pick(archive.files)}


def unmapped_bytes(file: Path, names: Iterable[str]) -> int:
    """Bytes of those arrays that `load` has to read into memory, for each process anew."""
    with file.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        there = {entry.filename: entry.file_size for entry in archive.infolist()}
        return sum(there.get(f"{name}.npy", 0) for name in names if _locate_array(archive, stream, name) is None)


def _read_array(archive: Any, stream: BinaryIO, name: str) -> Any:
    place = _locate_array(archive.zip, stream, name)
    if place is None:
        return archive[name]
    with archive.zip.open(f"{name}.npy") as entry:
        while entry.read(READ_CHUNK_BYTES):  # which compares the checksum
            pass
    return np.memmap(stream, place.kind, "r", place.offset, place.shape)


def _locate_array(archive: zipfile.ZipFile, stream: BinaryIO, name: str) -> _ArrayLocation | None:
    """None where the bytes are not those that memory would hold; and for what numpy will refuse."""
    entry = archive.NameToInfo.get(f"{name}.npy")
    if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:  # with a password
        return None
    with archive.open(entry) as content:
        read = HEADER_READERS.get(np.lib.format.read_magic(content))
        if read is None:
            return None
        shape, fortran, kind = read(content)
        begins = content.tell()
    whole = 0 < math.prod(shape) * kind.itemsize <= entry.file_size - begins
    if fortran or not kind.isnative or kind.kind not in "biuf" or len(shape) < MIN_IMAGE_AXES or not whole:
        return None
    stream.seek(entry.header_offset)
    local = stream.read(ZIP_LOCAL_HEADER.size)
    return _ArrayLocation(
        offset=entry.header_offset + len(local) + sum(ZIP_LOCAL_HEADER.unpack(local)) + begins, shape=shape, kind=kind
    )


def _as_tensor(name: str, array: npt.NDArray[Any]) -> Tensor:
    """Without a copy, unless its bytes lie in another machine's order."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has the type {array.dtype}, and no numbers")
    with warnings.catch_warnings(action="ignore"):  # of what is mapped: nobody writes to it
        return torch.from_numpy(np.asarray(array, array.dtype.newbyteorder("=")))


SampleIndices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ArraySource:
    """Some rows of an array. Forked workers share its memory; nothing is copied but what is read.

    pixels: uint8 or float [N, *size, channels], any strides. rows: int64 [count], which of the N. labels: int64
    [count]. name: of the file, for errors. size: what images are resized to; None: they stay.
    """

    pixels: Tensor
    rows: Tensor
    labels: Tensor
    name: str
    size: int | None = None

    def read(self, samples: SampleIndices) -> Tensor:
        """uint8 or float32 [n, *size, channels].

        Raises:
            Failure: DATA for numbers that are not finite, naming the first such sample.
        """
        rows = self.rows[torch.from_numpy(samples)]
        taken = _gather_rows(self.pixels, rows)
        if taken.dtype != torch.uint8:
            taken = taken.float()
            self._refuse_not_finite(taken, rows)
        return taken if self.size is None else resize_images(taken, self.size)

    def _refuse_not_finite(self, taken: Tensor, rows: Tensor) -> None:
        fine = taken.flatten(1).isfinite().all(dim=1)
        if not fine.all():
            row = int(rows[int(fine.int().argmin())])
            raise Failure(
                f"sample {row} holds numbers that are not finite",
                found=f"{self.name}: NaN or infinity in row {row}",
                expected="finite numbers",
                fix="replace or remove the sample",
                code=ExitCode.DATA,
            )


def _gather_rows(pixels: Tensor, rows: Tensor) -> Tensor:
    """These rows. Numbers that are mapped from an .npz may begin at any byte, which torch does not expect: as bytes."""
    if pixels.data_ptr() % pixels.itemsize == 0 or pixels.stride(-1) != 1:
        return pixels[rows].contiguous()
    return pixels.view(torch.uint8)[rows].contiguous().view(pixels.dtype)


def array_source(pixels: Tensor, labels: Tensor, name: str, size: int | None = None) -> ArraySource:
    """All rows of an array; resized only where `size` is not theirs already."""
    size = None if size is None or tuple(pixels.shape[1:3]) == (size, size) else size
    return ArraySource(pixels, torch.arange(len(labels)), labels, name, size)


def select_samples(source: ArraySource, chosen: Tensor) -> ArraySource:
    """The samples where `chosen` (bool [count]) is true, of the same array."""
    return ArraySource(source.pixels, source.rows[chosen], source.labels[chosen], source.name, source.size)


def resize_images(images: Tensor, size: int) -> Tensor:
    """uint8 [n, height, width, channels] as [n, size, size, channels]: bilinear, each result the mean of what it
    covers, so that a smaller image is not made of single pixels."""
    moved = interpolate(images.movedim(-1, 1), size=(size, size), mode="bilinear", antialias=True, align_corners=False)
    return moved.movedim(1, -1).contiguous()


def checked_labels(labels: Tensor, name: str) -> Tensor:
    """int64 [N], from integers of any width; [N, 1] is taken too.

    Raises:
        Failure: DATA.
    """
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1:
        fix = "save labels.argmax(1)" if flat.ndim == 2 else "save one label for each sample"
        raise bad_data_failure(name, "labels have other axes than samples", f"labels {list(labels.shape)}", "[N]", fix)
    if flat.is_floating_point() or flat.is_complex() or flat.dtype == torch.bool:
        raise bad_data_failure(
            name, "labels are not integers", describe_tensor(labels), "integers", "save labels.astype('int64')"
        )
    flat = flat.to(torch.int64)
    if len(flat) and int(flat.min()) < 0:
        raise bad_data_failure(
            name, "a label is negative", f"{int(flat.min())}", "labels from 0 on", "number the classes from 0"
        )
    return flat


def count_classes(name: str, claimed: int | None, training: Tensor, validation: Tensor | None) -> int:
    """How many classes these labels are of: `claimed`, or, where nobody says it, as many as there are labels.

    A class without a training sample is taken for a mistake (labels that begin with 1), unless the number is claimed.

    Raises:
        Failure: DATA.
    """
    found = max(int(labels.max()) for labels in (training, validation) if labels is not None and len(labels)) + 1
    if claimed is not None and found > claimed:
        fix = f"set data.classes to {found}, or leave it out"
        raise bad_data_failure(
            name, "a label is not below the number of classes", f"label {found - 1}", f"below {claimed}", fix
        )
    present = set(training.tolist())
    if claimed is None and len(present) < found:
        empty = islice((label for label in range(found) if label not in present), 5)
        what = f"{found - len(present)} of {found} classes have no training sample"
        fix = f"number the classes from 0 without gaps, or set data.classes to {found} if this is meant"
        raise bad_data_failure(name, what, f"no label {', '.join(map(str, empty))}", f"0..{found - 1}", fix)
    if (claimed or found) < 2:
        raise bad_data_failure(name, "there is only one class", "label 0 alone", "two classes or more")
    return claimed or found


def bad_data_failure(
    name: str, what: str, found: str, expected: str = "one of each", fix: str = "write the file anew"
) -> Failure:
    """Data of the user's that cannot be trained on. `name`: of its file or factory."""
    return Failure(what, found=f"{name}: {found}", expected=expected, fix=fix, code=ExitCode.DATA)


def describe_tensor(tensor: Tensor) -> str:
    """Its type and axes, in words."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


CHANNEL_COUNTS: Final = (1, 3, 4)  # what an axis may be long that is taken for channels without being told
CHANNELS_LAST_AXES: Final = "[N, H, W], [N, H, W, C] with C 1, 3 or 4, clips [N, F, H, W] or [N, F, H, W, C]"
CHANNELS_FIRST_AXES: Final = "[N, H, W], [N, C, H, W], clips [N, C, F, H, W]"


def move_channels_last(images: Tensor, name: str, *, channels_first: bool) -> Tensor:
    """A view as [N, *size, channels].

    In .npz files channels are last: four axes are images where the last is 1, 3 or 4 long, else clips of one channel.
    In tensor files they are first, as torch has them: four axes are images, five are clips.

    Raises:
        Failure: DATA for another number of axes, or where they look like the other convention, or like many channels
            that are last: as a clip of one channel they would be trained on over rows, columns and bands.
    """
    shape = list(images.shape)
    if len(shape) == 3:
        return images[..., None]
    if (
        len(shape) == 4
        and (shape[1] in CHANNEL_COUNTS) != (shape[3] in CHANNEL_COUNTS)
        and (shape[1] in CHANNEL_COUNTS) != channels_first
    ):
        raise _channel_axis_failure(name, shape, channels_first)
    if len(shape) == 4 and _looks_multispectral(shape):
        raise _multispectral_failure(name, shape, channels_first)
    if len(shape) not in (4, 5):
        raise bad_data_failure(
            name,
            "images with these axes cannot be used",
            f"{shape}",
            CHANNELS_FIRST_AXES if channels_first else CHANNELS_LAST_AXES,
        )
    if channels_first:
        return images.movedim(1, -1)
    return images[..., None] if len(shape) == 4 and shape[3] not in CHANNEL_COUNTS else images


def _looks_multispectral(shape: list[int]) -> bool:
    """Images are often square, with fewer bands than rows; a clip of as many frames as rows is hardly that narrow."""
    return shape[1] == shape[2] > 2 * shape[3] and shape[3] not in CHANNEL_COUNTS


def _multispectral_failure(name: str, shape: list[int], channels_first: bool) -> Failure:
    found = f"{shape}, whose last axis seems to be {shape[3]} channels"
    fix = f"permute the axes: (0, 3, 1, 2), and save tensors [N, {shape[3]}, H, W] (data.name: tensor)"
    fix += "" if channels_first else f"; clips of {shape[1]} frames are saved as [N, {shape[1]}, H, W, 1]"
    return bad_data_failure(
        name,
        "images have more channels than can be told",
        found,
        CHANNELS_FIRST_AXES if channels_first else CHANNELS_LAST_AXES,
        fix,
    )


def _channel_axis_failure(name: str, shape: list[int], channels_first: bool) -> Failure:
    found = f"{shape}, whose channels seem to be {'last' if channels_first else 'first'}"
    fix = "permute the axes: (0, 3, 1, 2)" if channels_first else "permute the axes: (0, 2, 3, 1)"
    fix += "" if channels_first else f"; clips of {shape[1]} frames are saved as [N, {shape[1]}, H, W, 1]"
    return bad_data_failure(
        name,
        "images have their channels in another place",
        found,
        CHANNELS_FIRST_AXES if channels_first else CHANNELS_LAST_AXES,
        fix,
    )


def checked_array_source(images: Tensor, labels: Tensor, name: str, *, channels_first: bool) -> ArraySource:
    """One side of the data. `name`: of the file, for errors.

    Raises:
        Failure: DATA, saying what was found and how to write it instead.
    """
    numbers = checked_labels(labels, name)
    if len(images) != len(numbers):
        raise bad_data_failure(
            name, "images and labels are not of one length", f"{len(images)} images, {len(numbers)} labels"
        )
    if images.numel() == 0:
        raise bad_data_failure(name, "there are no samples", f"images {list(images.shape)}", "at least one")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        fix = "scale them to 0..255 and save them as uint8, or to about -2..2 and save them as float32"
        raise bad_data_failure(
            name, "images of this type cannot be used", describe_tensor(images), "uint8 or a float", fix
        )
    return array_source(move_channels_last(images, name, channels_first=channels_first), numbers, name)


def configured_class_count(data: DataConfig) -> int | None:
    """data.classes, where it is not its default, which is no claim."""
    return data.classes if data.classes != DataConfig().classes else None


def validation_fraction_mask(data: DataConfig, labels: Tensor) -> Tensor:
    """Which samples data.val_fraction sets aside, bool [N]: the same share of every class."""
    count = batches.num_validation_samples(len(labels), data.val_fraction)
    return torch.from_numpy(image_folder.validation_mask(labels.numpy(), count))


def build_splits(data: DataConfig, training: ArraySource, validation: ArraySource | None) -> DataSplits:
    """Both sides; where nothing is held out, data.val_fraction of every class is.

    Raises:
        Failure: DATA, where the sides do not fit together, or not to the config.
    """
    shape = _sample_shape(training)
    if validation is not None:
        _refuse_different_splits(training, validation)
    others = validation.labels if validation else None
    classes = count_classes(training.name, configured_class_count(data), training.labels, others)
    _refuse_other_image_size(data, shape, training.name)
    if validation is None:
        chosen = validation_fraction_mask(data, training.labels)
        training, validation = select_samples(training, ~chosen), select_samples(training, chosen)
    names = tuple(str(label) for label in range(classes))
    content = "clips" if len(shape.size) == 3 else "images"
    note = f"{training.name} holds {content} of {shape}, {_describe_dtype(training.pixels)}"
    return DataSplits(
        training=training,
        validation=validation,
        classes=names,
        shape=shape,
        notes=(note,),
        floats=training.pixels.is_floating_point(),
    )


def _refuse_different_splits(one: ArraySource, other: ArraySource) -> None:
    mine, theirs = (f"{_sample_shape(side)}, {_describe_dtype(side.pixels)}" for side in (one, other))
    if mine != theirs:
        raise bad_data_failure(
            other.name, "training and held-out samples differ", f"{mine} and {theirs}", "one shape and type"
        )


def _refuse_other_image_size(data: DataConfig, shape: Shape, name: str) -> None:
    """A default is no claim; any other size must be right."""
    size = data.image_size
    if size != DataConfig().image_size and shape.size[-2:] != (size, size):
        fix = "leave data.image_size out: arrays are not resized"
        raise bad_data_failure(name, "data.image_size is not the size of the images", f"{shape}", f"{size} pixels", fix)


def _sample_shape(one: ArraySource) -> Shape:
    return Shape(channels=one.pixels.shape[-1], size=tuple(one.pixels.shape[1:-1]))


def _describe_dtype(pixels: Tensor) -> str:
    return "bytes" if pixels.dtype == torch.uint8 else "floats, which go to the model as they are"


def open_arrays(data: DataConfig, *, channels_first: bool) -> DataSplits:
    """Both sides, as they are stored: nothing is resized. See `tensors.laid_out` for the axes.

    Of files as numpy.savez and torch write them only what is used is read, and ranks share it in memory.

    Raises:
        Failure: NO_INPUT for missing files, DATA for arrays that are no data set, SECURITY for pickled objects.
    """
    file, other = array_files.find_array_files(Path(data.root), data.name)
    loaded, first = _load_arrays(file), channels_first
    notes = [*_unshared_memory_notes(file, loaded)]
    mine, theirs = array_files.find_array_names(loaded, file)
    training = checked_array_source(loaded[mine[0]], loaded[mine[1]], str(file), channels_first=first)
    if other is not None:
        loaded, file = _load_arrays(other), other
        notes += _unshared_memory_notes(file, loaded)
        theirs, _ = array_files.find_array_names(loaded, other)
    validation = theirs and checked_array_source(loaded[theirs[0]], loaded[theirs[1]], str(file), channels_first=first)
    sets = build_splits(data, training, validation or None)
    return replace(sets, notes=(*sets.notes, *notes))


def _unshared_memory_notes(file: Path, names: Iterable[str]) -> Iterator[str]:
    """What each rank holds for itself, where that is much."""
    if file.suffix != ".npz":
        return
    with _translate_load_errors(file):
        size = unmapped_bytes(file, names)
    if size >= MIN_REPORTED_BYTES:
        yield (
            f"{file.name}: each rank reads {format_bytes(size)} of it into memory of its own, since it is compressed, "
            "or not in this machine's order; written by numpy.savez, or as .safetensors, ranks would share it"
        )


def _load_arrays(file: Path) -> Mapping[str, Tensor]:
    """The arrays that are meant, by name."""

    def pick(keys: Iterable[str]) -> list[str]:
        training, validation = array_files.find_array_names(list(keys), file)
        return list(chain(training, validation or ()))

    with _translate_load_errors(file):
        return LOADERS[file.suffix](file, pick)


def _load_safetensors(file: Path, pick: ArraySelector) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as archive:
        return {name: archive.get_tensor(name) for name in pick(archive.keys())}


def _load_torch_file(file: Path, pick: ArraySelector) -> dict[str, Tensor]:
    """A mapping of tensors, or (images, labels)."""
    mapped = zipfile.is_zipfile(file)  # what torch wrote before 1.6 is none
    with warnings.catch_warnings(action="ignore"):  # of kinds of tensors that are refused here
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    if isinstance(content, (tuple, list)) and len(content) == 2:
        content = dict(zip(("images", "labels"), content, strict=True))
    if not isinstance(content, Mapping):
        raise ValueError(f"a {type(content).__name__}, and no mapping of names to tensors")
    found = {str(name): value.detach() for name, value in content.items() if isinstance(value, Tensor)}
    return {name: _require_dense_tensor(name, found[name]) for name in pick(found)}


def _require_dense_tensor(name: str, tensor: Tensor) -> Tensor:
    if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError(f"{name} is a sparse, nested or quantized tensor, or one without numbers")
    return tensor


LOADERS: Final[Mapping[str, Callable[[Path, ArraySelector], dict[str, Tensor]]]] = {
    ".npz": load_npz,
    ".safetensors": _load_safetensors,
    ".pt": _load_torch_file,
    ".pth": _load_torch_file,
}


@contextmanager
def _translate_load_errors(file: Path) -> Iterator[None]:
    """Turn what the three libraries raise into one error that names the file."""
    try:
        yield
    except UnpicklingError as error:
        raise _pickled_objects_failure(file, str(error)) from error
    except (*array_files.PARSE_ERRORS, RuntimeError, SafetensorError, zipfile.BadZipFile, zlib.error) as error:
        if "DefaultCPUAllocator" in str(error):  # a lack of memory
            raise
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise _pickled_objects_failure(file, str(error)) from error
        raise _damaged_file_failure(file, error) from error
    except OSError as error:
        if error.errno in (None, EINVAL):  # not the system's: torch's and zipfile's, of a file that is cut
            raise _damaged_file_failure(file, error) from error
        found = f"{file.absolute()}: {error.strerror or error}"
        raise Failure(
            "data.root cannot be read", found=found, fix=array_files.FIX_DATA_ROOT, code=ExitCode.NO_INPUT
        ) from error


def _damaged_file_failure(file: Path, error: Exception) -> Failure:
    found = str(error).split("\n")[0] or type(error).__name__
    what = f"{file.name} is no whole {file.suffix} file"
    return array_files.unusable_file_failure(file, what, found, "arrays, as numpy or torch saves them")


def _pickled_objects_failure(file: Path, reason: str) -> Failure:
    """Loading a pickle runs what its author wrote into it."""
    return Failure(
        f"{file.name} holds pickled objects, which are not loaded",
        found=f"{file}: {' '.join(reason.split())[:200]}",
        expected="plain arrays of numbers",
        fix="save images as uint8 or float32 and labels as int64: numpy.savez, or safetensors.torch.save_file",
        code=ExitCode.SECURITY,
    )
