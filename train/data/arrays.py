"""Opens data sets stored in .npz, .safetensors and .pt files.

Pickled objects are never loaded. Where possible arrays are memory-mapped, so that ranks share them. Samples have the
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
from functools import partial
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
from train import files
from train.config.schema import DataConfig
from train.data import registry
from train.data.shape import Shape, height_and_width
from train.data.sources.arrays import (
    FIX_DATA_ROOT,
    PARSE_ERRORS,
    SPLIT_NAMES,
    find_array_files,
    list_array_files,
    read_npy_header,
)
from train.data.splits import DataSplits, RowsSource, SampleIndices, split_off
from train.files import bad_data_failure, format_bytes
from train.tasks import CLASSIFICATION, configured_task
from train.tasks.labels import ENCODERS, LabelEncoder, configured_encoder, describe_tensor, one_number_failure

# Of a zip archive, of an empty one, of one array, and of a pickle, which is then refused as a pickle.
FIRST_BYTES: Final = (b"PK\x03\x04", b"PK\x05\x06", b"\x93", b"\x80")
ZIP_LOCAL_HEADER: Final = struct.Struct("<26xHH")  # ends with the lengths of the name and of the extra field
READ_CHUNK_BYTES: Final = 2**20
MIN_IMAGE_AXES: Final = 3  # labels have fewer axes; they are read, not mapped
NUM_HASHED_SAMPLES: Final = 64
MIN_REPORTED_BYTES: Final = 2**28  # of memory of each rank
# Names of the images and the labels, in any case: ours, those of scikit-learn and keras, of
# scikit-learn's bunches, and of torchvision.
ARRAY_NAME_PAIRS: Final = (
    ("images", "labels"),
    ("x", "y"),
    ("data", "target"),
    ("data", "targets"),
    ("data", "labels"),
)
EXPECTED_ARRAY_NAMES: Final = "images and labels (or x and y, data and target), or x_train, y_train, x_test and y_test"

ArrayNamePair = tuple[str, str]
ArrayLocation = tuple[Path, ArrayNamePair]  # the file, and the names of its images and labels


ArraySelector = Callable[[Iterable[str]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArrayLocation:
    """Offset of an array's numbers in the file, with their shape and dtype (in native byte order)."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def load_npz(file: Path, pick: ArraySelector) -> dict[str, Tensor]:
    """Load the arrays whose names `pick` chooses, and compare each with its checksum.

    Raises:
        ValueError, KeyError, OSError, zipfile.BadZipFile, zlib.error: for a file of another format, or a damaged one.
    """
    with file.open("rb") as stream:  # numpy would leave a broken file open
        if not stream.read(4).startswith(FIRST_BYTES):  # numpy would report any other file as a pickle
            raise ValueError("no archive of numpy's")
        stream.seek(0)
        archive = np.load(stream, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("one array, and no archive of several")
        _refuse_impossible_shapes(archive.zip)
        return {name: _as_tensor(name, _read_array(archive, stream, name)) for name in pick(archive.files)}


def _refuse_impossible_shapes(archive: zipfile.ZipFile) -> None:
    """Raises ValueError for a damaged header, before numpy allocates what it asks for."""
    for name in archive.namelist():
        if name.endswith(".npy"):
            with archive.open(name) as entry:
                shape, _, _ = read_npy_header(entry)
            size = archive.getinfo(name).file_size
            if min(shape, default=0) < 0 or math.prod(shape) > size:
                raise ValueError(f"the shape {shape}, in {size} bytes")


def unmapped_bytes(file: Path, names: Iterable[str]) -> int:
    """Bytes of those arrays that `load_npz` cannot map: each process reads them into its own memory."""
    with file.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
        return sum(sizes.get(f"{name}.npy", 0) for name in names if _locate_array(archive, stream, name) is None)


def _read_array(archive: Any, stream: BinaryIO, name: str) -> Any:
    location = _locate_array(archive.zip, stream, name)
    if location is None:
        return archive[name]
    with archive.zip.open(f"{name}.npy") as entry:
        while entry.read(READ_CHUNK_BYTES):  # reading to the end compares the checksum
            pass
    return np.memmap(stream, location.dtype, "r", location.offset, location.shape)


def _locate_array(archive: zipfile.ZipFile, stream: BinaryIO, name: str) -> _ArrayLocation | None:
    """None if the stored bytes cannot be mapped as they are, or if numpy will refuse the array."""
    entry = archive.NameToInfo.get(f"{name}.npy")
    if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:  # bit 1: encrypted
        return None
    with archive.open(entry) as content:
        shape, fortran, dtype = read_npy_header(content)
        header_bytes = content.tell()
    complete = 0 < math.prod(shape) * dtype.itemsize <= entry.file_size - header_bytes
    if fortran or not dtype.isnative or dtype.kind not in "biuf" or len(shape) < MIN_IMAGE_AXES or not complete:
        return None
    stream.seek(entry.header_offset)
    local = stream.read(ZIP_LOCAL_HEADER.size)
    return _ArrayLocation(
        offset=entry.header_offset + len(local) + sum(ZIP_LOCAL_HEADER.unpack(local)) + header_bytes,
        shape=shape,
        dtype=dtype,
    )


def _as_tensor(name: str, array: npt.NDArray[Any]) -> Tensor:
    """The array as a tensor; copied only if its byte order is not native."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has the type {array.dtype}, and no numbers")
    with warnings.catch_warnings(action="ignore"):  # torch warns of read-only memory; nobody writes to it
        return torch.from_numpy(np.asarray(array, array.dtype.newbyteorder("=")))


@dataclass(frozen=True, slots=True)
class ArraySource(RowsSource):
    """Some rows of an array. Forked workers share its memory; only the rows that are read are copied.

    pixels: uint8 or float [N, *size, channels], any strides. rows: int64 [count], which of the N. labels: as
    `SampleSource.labels`. name: of the file, for errors. size: images are resized to it; None: they keep their size.
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

    def content(self, root: str) -> Iterator[memoryview]:
        """A few samples: arrays in another order may have the same labels."""
        if len(self.rows):
            few = self.rows[torch.linspace(0, len(self.rows) - 1, NUM_HASHED_SAMPLES).long()]
            yield self.pixels[few].contiguous().view(torch.uint8).numpy().data

    def _refuse_not_finite(self, taken: Tensor, rows: Tensor) -> None:
        finite = taken.flatten(1).isfinite().all(dim=1)
        if not finite.all():
            row = int(rows[int(finite.int().argmin())])
            raise Failure(
                f"sample {row} holds numbers that are not finite",
                found=f"{self.name}: NaN or infinity in row {row}",
                expected="finite numbers",
                fix="replace or remove the sample",
                code=ExitCode.DATA,
            )


def _gather_rows(pixels: Tensor, rows: Tensor) -> Tensor:
    """These rows, as a copy. Pixels mapped from an .npz may be unaligned, which torch does not support: copy bytes."""
    if pixels.data_ptr() % pixels.itemsize == 0 or pixels.stride(-1) != 1:
        return pixels[rows].contiguous()
    return pixels.view(torch.uint8)[rows].contiguous().view(pixels.dtype)


def array_source(pixels: Tensor, labels: Tensor, name: str, size: int | None = None) -> ArraySource:
    """All rows of an array; resized only if they have another size than `size`."""
    size = None if size is None or tuple(pixels.shape[1:3]) == (size, size) else size
    return ArraySource(pixels, torch.arange(len(labels)), labels, name, size)


def resize_images(images: Tensor, size: int) -> Tensor:
    """Resize uint8 [n, height, width, channels] to [n, size, size, channels]: bilinear, with antialiasing."""
    moved = interpolate(images.movedim(-1, 1), size=(size, size), mode="bilinear", antialias=True, align_corners=False)
    return moved.movedim(1, -1).contiguous()


CHANNEL_COUNTS: Final = (1, 3, 4)  # an axis of such a length is taken for the channels
CHANNEL_AXES: Final = {4: (1, 3), 5: (1, 2, 4)}  # where programs have the channels, by the number of axes
CHANNELS_LAST_AXES: Final = "[N, H, W], [N, H, W, C] with C 1, 3 or 4, clips [N, F, H, W] or [N, F, H, W, C]"
CHANNEL_PLACES: Final = {1: "first", 2: "behind the frames"}  # by their axis; any other is the last
CHANNELS_FIRST_AXES: Final = "[N, H, W], [N, C, H, W], clips [N, C, F, H, W]"


def move_channels_last(images: Tensor, name: str, *, channels_first: bool) -> Tensor:
    """A view as [N, *size, channels].

    In .npz files the channels are last. Four axes are images if the last is 1, 3 or 4 long, else clips of one channel.
    In tensor files the channels are first, as in torch. Four axes are images, five are clips.

    Raises:
        Failure: DATA for another number of axes, for axes that look like another convention (clips may have the
            channels after the frames), and for images with many channels last: they would be trained on as clips of
            one channel.
    """
    shape, axes = list(images.shape), CHANNELS_FIRST_AXES if channels_first else CHANNELS_LAST_AXES
    if len(shape) == 3:
        return images[..., None]
    if len(shape) not in CHANNEL_AXES:
        raise bad_data_failure(name, "images with these axes cannot be used", f"{shape}", axes)
    expected, content = 1 if channels_first else len(shape) - 1, "images" if len(shape) == 4 else "clips"
    clips_fix = f"; clips of {shape[1]} frames are saved as [N, {shape[1]}, H, W, 1]"
    others = [axis for axis in CHANNEL_AXES[len(shape)] if axis != expected and shape[axis] in CHANNEL_COUNTS]
    if others and shape[expected] not in CHANNEL_COUNTS:
        rest = [axis for axis in range(1, len(shape)) if axis != others[0]]
        order = (0, others[0], *rest) if channels_first else (0, *rest, others[0])
        raise bad_data_failure(
            name,
            f"{content} have their channels in another place",
            f"{shape}, whose channels seem to be {CHANNEL_PLACES.get(others[0], 'last')}",
            axes,
            f"permute the axes: {order}{clips_fix if not channels_first and content == 'images' else ''}",
        )
    # Square images with many bands: a clip [N, F, H, W] is hardly ever so narrow.
    if len(shape) == 4 and shape[1] == shape[2] > 2 * shape[3] and shape[3] not in CHANNEL_COUNTS:
        fix = f"permute the axes: (0, 3, 1, 2), and save tensors [N, {shape[3]}, H, W] (data.name: tensor)"
        raise bad_data_failure(
            name,
            "images have more channels than can be told",
            f"{shape}, whose last axis seems to be {shape[3]} channels",
            axes,
            fix if channels_first else fix + clips_fix,
        )
    if channels_first:
        return images.movedim(1, -1)
    return images[..., None] if len(shape) == 4 and shape[3] not in CHANNEL_COUNTS else images


def checked_array_source(
    images: Tensor,
    labels: Tensor,
    name: str,
    *,
    channels_first: bool,
    encoder: LabelEncoder = ENCODERS[CLASSIFICATION],
) -> ArraySource:
    """The source of one split, from its images and labels. `name`: of the file, for errors.

    Raises:
        Failure: DATA, with how to save the arrays instead.
    """
    numbers = encoder.read(labels, name)
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
    """data.classes; None at its default, which claims nothing."""
    return data.classes if data.classes != DataConfig().classes else None


def build_splits(
    data: DataConfig, training: ArraySource, validation: ArraySource | None, test: ArraySource | None = None
) -> DataSplits:
    """The splits; without validation samples data.val_fraction of every class becomes them, or data.fold.

    Raises:
        Failure: DATA if the splits differ in shape or type, or do not agree with the config.
    """
    shape, encoder = _sample_shape(training), configured_encoder(data)
    others = [split for split in (validation, test) if split is not None]
    for other in others:
        one_type, other_type = (f"{_sample_shape(each)}, {_describe_dtype(each.pixels)}" for each in (training, other))
        if one_type != other_type:
            what = "the samples of the splits differ"
            raise bad_data_failure(other.name, what, f"{one_type} and {other_type}", "one shape and type")
    for labels in (None, *(other.labels for other in others)):
        names = encoder.names(training.name, configured_class_count(data), training.labels, labels)
    size = data.image_size
    if size != DataConfig().image_size and shape.size[-2:] != height_and_width(size):  # its default claims nothing
        fix = "leave data.image_size out: arrays are not resized"
        what = "data.image_size is not the size of the images"
        raise bad_data_failure(training.name, what, f"{shape}", f"{size} pixels", fix)
    registry.refuse_second_splits(data, validation=None if validation is None else validation.name)
    strata, is_own = encoder.strata(training.labels), validation is not None
    training, validation, test, _ = split_off(training, data, strata, validation=validation, test=test)
    content = "clips" if len(shape.size) == 3 else "images"
    note = f"{training.name} holds {content} of {shape}, {_describe_dtype(training.pixels)}"
    return DataSplits(
        training=training,
        validation=validation,
        test=test,
        classes=names,
        shape=shape,
        has_own_validation=is_own,
        notes=(note,),
        warnings=_value_warnings(training),
        floats=training.pixels.is_floating_point(),
        task=configured_task(data),
        target=encoder.scale(training.labels, partial(one_number_failure, training.name, len(training.labels))),
    )


def _sample_shape(source: ArraySource) -> Shape:
    return Shape(channels=source.pixels.shape[-1], size=tuple(source.pixels.shape[1:-1]))


MAX_EXAMINED_SAMPLES: Final = 64
MAX_USUAL_FLOAT: Final = 50.0


def _value_warnings(source: ArraySource) -> tuple[str, ...]:
    """A warning of floats that nobody scaled, and of bytes that are black: masks, or pixels from 0 to 1."""
    is_float = source.pixels.is_floating_point()
    examined = source.pixels[:: len(source.pixels) // MAX_EXAMINED_SAMPLES + 1].float()
    lowest, highest = (float(limit) for limit in examined.aminmax())
    if not is_float and highest <= 1:
        limits = f"at most {highest:g} of 255"
        return (f"the bytes in {source.name} are {limits}: black to the network. fix: multiply them by 255",)
    if is_float and max(-lowest, highest) > MAX_USUAL_FLOAT:
        limits = f"from {lowest:g} to {highest:g}"
        return (
            f"the floats in {source.name} are {limits}, and go to the model as they are. fix: scale them to about "
            "-2 to 2; or save pixels from 0 to 255 as uint8, which are normalized",
        )
    return ()


def _describe_dtype(pixels: Tensor) -> str:
    return "bytes" if pixels.dtype == torch.uint8 else "floats, which go to the model as they are"


def open_arrays(data: DataConfig, *_: object) -> DataSplits:
    """Both splits in their stored size: nothing is resized. See `move_channels_last` for the axes.

    Files of numpy.savez and torch are memory-mapped: only what is used is read, and ranks share it.

    Raises:
        Failure: NO_INPUT for missing files, DATA for arrays that are no data set, SECURITY for pickled objects.
    """
    located, notes = locate_splits(data, list_names)
    names: dict[Path, list[str]] = {}
    for file, pair in located.values():
        names.setdefault(file, []).extend(pair)
    loaded = {file: _load(file, lambda keys, chosen=chosen: chosen) for file, chosen in names.items()}  # type: ignore[misc]
    encoder = configured_encoder(data)
    sources = {
        split: checked_array_source(
            loaded[file][images],
            loaded[file][labels],
            str(file),
            channels_first=data.name == "tensor",
            encoder=encoder,
        )
        for split, (file, (images, labels)) in located.items()
    }
    splits = build_splits(data, sources["training"], sources.get("validation"), sources.get("test"))
    memory_notes = [note for file, arrays in loaded.items() for note in _unshared_memory_notes(file, arrays)]
    return replace(splits, notes=(*splits.notes, *notes, *memory_notes))


def find_array_names(keys: Iterable[str], file: Path) -> dict[str, ArrayNamePair]:
    """The names of images and labels in a file, by split.

    A file has `images` and `labels` alone, or several splits named like `x_train` or `train_images`.

    Raises:
        Failure: DATA, naming the arrays of the file.
    """
    names = {key.lower(): key for key in keys}
    pairs = {split: _matching_name_pairs(names, split_names) for split, split_names in SPLIT_NAMES.items()}
    training = _matching_name_pairs(names, [""]) + pairs["training"]
    if len(training) != 1:
        what = f"{file.name} holds {len(training) or 'no'} pairs of images and labels"
        raise bad_data_failure(file, what, f"arrays {', '.join(names.values()) or 'none'}", EXPECTED_ARRAY_NAMES)
    return {split: matching[0] for split, matching in (pairs | {"training": training}).items() if matching}


def locate_splits(
    data: DataConfig, read_names: Callable[[Path], Iterable[str]]
) -> tuple[dict[str, ArrayLocation], tuple[str, ...]]:
    """Where the arrays of each split are, and notes. A file of its own is taken before arrays in the training file.

    Test images are for validation if nothing else is, as with folders. read_names: reads the names of all arrays in a
    file.

    Raises:
        Failure: as `find_array_files`, `find_array_names` and `registry.refuse_second_splits`.
    """
    split_files = find_array_files(Path(data.root), data.name)
    file, names = split_files["training"], {path: [*read_names(path)] for path in split_files.values()}
    located = {split: (file, pair) for split, pair in find_array_names(names[file], file).items()}
    for split, path in split_files.items():
        located[split] = (path, find_array_names(names[path], path)["training"])
    notes = []
    if "test" in located:
        path, pair = located["test"]
        words = f"{' and '.join(pair)} of {path.name}"
        if "validation" in located or data.fold is not None:
            registry.refuse_second_splits(data, test=words)
        else:
            located["validation"] = located.pop("test")
            notes.append(
                f"{words} are the validation split, since there is no other: it chooses the best checkpoint. With "
                "validation arrays they would be kept for one score at the end"
            )
    used = {(path, name) for path, pair in located.values() for name in pair}
    for path in names:
        if unread := [name for name in names[path] if (path, name) not in used]:
            notes.append(f"{path.name} holds more arrays, which are not read: {', '.join(unread)}")
    if Path(data.root).is_dir():
        others = [path.name for path in list_array_files(Path(data.root), data.name) if path not in names]
        notes += [f"{data.root} holds more files, which are not read: {', '.join(others)}"] if others else []
    return located, tuple(notes)


def _matching_name_pairs(names: Mapping[str, str], split_names: Iterable[str]) -> list[ArrayNamePair]:
    pairs = []
    for split in split_names:
        for images, labels in ARRAY_NAME_PAIRS:
            of_split = [(f"{images}_{split}", f"{labels}_{split}"), (f"{split}_{images}", f"{split}_{labels}")]
            forms = of_split if split else [(images, labels)]
            pairs += [(names[x], names[y]) for x, y in forms if x in names and y in names]
    return pairs


def list_names(file: Path) -> list[str]:
    """The names of all arrays in a file, of which none is loaded. Raises Failure: as `translate_read_errors`."""
    names = list[str]()

    def pick(keys: Iterable[str]) -> list[str]:
        names.extend(keys)
        return []

    _load(file, pick)
    return names


def _load(file: Path, pick: ArraySelector) -> dict[str, Tensor]:
    """The arrays whose names `pick` chooses. Raises Failure: as `translate_read_errors`."""
    with translate_read_errors(file):
        return LOADERS[file.suffix](file, pick)


@contextmanager
def translate_read_errors(file: Path) -> Iterator[None]:
    """Translate the errors of numpy, safetensors and torch into a Failure that names the file."""
    try:
        files.open_regular_file(file).close()
        yield
    except UnpicklingError as error:
        raise _pickled_objects_failure(file, str(error)) from error
    except (*PARSE_ERRORS, RuntimeError, SafetensorError, zipfile.BadZipFile, zlib.error) as error:
        if "DefaultCPUAllocator" in str(error):  # out of memory
            raise
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise _pickled_objects_failure(file, str(error)) from error
        raise _damaged_file_failure(file, error) from error
    except OSError as error:
        if error.errno in (None, EINVAL):  # raised by torch and zipfile for a truncated file
            raise _damaged_file_failure(file, error) from error
        raise Failure(
            f"data.root cannot be read: {error.strerror or error}",
            found=str(file.absolute()),
            fix=FIX_DATA_ROOT,
            code=ExitCode.NO_INPUT,
        ) from error


def _damaged_file_failure(file: Path, error: Exception) -> Failure:
    reason = str(error).split("\n")[0] or type(error).__name__
    what = f"{file.name} is no whole {file.suffix} file"
    return bad_data_failure(file, what, reason, "arrays, as numpy or torch saves them")


def _pickled_objects_failure(file: Path, reason: str) -> Failure:
    """Loading a pickle runs what its author wrote into it."""
    return Failure(
        f"{file.name} holds pickled objects, which are not loaded",
        found=f"{file}: {' '.join(reason.split())[:200]}",
        expected="plain arrays of numbers",
        fix="save images as uint8 or float32 and labels as int64: numpy.savez, or safetensors.torch.save_file",
        code=ExitCode.SECURITY,
    )


def _unshared_memory_notes(file: Path, names: Iterable[str]) -> Iterator[str]:
    """A note if each rank needs much memory of its own for this file."""
    if file.suffix != ".npz":
        return
    with translate_read_errors(file):
        size = unmapped_bytes(file, names)
    if size >= MIN_REPORTED_BYTES:
        yield (
            f"{file.name}: each rank reads {format_bytes(size)} of it into memory of its own, since it is compressed, "
            "or not in this machine's order; written by numpy.savez, or as .safetensors, ranks would share it"
        )


def _load_safetensors(file: Path, pick: ArraySelector) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as archive:
        return {name: archive.get_tensor(name) for name in pick(archive.keys())}


def _load_torch_file(file: Path, pick: ArraySelector) -> dict[str, Tensor]:
    """A mapping of tensors, or (images, labels)."""
    mapped = zipfile.is_zipfile(file)  # the format of torch before 1.6 is not
    with warnings.catch_warnings(action="ignore"):  # torch warns of tensor types that are refused below
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    if isinstance(content, (tuple, list)) and len(content) == 2:
        content = dict(zip(("images", "labels"), content, strict=True))
    if not isinstance(content, Mapping):
        raise ValueError(f"a {type(content).__name__}, and no mapping of names to tensors")
    tensors = {str(name): value.detach() for name, value in content.items() if isinstance(value, Tensor)}
    return {name: _require_dense_tensor(name, tensors[name]) for name in pick(tensors)}


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
