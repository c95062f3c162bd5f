"""The data check reads every sample of a data set once and reports what is wrong with it.

Duplicates and leaks are found by a digest of the decoded pixels, so the same image in another
lossless file is the same sample.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from entrypoint import ExitCode, Failure, num_usable_cores
from train import plugin
from train.config.schema import RunConfig
from train.data import decode, registry, statistics
from train.data.decode import MAX_16_BIT_VALUE
from train.data.image_folder import ImageFileSource
from train.data.shape import Shape
from train.data.splits import DataSplits, SampleIndices, SampleSource

FILES_PER_CHUNK: Final = 64  # of one thread
BYTES_PER_CHUNK: Final = 32 * 2**20
CHANNEL_MODES: Final = {1: "L", 3: "RGB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedSample:
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


def inspect_source(source: SampleSource, shape: Shape, threads: int) -> Iterator[InspectedSample]:
    """Read every sample once, `threads` at a time; in order, with a few chunks in memory.

    Raises:
        Failure: IO or RESOURCE, where the system fails; a broken sample is a fact, not a failure.
    """
    count = len(source.labels)
    size = (
        FILES_PER_CHUNK
        if isinstance(source, ImageFileSource)
        else max(1, BYTES_PER_CHUNK // (4 * math.prod(shape.stored)))
    )
    chunks = (np.arange(start, min(start + size, count)) for start in range(0, count, size))
    with ThreadPoolExecutor(threads) as pool:
        yield from _map_in_order(pool, _chunk_inspector(source, shape), chunks, ahead=2 * threads)


def inspect_file(path: Path, sample: int) -> InspectedSample:
    """Look at one image file."""
    began = time.perf_counter()
    try:
        with decode.open_image(path) as image:
            mode, upright, highest = image.mode, decode.to_rgb(image), decode.highest_value(image)
            size, pixels = upright.size, upright.tobytes()
    except decode.DECODE_ERRORS as error:
        return _broken_sample(sample, decode.unreadable_image_failure(path, sample, error))
    seconds = time.perf_counter() - began
    digest = _pixel_digest(repr(size).encode(), pixels)
    return InspectedSample(sample=sample, size=size, mode=mode, highest=highest, digest=digest, seconds=seconds)


def inspect_samples(source: SampleSource, shape: Shape, samples: SampleIndices) -> list[InspectedSample]:
    """Look at samples that are no files."""
    began = time.perf_counter()
    try:
        pixels = source.read(samples)
    except Failure as failure:
        if len(samples) == 1:
            return [_broken_sample(int(samples[0]), failure)]
        return [look for sample in samples for look in inspect_samples(source, shape, np.array([sample]))]
    seconds = (time.perf_counter() - began) / len(samples)
    mode = CHANNEL_MODES.get(shape.channels, f"{shape.channels} channels") + (
        "" if pixels.dtype == torch.uint8 else " float"
    )
    size = (*shape.size[:-3:-1], *shape.size[:-2])
    return [
        InspectedSample(
            sample=int(sample), size=size, mode=mode, digest=_pixel_digest(one.numpy().tobytes()), seconds=seconds
        )
        if bool(one.isfinite().all())
        else InspectedSample(sample=int(sample), broken="holds numbers that are not finite")
        for sample, one in zip(samples, pixels, strict=True)
    ]


def _chunk_inspector(source: SampleSource, shape: Shape) -> Callable[[SampleIndices], list[InspectedSample]]:
    if isinstance(source, ImageFileSource):
        paths = source.paths
        return lambda chunk: [inspect_file(Path(str(paths[sample])), int(sample)) for sample in chunk]
    return partial(inspect_samples, source, shape)


def _map_in_order(
    pool: ThreadPoolExecutor,
    task: Callable[[SampleIndices], list[InspectedSample]],
    chunks: Iterator[SampleIndices],
    *,
    ahead: int,
) -> Iterator[InspectedSample]:
    """Like pool.map, which would begin all chunks at once and keep what nobody has asked for yet."""
    waiting: deque[Future[list[InspectedSample]]] = deque(pool.submit(task, chunk) for chunk in islice(chunks, ahead))
    try:
        while waiting:
            done = waiting.popleft().result()
            waiting.extend(pool.submit(task, chunk) for chunk in islice(chunks, 1))
            yield from done
    finally:
        for future in waiting:
            future.cancel()


def _pixel_digest(*parts: bytes) -> bytes:
    """sha256, cut to 128 bits: no two of any number of images meet by chance."""
    return hashlib.sha256(b"".join(parts)).digest()[:16]


def _broken_sample(sample: int, failure: Failure) -> InspectedSample:
    if failure.code not in (ExitCode.DATA, ExitCode.NO_INPUT):
        raise failure
    return InspectedSample(sample=sample, broken=failure.found or failure.what)


MAX_SHOWN: Final = 10
SamplePair = tuple[int, int]


@dataclass(slots=True, kw_only=True)
class SplitFindings:
    """What one side holds. name_of and label_of: of a sample; least: data.image_size. highest: value of all images of
    16 bits.

    twice: (sample, the earlier one with the same pixels), leaked: (sample, the same image on the other side).
    """

    name_of: Callable[[int], str]
    label_of: Callable[[int], int]
    least: int
    samples: int = 0
    seconds: float = 0.0
    sizes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    highest: int | None = None
    small: list[int] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    first: dict[bytes, int] = field(default_factory=dict)
    twice: list[SamplePair] = field(default_factory=list)
    leaked: list[SamplePair] = field(default_factory=list)

    def add(self, look: InspectedSample, other: SplitFindings | None = None) -> None:
        """Take one more sample in. `other` is the side that was looked at before."""
        self.samples += 1
        if look.broken is not None:
            self.broken.append((look.sample, look.broken))
            return
        self.seconds += look.seconds
        self.sizes[look.size] += 1
        self.modes[look.mode] += 1
        if look.highest is not None:
            self.highest = max(look.highest, self.highest or 0)
        if min(look.size[:2]) < self.least:
            self.small.append(look.sample)
        if self.first.setdefault(look.digest, look.sample) != look.sample:
            self.twice.append((look.sample, self.first[look.digest]))
        if other is not None and look.digest in other.first:
            self.leaked.append((look.sample, other.first[look.digest]))

    @property
    def read(self) -> int:
        """Samples that could be read."""
        return self.samples - len(self.broken)

    def as_json(self, per_class: dict[str, int]) -> dict[str, Any]:
        """All that was found on this side."""
        return {
            "samples": self.samples,
            "per_class": per_class,
            "sizes": _summarize_sizes(self.sizes),
            "modes": dict(self.modes.most_common()),
            "highest_of_16_bits": self.highest,
            "seconds_per_sample": self.seconds / self.read if self.read else None,
            "smaller_than_image_size": [self.name_of(sample) for sample in self.small],
            "broken": [{"name": self.name_of(sample), "reason": reason} for sample, reason in self.broken],
            "duplicates": [_pair_json(self, self, pair) for pair in self.twice],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFindings:
    """Both sides. classes: lines on how often each is seen; per_class: training and held out."""

    title: str
    training: SplitFindings
    held_out: SplitFindings
    classes: list[str]
    per_class: tuple[dict[str, int], dict[str, int]]

    @property
    def failure(self) -> Failure | None:
        """DATA for broken samples and for images on both sides, with the way to mend it."""
        broken, leaked = self._broken(), self._leaked()
        if not broken and not leaked:
            return None
        parts = [f"broken samples ({len(broken):,})"] if broken else []
        parts += [f"held-out images that are trained on too ({len(leaked):,})"] if leaked else []
        fixes = ["replace or delete the broken ones (or allow some: data.max_bad_images)"] if broken else []
        fixes += ["delete one of each pair (or keep groups together: data.group)"] if leaked else []
        found = "; ".join((broken + leaked)[:MAX_SHOWN]) + _format_remainder(len(broken) + len(leaked))
        return Failure(f"the data has {' and '.join(parts)}", found=found, fix="; ".join(fixes), code=ExitCode.DATA)

    def as_text(self) -> str:
        """For people: one fact per line. Of paths that are not UTF-8 the odd bytes are escaped."""
        rows = [("data", self.title), *self._lines("training", self.training), *self._lines("held out", self.held_out)]
        lines = [f"{name:<14} {value}" for name, value in rows]
        lines[1:1] = self.classes
        for name, found in (("broken", self._broken()), ("leakage", self._leaked())):
            shown = [f"  {one}" for one in found[:MAX_SHOWN]]
            lines += [f"{name:<14} {len(found) or 'none'}", *shown]
            lines += [f"  and {len(found) - MAX_SHOWN:,} more: see --json"] if len(found) > MAX_SHOWN else []
        return "\n".join(lines).encode(errors="backslashreplace").decode()

    def as_json(self) -> str:
        """The same, whole, for programs."""
        sides = zip((self.training, self.held_out), self.per_class, strict=True)
        training, held_out = (side.as_json(counts) for side, counts in sides)
        leaks = [_pair_json(self.held_out, self.training, pair) for pair in self.held_out.leaked]
        told = {"ok": self.failure is None, "data": self.title, "training": training, "held_out": held_out}
        return json.dumps(told | {"leaks": leaks}, indent=2)

    def _lines(self, name: str, side: SplitFindings) -> list[tuple[str, str]]:
        if side.samples == 0:
            return [(name, "no samples")]
        speed = f", {1e3 * side.seconds / side.read:.3g} ms each" if side.read else ""
        share = f"{side.read:,} of " if side.broken else ""
        rows = [(name, f"{share}{side.samples:,} read{speed}")]
        if side.read:
            rows += [
                ("  sizes", _format_sizes(side.sizes)),
                ("  pixels", _format_modes(side.modes) + _format_max_value(side.highest)),
            ]
        if side.small:
            some = ", ".join(side.name_of(sample) for sample in side.small[:3])
            more = _format_remainder(len(side.small), 3)
            rows += [("  small", f"{len(side.small):,} below data.image_size {side.least}, scaled up: {some}{more}")]
        if side.twice:
            some = "; ".join(_format_pair(side, side, pair) for pair in side.twice[:3])
            rows += [("  duplicates", f"{len(side.twice):,}: {some}{_format_remainder(len(side.twice), 3)}")]
        return rows

    def _broken(self) -> list[str]:
        return [
            reason if reason.startswith(side.name_of(sample)) else f"{side.name_of(sample)}: {reason}"
            for side in (self.training, self.held_out)
            for sample, reason in side.broken
        ]

    def _leaked(self) -> list[str]:
        return [_format_pair(self.held_out, self.training, pair) for pair in self.held_out.leaked]


def _pair_json(side: SplitFindings, other: SplitFindings, pair: SamplePair) -> dict[str, Any]:
    same = side.label_of(pair[0]) == other.label_of(pair[1])
    return {"name": side.name_of(pair[0]), "same_as": other.name_of(pair[1]), "same_class": same}


def _format_pair(side: SplitFindings, other: SplitFindings, pair: SamplePair) -> str:
    told = _pair_json(side, other, pair)
    return f"{told['name']} = {told['same_as']}" + ("" if told["same_class"] else " (of another class!)")


def _summarize_sizes(sizes: Counter[tuple[int, ...]]) -> dict[str, Any] | None:
    if not sizes:
        return None
    ordered = sorted(sizes, key=lambda size: (math.prod(size), size))
    often, times = sizes.most_common(1)[0]
    return {"smallest": ordered[0], "largest": ordered[-1], "most_frequent": often, "of_that_size": times}


def _format_sizes(sizes: Counter[tuple[int, ...]]) -> str:
    told = _summarize_sizes(sizes) or {}
    if len(sizes) == 1:
        return f"all {_format_size(told['most_frequent'])}"
    share = told["of_that_size"] / sizes.total()
    often = f"most often {_format_size(told['most_frequent'])} ({share:.1%})"
    return f"{_format_size(told['smallest'])} to {_format_size(told['largest'])}, {often}"


def _format_size(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def _format_modes(modes: Counter[str]) -> str:
    return ", ".join(f"{mode} {count:,}" for mode, count in modes.most_common())


def _format_max_value(value: int | None) -> str:
    return "" if value is None else f", highest value of 16 bits {value:,} of {MAX_16_BIT_VALUE:,}"


def _format_remainder(number: int, shown: int = MAX_SHOWN) -> str:
    return f" and {number - shown:,} more" if number > shown else ""


def check_samples(config: RunConfig, *, beside: str | None, tell: Callable[[str], None]) -> DataFindings:
    """Read everything on all cores of this process.

    Args:
        beside: the config file, beside which a module of the user's own may lie.
        tell: takes a line that says how far it is, often.

    Raises:
        Failure: what opening the data raises; IO or RESOURCE where the system fails.
    """
    plugin.add_config_folder_to_path(beside, config.data.name, config.model.name)
    sets = registry.open_splits(config.data)
    total = len(sets.training.labels) + len(sets.validation.labels)
    least = config.data.image_size if isinstance(sets.training, ImageFileSource) else 0
    training, held_out = (
        _make_split_findings("training", sets.training, least),
        _make_split_findings("held-out", sets.validation, least),
    )
    for side, source, other in ((training, sets.training, None), (held_out, sets.validation, training)):
        for look in inspect_source(source, sets.shape, num_usable_cores()):
            side.add(look, other)
            tell(f"{training.samples + held_out.samples:,} of {total:,} samples read")
    return _make_findings(config, sets, training, held_out)


def _make_findings(
    config: RunConfig, sets: DataSplits, training: SplitFindings, held_out: SplitFindings
) -> DataFindings:
    where = f" ({config.data.root})" if isinstance(sets.training, ImageFileSource) else ""
    labels = sets.training.labels, sets.validation.labels
    one, other = (_class_counts(sets, side) for side in (sets.training, sets.validation))
    notes = [*(f"WARNING: {warning}" for warning in sets.warnings), *(f"note: {note}" for note in sets.notes)]
    return DataFindings(
        title=f"{config.data.name}{where}: {len(sets.classes)} classes",
        training=training,
        held_out=held_out,
        classes=[*notes, *statistics.describe_class_balance(*labels, sets.classes, config.optim.class_weights)],
        per_class=(one, other),
    )


def _make_split_findings(name: str, source: SampleSource, least: int) -> SplitFindings:
    labels = source.labels.tolist()

    def name_of(sample: int) -> str:
        return str(source.paths[sample]) if isinstance(source, ImageFileSource) else f"{name} sample {sample}"

    return SplitFindings(name_of=name_of, label_of=labels.__getitem__, least=least)


def _class_counts(sets: DataSplits, source: SampleSource) -> dict[str, int]:
    counted = statistics.class_counts(source.labels, len(sets.classes))
    return {name: int(count) for name, count in zip(sets.classes, counted, strict=True)}
