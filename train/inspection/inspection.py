"""From a source to what each of its samples is: size, channels, a digest of its pixels, or why it cannot be read."""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import torch

from entrypoint import ExitCode, Failure
from train.data import decode, depth
from train.data.folder import Files
from train.data.sets import Samples, Source
from train.data.shape import Shape

FILES_AT_ONCE: Final = 64  # of one thread
BYTES_AT_ONCE: Final = 32 * 2**20
CHANNELS: Final = {1: "L", 3: "RGB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One sample. size: (width, height), clips (width, height, frames). mode: Pillow's word for a pixel. highest: the
    highest value of an image of 16 bits, else None.

    digest: of the decoded pixels, so that the same image in another lossless file is the same. seconds: to read it.
    broken: why it cannot be read; then size, mode and digest are empty.
    """

    sample: int
    size: tuple[int, ...] = ()
    mode: str = ""
    highest: int | None = None
    digest: bytes = b""
    seconds: float = 0.0
    broken: str | None = None


def looks(source: Source, shape: Shape, threads: int) -> Iterator[Look]:
    """Read every sample once, `threads` at a time; in order, with a few chunks in memory.

    Raises:
        Failure: IO or RESOURCE, where the system fails; a broken sample is a fact, not a failure.
    """
    count = len(source.labels)
    size = FILES_AT_ONCE if isinstance(source, Files) else max(1, BYTES_AT_ONCE // (4 * math.prod(shape.stored)))
    chunks = (np.arange(start, min(start + size, count)) for start in range(0, count, size))
    with ThreadPoolExecutor(threads) as pool:
        yield from _in_order(pool, _task(source, shape), chunks, ahead=2 * threads)


def of_file(path: Path, sample: int) -> Look:
    """Look at one image file."""
    began = time.perf_counter()
    try:
        with decode.opened(path) as image:
            mode, upright, highest = image.mode, decode.rgb(image), depth.highest(image)
            size, pixels = upright.size, upright.tobytes()
    except decode.BROKEN as error:
        return _broken(sample, decode.unreadable(path, sample, error))
    seconds = time.perf_counter() - began
    digest = _digest(repr(size).encode(), pixels)
    return Look(sample=sample, size=size, mode=mode, highest=highest, digest=digest, seconds=seconds)


def of_samples(source: Source, shape: Shape, samples: Samples) -> list[Look]:
    """Look at samples that are no files."""
    began = time.perf_counter()
    try:
        pixels = source.read(samples)
    except Failure as failure:
        if len(samples) == 1:
            return [_broken(int(samples[0]), failure)]
        return [look for sample in samples for look in of_samples(source, shape, np.array([sample]))]
    seconds = (time.perf_counter() - began) / len(samples)
    mode = CHANNELS.get(shape.channels, f"{shape.channels} channels") + (
        "" if pixels.dtype == torch.uint8 else " float"
    )
    size = (*shape.size[:-3:-1], *shape.size[:-2])
    return [
        Look(sample=int(sample), size=size, mode=mode, digest=_digest(one.numpy().tobytes()), seconds=seconds)
        if bool(one.isfinite().all())
        else Look(sample=int(sample), broken="holds numbers that are not finite")
        for sample, one in zip(samples, pixels, strict=True)
    ]


def _task(source: Source, shape: Shape) -> Callable[[Samples], list[Look]]:
    if isinstance(source, Files):
        paths = source.paths
        return lambda chunk: [of_file(Path(str(paths[sample])), int(sample)) for sample in chunk]
    return partial(of_samples, source, shape)


def _in_order(
    pool: ThreadPoolExecutor, task: Callable[[Samples], list[Look]], chunks: Iterator[Samples], *, ahead: int
) -> Iterator[Look]:
    """Like pool.map, which would begin all chunks at once and keep what nobody has asked for yet."""
    waiting: deque[Future[list[Look]]] = deque(pool.submit(task, chunk) for chunk in islice(chunks, ahead))
    try:
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(task, chunk) for chunk in islice(chunks, 1))
            yield from done
    finally:
        for future in waiting:
            future.cancel()


def _digest(*parts: bytes) -> bytes:
    """sha256, cut to 128 bits: no two of any number of images meet by chance."""
    return hashlib.sha256(b"".join(parts)).digest()[:16]


def _broken(sample: int, failure: Failure) -> Look:
    if failure.code not in (ExitCode.DATA, ExitCode.NO_INPUT):
        raise failure
    return Look(sample=sample, broken=failure.found or failure.what)
