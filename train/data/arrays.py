"""From .npz, .safetensors and .pt files to both sides of the data. Nothing is unpickled; what can be is mapped."""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from errno import EINVAL
from itertools import chain
from pathlib import Path
from pickle import UnpicklingError
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.data import arrayfiles, headers, npz, tensors
from train.data.npz import Pick
from train.data.sets import Sets
from train.files.refusals import sized
from train.settings.config import Data


def find(data: Data) -> Sets:
    """Both sides, as they are stored: nothing is resized. See `tensors.laid_out` for the axes.

    Of files as numpy.savez and torch write them only what is used is read, and ranks share it in memory.

    Raises:
        Failure: NO_INPUT for missing files, DATA for arrays that are no data set, SECURITY for pickled objects.
    """
    file, other = arrayfiles.files(Path(data.root), data.name)
    loaded, first = _load(file), data.name == "tensor"
    notes = [*_copied(file, loaded)]
    mine, theirs = arrayfiles.named(loaded, file)
    training = tensors.side(loaded[mine[0]], loaded[mine[1]], str(file), channels_first=first)
    if other is not None:
        loaded, file = _load(other), other
        notes += _copied(file, loaded)
        theirs, _ = arrayfiles.named(loaded, other)
    held_out = theirs and tensors.side(loaded[theirs[0]], loaded[theirs[1]], str(file), channels_first=first)
    sets = tensors.sets(data, training, held_out or None)
    return replace(sets, notes=(*sets.notes, *notes))


def _copied(file: Path, names: Iterable[str]) -> Iterator[str]:
    """What each rank holds for itself, where that is much."""
    if file.suffix != ".npz":
        return
    with _told(file):
        size = npz.copied(file, names)
    if size >= npz.WORTH_A_WORD:
        yield (
            f"{file.name}: each rank reads {sized(size)} of it into memory of its own, since it is compressed, or not "
            "in this machine's order; written by numpy.savez, or as .safetensors, ranks would share it"
        )


def _load(file: Path) -> Mapping[str, Tensor]:
    """The arrays that are meant, by name."""

    def pick(keys: Iterable[str]) -> list[str]:
        training, held_out = arrayfiles.named(list(keys), file)
        return list(chain(training, held_out or ()))

    with _told(file):
        return LOADERS[file.suffix](file, pick)


def _safetensors(file: Path, pick: Pick) -> dict[str, Tensor]:
    with safe_open(file, framework="pt") as archive:
        return {name: archive.get_tensor(name) for name in pick(archive.keys())}


def _pt(file: Path, pick: Pick) -> dict[str, Tensor]:
    """A mapping of tensors, or (images, labels)."""
    mapped = zipfile.is_zipfile(file)  # what torch wrote before 1.6 is none
    with warnings.catch_warnings(action="ignore"):  # of kinds of tensors that are refused here
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    if isinstance(content, (tuple, list)) and len(content) == 2:
        content = dict(zip(("images", "labels"), content, strict=True))
    if not isinstance(content, Mapping):
        raise ValueError(f"a {type(content).__name__}, and no mapping of names to tensors")
    found = {str(name): value.detach() for name, value in content.items() if isinstance(value, Tensor)}
    return {name: _plain(name, found[name]) for name in pick(found)}


def _plain(name: str, tensor: Tensor) -> Tensor:
    if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise ValueError(f"{name} is a sparse, nested or quantized tensor, or one without numbers")
    return tensor


LOADERS: Final[Mapping[str, Callable[[Path, Pick], dict[str, Tensor]]]] = {
    ".npz": npz.load,
    ".safetensors": _safetensors,
    ".pt": _pt,
    ".pth": _pt,
}


@contextmanager
def _told(file: Path) -> Iterator[None]:
    """Turn what the three libraries raise into one error that names the file."""
    try:
        yield
    except UnpicklingError as error:
        raise _pickled(file, str(error)) from error
    except (*headers.BROKEN, RuntimeError, SafetensorError, zipfile.BadZipFile, zlib.error) as error:
        if "DefaultCPUAllocator" in str(error):  # a lack of memory
            raise
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise _pickled(file, str(error)) from error
        raise _broken(file, error) from error
    except OSError as error:
        if error.errno in (None, EINVAL):  # not the system's: torch's and zipfile's, of a file that is cut
            raise _broken(file, error) from error
        found = f"{file.absolute()}: {error.strerror or error}"
        raise Failure("data.root cannot be read", found=found, fix=headers.FIX, code=ExitCode.NO_INPUT) from error


def _broken(file: Path, error: Exception) -> Failure:
    found = str(error).split("\n")[0] or type(error).__name__
    what = f"{file.name} is no whole {file.suffix} file"
    return headers.unusable(file, what, found, "arrays, as numpy or torch saves them")


def _pickled(file: Path, reason: str) -> Failure:
    """Loading a pickle runs what its author wrote into it."""
    return Failure(
        f"{file.name} holds pickled objects, which are not loaded",
        found=f"{file}: {' '.join(reason.split())[:200]}",
        expected="plain arrays of numbers",
        fix="save images as uint8 or float32 and labels as int64: numpy.savez, or safetensors.torch.save_file",
        code=ExitCode.SECURITY,
    )
