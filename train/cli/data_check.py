"""The data check reads every sample of a data set once and reports what is wrong with it.

Duplicates and leaks are found by a digest of the decoded pixels, so the same image in another
lossless file format is a duplicate.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import torch

from entrypoint import ExitCode, Failure, dump_json, join_lines, list_some, num_usable_cores
from train import plugin
from train.config.schema import RunConfig
from train.data import decode, registry
from train.data.decode import MAX_16_BIT_VALUE
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing
from train.data.shape import ImageSize, Shape, height_and_width
from train.data.splits import EncodedImageSource, SampleIndices, SampleSource
from train.tasks import TASKS
from train.tasks.registry import open_task

FILES_PER_CHUNK: Final = 64  # per task of one thread
BYTES_PER_CHUNK: Final = 32 * 2**20
CHUNKS_AHEAD: Final = 8  # of each thread: pool.map would begin all of them, and keep what nobody has taken yet
CHANNEL_MODES: Final = {1: "L", 3: "RGB"}


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedSample:
    """One sample.

    size: (width, height), for clips (width, height, frames). mode: Pillow's pixel format. facts: what may be lost of an
    image file. digest: of the decoded pixels. seconds: to read it. broken: why it cannot be read; size, mode and digest
    are then empty.
    """

    sample: int
    size: tuple[int, ...] = ()
    mode: str = ""
    facts: decode.ImageFacts = decode.NO_FACTS
    digest: bytes = b""
    seconds: float = 0.0
    broken: str | None = None


def inspect_source(source: SampleSource, shape: Shape, threads: int) -> Iterator[InspectedSample]:
    """Read every sample once with `threads` threads; yield in order, CHUNKS_AHEAD of each thread at a time.

    Raises:
        Failure: IO or RESOURCE if the system fails; a broken sample is a result, not a failure.
    """
    count, images = len(source.labels), source.encoded_images()
    size = FILES_PER_CHUNK if images is not None else max(1, BYTES_PER_CHUNK // (4 * math.prod(shape.stored)))
    inspect = partial(inspect_samples, source, shape) if images is None else partial(_inspect_images, images)
    chunks = (np.arange(start, min(start + size, count)) for start in range(0, count, size))
    with ThreadPoolExecutor(threads) as pool:
        while ahead := [*islice(chunks, CHUNKS_AHEAD * threads)]:
            for inspected in pool.map(inspect, ahead):
                yield from inspected


def _inspect_images(source: EncodedImageSource, samples: SampleIndices) -> list[InspectedSample]:
    inspected = []
    for sample in map(int, samples):
        try:
            inspected.append(inspect_file(source.image(sample), sample, source.preprocessing))
        except Failure as failure:  # of a shard
            inspected.append(_broken_sample(sample, failure))
    return inspected


def inspect_file(
    path: decode.ImageFile, sample: int, preprocessing: Preprocessing = DEFAULT_PREPROCESSING
) -> InspectedSample:
    """Read one image file."""
    start = time.perf_counter()
    try:
        with decode.open_image(path) as image:
            mode, facts = image.mode, decode.find_facts(image)
            rgb = decode.to_8_bits(image, len("RGB"), preprocessing)
    except decode.DECODE_ERRORS as error:
        return _broken_sample(sample, decode.unreadable_image_failure(path, sample, error))
    seconds = time.perf_counter() - start
    digest = _pixel_digest(repr(rgb.size).encode(), rgb.tobytes())
    return InspectedSample(sample=sample, size=rgb.size, mode=mode, facts=facts, digest=digest, seconds=seconds)


def inspect_samples(source: SampleSource, shape: Shape, samples: SampleIndices) -> list[InspectedSample]:
    """Read samples that are not image files."""
    start = time.perf_counter()
    try:
        pixels = source.read(samples)
    except Failure as failure:
        if len(samples) == 1:
            return [_broken_sample(int(samples[0]), failure)]
        return [inspected for sample in samples for inspected in inspect_samples(source, shape, np.array([sample]))]
    seconds = (time.perf_counter() - start) / len(samples)
    mode = CHANNEL_MODES.get(shape.channels, f"{shape.channels} channels") + (
        "" if pixels.dtype == torch.uint8 else " float"
    )
    size = (*shape.size[:-3:-1], *shape.size[:-2])
    return [
        InspectedSample(
            sample=int(sample), size=size, mode=mode, digest=_pixel_digest(tensor.numpy().tobytes()), seconds=seconds
        )
        for sample, tensor in zip(samples, pixels, strict=True)
    ]


def _pixel_digest(*parts: bytes) -> bytes:
    """sha256, cut to 128 bits, where chance collisions are practically impossible."""
    return hashlib.sha256(b"".join(parts)).digest()[:16]


def _broken_sample(sample: int, failure: Failure) -> InspectedSample:
    if failure.code not in (ExitCode.DATA, ExitCode.NO_INPUT):
        raise failure
    return InspectedSample(sample=sample, broken=failure.found or failure.what)


MAX_SHOWN: Final = 10
MIN_KEPT_SHARE: Final = 0.5  # of an image's area: one that keeps less may have lost what its label says
# What may be wrong with image files that can be read: the row of the text -> the key in JSON, and the row's words.
PROBLEMS: Final[Mapping[str, tuple[str, str]]] = {
    "small": ("smaller_than_image_size", "below data.image_size {size}, scaled up: {examples}"),
    "cut": (
        "cut_by_more_than_half",
        "of {read:,} lose more than half of their area to the crop: {examples}. "
        "fix: data.fit=pad (the whole image and a border) or data.fit=stretch",
    ),
    "pages": ("several_pages", f"{decode.PAGES_TEXT}: {{examples}}"),  # only the first page or frame is read
    "transparent": (
        "transparent_everywhere",
        "are transparent everywhere, and read as one colour: {examples}",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedSample:
    """A sample that is in a split a second time. same_as: the number of the earlier one, in the split `other`."""

    sample: int
    other: SplitFindings
    same_as: int


@dataclass(slots=True, kw_only=True)
class SplitFindings:
    """Findings about one split.

    name_of, label_of: of a sample. files: how image files are read; None for other samples. highest: of 16-bit
    images. problems: the samples with each of PROBLEMS. duplicates: the copies of images of this split. leaked: those
    of images of another split.
    """

    name: str
    name_of: Callable[[int], str]
    label_of: Callable[[int], int]
    files: EncodedImageSource | None = None
    samples: int = 0
    seconds: float = 0.0
    sizes: Counter[tuple[int, ...]] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    highest: int | None = None
    problems: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in PROBLEMS})
    broken: list[tuple[int, str]] = field(default_factory=list)
    first_by_digest: dict[bytes, int] = field(default_factory=dict)
    duplicates: list[CopiedSample] = field(default_factory=list)
    leaked: list[CopiedSample] = field(default_factory=list)

    def add(self, sample: InspectedSample, others: Sequence[SplitFindings] = ()) -> None:
        """Add one sample. others: the splits that were read before."""
        self.samples += 1
        if sample.broken is not None:
            self.broken.append((sample.sample, sample.broken))
            return
        self.seconds += sample.seconds
        self.sizes[sample.size] += 1
        self.modes[sample.mode] += 1
        if sample.facts.highest is not None:
            self.highest = max(sample.facts.highest, self.highest or 0)
        problems = {"pages": sample.facts.format is not None, "transparent": sample.facts.is_hidden}
        if (files := self.files) is not None:
            size, cuts = (sample.size[0], sample.size[1]), files.preprocessing.fit == "crop"
            problems["small"] = decode.is_enlarged(size, files.size, files.preprocessing)
            problems["cut"] = cuts and decode.kept_share(size, files.size) < MIN_KEPT_SHARE
        for name in filter(problems.__getitem__, problems):
            self.problems[name].append(sample.sample)
        for split, copies in ((self, self.duplicates), *((other, self.leaked) for other in others)):
            if (same_as := split.first_by_digest.get(sample.digest)) is not None:
                copies.append(CopiedSample(sample=sample.sample, other=split, same_as=same_as))
        self.first_by_digest.setdefault(sample.digest, sample.sample)

    @property
    def read(self) -> int:
        """Samples that could be read."""
        return self.samples - len(self.broken)

    def as_json(self, per_class: dict[str, int]) -> dict[str, Any]:
        """All findings about this split."""
        return {
            "samples": self.samples,
            "per_class": per_class,
            "sizes": _summarize_sizes(self.sizes),
            "modes": dict(self.modes.most_common()),
            "highest_of_16_bits": self.highest,
            "seconds_per_sample": self.seconds / self.read if self.read else None,
            **{key: [*map(self.name_of, self.problems[name])] for name, (key, _) in PROBLEMS.items()},
            "broken": [{"name": self.name_of(sample), "reason": reason} for sample, reason in self.broken],
            "duplicates": [_copy_json(self, copy) for copy in self.duplicates],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFindings:
    """Findings about all splits, in the order in which they are shown."""

    title: str
    splits: list[SplitFindings]
    classes: list[str]  # lines on class balance
    per_class: tuple[dict[str, int], ...]  # the counts of each split
    warnings: tuple[str, ...] = ()  # as those of `DataSplits`
    notes: tuple[str, ...] = ()

    @property
    def failure(self) -> Failure | None:
        """A Failure (DATA) for broken samples and for images in two splits; otherwise None."""
        broken, leaked = self._broken(), self._leaked()
        if not broken and not leaked:
            return None
        problems = [f"broken samples ({len(broken):,})"] if broken else []
        pairs = Counter((split.name, leak.other.name) for split in self.splits for leak in split.leaked)
        problems += [f"{name} images that are in the {other} split too ({n:,})" for (name, other), n in pairs.items()]
        fixes = ["replace or delete the broken ones (or allow some: data.max_bad_images)"] if broken else []
        fixes += ["delete one of each pair (or keep groups together: data.group)"] if leaked else []
        examples = list_some(broken + leaked, MAX_SHOWN, separator="; ")
        return Failure(
            f"the data has {' and '.join(problems)}", found=examples, fix="; ".join(fixes), code=ExitCode.DATA
        )

    def as_text(self) -> str:
        """Text with one fact per line."""
        rows = [row for split in self.splits for row in self._lines(split)]
        remarks = (*(f"WARNING: {warning}" for warning in self.warnings), *(f"note: {note}" for note in self.notes))
        facts = (f"{name:<14} {value}" for name, value in rows)
        lines = [f"{'data':<14} {self.title}", *remarks, *self.classes, *facts]
        for name, problems in (("broken", self._broken()), ("leakage", self._leaked())):
            examples = [f"  {problem}" for problem in problems[:MAX_SHOWN]]
            lines += [f"{name:<14} {len(problems) or 'none'}", *examples]
            lines += [f"  and {len(problems) - MAX_SHOWN:,} more: see --json"] if len(problems) > MAX_SHOWN else []
        return join_lines(lines)

    def as_json(self) -> str:
        """All findings as JSON."""
        splits = {split.name: split.as_json(counts) for split, counts in zip(self.splits, self.per_class, strict=True)}
        leaks = [
            {"split": split.name, "other_split": leak.other.name} | _copy_json(split, leak)
            for split in self.splits
            for leak in split.leaked
        ]
        about = {"ok": self.failure is None, "data": self.title, "warnings": self.warnings, "notes": self.notes}
        return dump_json({**about, **splits, "leaks": leaks}, indent=2)

    def _lines(self, split: SplitFindings) -> list[tuple[str, str]]:
        if split.samples == 0:
            return [(split.name, "no samples")]
        speed = f", {1e3 * split.seconds / split.read:.3g} ms each" if split.read else ""
        share = f"{split.read:,} of " if split.broken else ""
        rows = [(split.name, f"{share}{split.samples:,} read{speed}")]
        if split.read:
            modes = ", ".join(f"{mode} {count:,}" for mode, count in split.modes.most_common())
            if split.highest is not None:
                modes += f", highest value of 16 bits {split.highest:,} of {MAX_16_BIT_VALUE:,}"
            rows += [("  sizes", _format_sizes(split.sizes)), ("  pixels", modes)]
        size = "" if split.files is None else _format_image_size(split.files.size)
        for name, (_, words) in PROBLEMS.items():
            if samples := split.problems[name]:
                text = words.format(size=size, read=split.read, examples=list_some(samples, 3, split.name_of))
                rows += [(f"  {name}", f"{len(samples):,} {text}")]
        if split.duplicates:
            examples = list_some(split.duplicates, 3, partial(_format_copy, split), "; ")
            rows += [("  duplicates", f"{len(split.duplicates):,}: {examples}")]
        return rows

    def _broken(self) -> list[str]:
        return [
            reason if reason.startswith(split.name_of(sample)) else f"{split.name_of(sample)}: {reason}"
            for split in self.splits
            for sample, reason in split.broken
        ]

    def _leaked(self) -> list[str]:
        return [_format_copy(split, leak) for split in self.splits for leak in split.leaked]


def _copy_json(split: SplitFindings, copy: CopiedSample) -> dict[str, Any]:
    same = split.label_of(copy.sample) == copy.other.label_of(copy.same_as)
    return {"name": split.name_of(copy.sample), "same_as": copy.other.name_of(copy.same_as), "same_class": same}


def _format_copy(split: SplitFindings, copy: CopiedSample) -> str:
    facts = _copy_json(split, copy)
    return f"{facts['name']} = {facts['same_as']}" + ("" if facts["same_class"] else " (of another class!)")


def _summarize_sizes(sizes: Counter[tuple[int, ...]]) -> dict[str, Any] | None:
    if not sizes:
        return None
    ordered = sorted(sizes, key=lambda size: (math.prod(size), size))
    most_frequent, count = sizes.most_common(1)[0]
    return {"smallest": ordered[0], "largest": ordered[-1], "most_frequent": most_frequent, "of_that_size": count}


def _format_sizes(sizes: Counter[tuple[int, ...]]) -> str:
    summary = _summarize_sizes(sizes) or {}
    keys = ("smallest", "largest", "most_frequent")
    smallest, largest, most_frequent = (" x ".join(map(str, summary[key])) for key in keys)
    if len(sizes) == 1:
        return f"all {smallest}"
    share = summary["of_that_size"] / sizes.total()
    return f"{smallest} to {largest}, most often {most_frequent} ({share:.1%})"


def _format_image_size(size: ImageSize) -> str:
    """data.image_size as it is written."""
    height, width = height_and_width(size)
    return str(height) if height == width else f"[{height}, {width}]"


def check_samples(
    config: RunConfig, *, config_file: str | None, report_progress: Callable[[str], None]
) -> DataFindings:
    """Read all samples on all cores of this process.

    Args:
        config_file: its folder may hold the user's own modules.
        report_progress: called often, with a line on the progress.

    Raises:
        Failure: as opening the data; IO or RESOURCE if the system fails.
    """
    plugin.add_config_folder_to_path(config_file, config.data.name, config.model.name)
    splits = registry.open_splits(config.data)
    sources = {"training": splits.training, "validation": splits.validation}
    sources |= {} if splits.test is None else {"test": splits.test}
    total = sum(len(source.labels) for source in sources.values())
    findings: list[SplitFindings] = []
    for name, source in sources.items():
        split = SplitFindings(
            name=name,
            name_of=partial(_name_sample, name, source),
            label_of=source.labels.tolist().__getitem__,
            files=source.encoded_images(),
        )
        for sample in inspect_source(source, splits.shape, num_usable_cores()):
            split.add(sample, findings)
            num_read = split.samples + sum(other.samples for other in findings)
            report_progress(f"{num_read:,} of {total:,} samples read")
        findings.append(split)
    location = f" ({config.data.root})" if splits.training.encoded_images() is not None else ""
    task, labels = open_task(splits.task, splits.classes, splits.target), [source.labels for source in sources.values()]
    return DataFindings(
        title=f"{config.data.name}{location}: {TASKS[splits.task].describe_outputs(splits.classes)}",
        splits=findings,
        warnings=splits.warnings,
        notes=splits.notes,
        classes=task.describe_balance(labels[0], labels[1], config.optim.class_weights),
        per_class=tuple(map(task.count_images, labels)),
    )


def _name_sample(split: str, source: SampleSource, sample: int) -> str:
    images = source.encoded_images()
    return f"{split} sample {sample}" if images is None else str(images.paths[sample])
