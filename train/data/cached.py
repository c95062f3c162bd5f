"""From image files to their pixels in one mapped file in `data.cache`: decoded once, by one process, for all."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, Pulse, processors
from train.data import decode, paths, stock
from train.data.folder import Files
from train.data.onehost import Host
from train.data.sets import Samples, Sets
from train.data.stock import Stock
from train.files import lease, refusals
from train.settings.config import Data

CHUNK: Final = 128  # images decoded by one thread at a time, which then gives a sign of life
LOOKED_AT: Final = 1000  # files by one thread at a time
ASKING: Final = 16  # threads: a file server answers many at once
FIXES: Final = {
    ExitCode.OUTPUT: "set data.cache to a folder that you may write (in a container: mount one), or leave it out",
    ExitCode.IO: "free space there, set data.cache to another file system, or leave it out",
    ExitCode.SECURITY: "remove the symbolic link, or set data.cache to the place it points to",
}


@dataclass(frozen=True, slots=True)
class Cached:
    """Image files of which the pixels are in a cache. rows: int64 [count], where in the cache."""

    files: Files
    rows: npt.NDArray[np.int64]
    stock: Stock

    @property
    def labels(self) -> Tensor:
        """int64 [count]."""
        return self.files.labels

    @property
    def paths(self) -> Sequence[str]:
        """Of the files."""
        return self.files.paths

    def read(self, samples: Samples) -> Tensor:
        """uint8 [n, size, size, 3]. What is not in the cache, or was damaged there, is decoded from its file.

        Raises:
            Failure: as `Files.read`.
        """
        pixels, fine, damaged = self.stock.take(self.rows[samples])
        if damaged and self.stock.give_up():
            sys.stderr.write(f"{self.stock.path} is damaged: read from the files; the next start decodes them anew\n")
        for place in np.flatnonzero(~fine):
            pixels[place] = self.files.read(samples[place : place + 1])[0].numpy()
        return torch.from_numpy(pixels)


def use(sets: Sets, data: Data, host: Host, pulse: Pulse) -> Sets:
    """The same samples, read from data.cache, which is filled first. To be called by all ranks.

    Raises:
        Failure: USAGE for a cache among the images; OUTPUT, IO or SECURITY for its folder, also where another user
            keeps it for himself; what reading the files raises where it is no broken image.
    """
    if data.cache is None or isinstance(sets.held_out, Cached):
        return sets
    if not (isinstance(sets.training, Files) and isinstance(sets.held_out, Files)):
        return replace(
            sets, notes=(*sets.notes, "data.cache does nothing here: only image folders are decoded into it")
        )
    _refuse_inside(Path(data.cache), Path(data.root))
    files, rows = everything(sets.training, sets.held_out)
    name = host.first(lambda: key(files, data, pulse))
    images = _filled(Path(data.cache) / f"{name}.pixels", files, pulse)
    count = len(sets.training.labels)
    training = Cached(sets.training, rows[:count], images)
    held_out = Cached(sets.held_out, rows[count:], images)
    return replace(sets, training=training, held_out=held_out, notes=(*sets.notes, f"data.cache: {images.path}"))


def _refuse_inside(cache: Path, root: Path) -> None:
    """At the next start it would be one of the class folders."""
    if cache.resolve().is_relative_to(root.resolve()):
        raise Failure(
            "data.cache lies inside data.root",
            found=f"{cache}, in {root}",
            fix="set data.cache to a folder outside of data.root",
            code=ExitCode.USAGE,
        )


def everything(training: Files, held_out: Files) -> tuple[Files, Samples]:
    """All files once, in one order, however they are split; and where in it those of each side are, int64 [count].

    Their labels do not matter.
    """
    every, rows = paths.merged(paths.packed(training.paths), paths.packed(held_out.paths))
    return Files(every, torch.zeros(len(every), dtype=torch.int64), training.size), rows


def key(files: Files, data: Data, pulse: Pulse) -> str:
    """Another one for other files, sizes, times of change, data.image_size, or another way to decode.

    Not for another place of the same folder, as on the disk of another node.

    Raises:
        Failure: NO_INPUT or IO, for a file that is gone.
    """
    digest = hashlib.sha256(f"{stock.VERSION} {files.size}\n".encode())
    chunks = np.array_split(np.arange(len(files.paths)), -(-len(files.paths) // LOOKED_AT))
    with ThreadPoolExecutor(ASKING) as pool:
        for told in pulse.each("data", pool.map(lambda chunk: _looked_at(files, chunk, data.root), chunks)):
            digest.update(told)
    return digest.hexdigest()[:32]


def _looked_at(files: Files, chunk: Samples, root: str) -> bytes:
    lines, above = [], str(Path(root))
    for sample in chunk:
        path = str(files.paths[sample])
        try:
            found = os.stat(path)
        except OSError as error:
            raise decode.unreadable(Path(path), int(sample), error) from error
        lines.append(f"{path.removeprefix(above)}\0{found.st_size}\0{found.st_mtime_ns}\n")
    return "".join(lines).encode(errors="surrogateescape")


def _filled(path: Path, files: Files, pulse: Pulse) -> Stock:
    """The cache, whole. Of all processes that want it, on all nodes, one fills it and the others wait."""
    place, waited = path.with_suffix(".lease"), None
    while (found := stock.opened(path, len(files.paths), files.size)) is None:
        with _told(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            held = lease.take(place, waited)
        if held is None:
            waited = lease.wait(place, lambda _: None, beat=lambda _: _filled_elsewhere(path, pulse))
            continue
        with held.held():
            if stock.opened(path, len(files.paths), files.size) is None:  # while this process asked for the lease
                _fill_unless_taken_over(path, files, pulse)
    return found


def _filled_elsewhere(path: Path, pulse: Pulse) -> None:
    """Its holder lives: what a dead one left is no matter."""
    stock.refuse_shut(path)
    pulse.beat("data")


def _fill_unless_taken_over(path: Path, files: Files, pulse: Pulse) -> None:
    """A holder that was stopped for longer than its lease finds its file removed, by one that has filled the cache."""
    try:
        _fill(path, files, pulse)
    except Failure:
        if stock.opened(path, len(files.paths), files.size) is None:
            raise


def _fill(path: Path, files: Files, pulse: Pulse) -> None:
    """Under the lease: decode all files, on all processors of this process, since its other ranks wait for it."""
    count = len(files.paths)
    chunks = np.array_split(np.arange(count), -(-count // CHUNK))
    cores = processors()
    with _told(path), stock.writing(path, count, files.size) as writer, ThreadPoolExecutor(cores) as pool:
        results = pool.map(lambda chunk: writer.put(chunk, *_decoded(files, chunk)), chunks)
        try:
            for _ in pulse.each("data", results):
                pass
        finally:
            results.close()  # type: ignore[attr-defined]  # a generator: what was not begun is not read any more


def _decoded(files: Files, chunk: Samples) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The images, and which of them are whole: a broken one is left to whoever reads it, as without a cache."""
    pixels = np.zeros((len(chunk), files.size, files.size, 3), np.uint8)
    whole = np.ones(len(chunk), bool)
    for place in range(len(chunk)):
        try:
            pixels[place] = files.read(chunk[place : place + 1])[0].numpy()
        except Failure as failure:
            if failure.code != ExitCode.DATA:
                raise
            whole[place] = False
    return pixels, whole


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn what the system says of writing there into its Failure. Reading the images raises Failures of its own."""
    try:
        yield
    except OSError as error:
        failure = refusals.failure(error, path)
        failure.fix = FIXES.get(failure.code, failure.fix)
        raise failure from error
