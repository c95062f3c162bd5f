"""The data check reads every sample of a data set once and reports what is wrong with it.

Duplicates and leaks are found by a digest of the decoded pixels, so the same image in another
lossless file format is a duplicate.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, dump_json, join_lines, list_some, num_usable_cores
from train import plugin
from train.config.schema import RunConfig
from train.data import decode, registry
from train.data.decode import MAX_16_BIT_VALUE
from train.data.encoded_images import EncodedImageSource
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing
from train.data.shape import ImageSize, Shape, height_and_width
from train.data.splits import DataSplits, SampleIndices, SampleSource
from train.tasks import TASKS
from train.tasks.registry import open_task

FILES_PER_CHUNK: Final = 64  # per task of one thread
BYTES_PER_CHUNK: Final = 32 * 2**20
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
    """Read every sample once with `threads` threads; yield in order, with a few chunks in memory.

    Raises:
        Failure: IO or RESOURCE if the system fails; a broken sample is a result, not a failure.
    """
    count = len(source.labels)
    size = (
        FILES_PER_CHUNK
        if isinstance(source, EncodedImageSource)
        else max(1, BYTES_PER_CHUNK // (4 * math.prod(shape.stored)))
    )
    chunks = (np.arange(start, min(start + size, count)) for start in range(0, count, size))
    with ThreadPoolExecutor(threads) as pool:
        yield from _map_in_order(pool, _chunk_inspector(source, shape), chunks, ahead=2 * threads)


def _inspect_image(source: EncodedImageSource, sample: int) -> InspectedSample:
    try:
        return inspect_file(source.image(sample), sample, source.preprocessing)
    except Failure as failure:  # of a shard
        return _broken_sample(sample, failure)


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


def _chunk_inspector(source: SampleSource, shape: Shape) -> Callable[[SampleIndices], list[InspectedSample]]:
    if isinstance(source, EncodedImageSource):
        return lambda chunk: [_inspect_image(source, int(sample)) for sample in chunk]
    return partial(inspect_samples, source, shape)


def _map_in_order(
    pool: ThreadPoolExecutor,
    task: Callable[[SampleIndices], list[InspectedSample]],
    chunks: Iterator[SampleIndices],
    *,
    ahead: int,
) -> Iterator[InspectedSample]:
    """Like pool.map, but with at most `ahead` chunks submitted, to limit memory."""
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
    """sha256, cut to 128 bits, where chance collisions are practically impossible."""
    return hashlib.sha256(b"".join(parts)).digest()[:16]


def _broken_sample(sample: int, failure: Failure) -> InspectedSample:
    if failure.code not in (ExitCode.DATA, ExitCode.NO_INPUT):
        raise failure
    return InspectedSample(sample=sample, broken=failure.found or failure.what)


MAX_SHOWN: Final = 10
MIN_KEPT_SHARE: Final = 0.5  # of an image's area: one that keeps less may have lost what its label says
CUT_FIX: Final = "data.fit=pad (the whole image and a border) or data.fit=stretch"
SamplePair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakedSample:
    """A sample that is in another split too. same_as: its number there."""

    sample: int
    other: SplitFindings
    same_as: int


@dataclass(slots=True, kw_only=True)
class SplitFindings:
    """Findings about one split.

    name_of, label_of: of a sample. files: how image files are read; None for other samples. highest: of 16-bit
    images. small: files that are scaled up. cut: files that lose more than half of their area to the crop. paged: files
    with further pages or frames. hidden: files that are transparent everywhere.
    duplicates: (sample, the earlier sample with the same pixels). leaked: images that are in another split too.
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
    small: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    paged: list[int] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    broken: list[tuple[int, str]] = field(default_factory=list)
    first_by_digest: dict[bytes, int] = field(default_factory=dict)
    duplicates: list[SamplePair] = field(default_factory=list)
    leaked: list[LeakedSample] = field(default_factory=list)

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
        self.paged += [sample.sample] * (sample.facts.format is not None)
        self.hidden += [sample.sample] * sample.facts.is_hidden
        if self.files is not None:
            self._compare_size(sample, self.files)
        if self.first_by_digest.setdefault(sample.digest, sample.sample) != sample.sample:
            self.duplicates.append((sample.sample, self.first_by_digest[sample.digest]))
        self.leaked += [
            LeakedSample(sample=sample.sample, other=other, same_as=other.first_by_digest[sample.digest])
            for other in others
            if sample.digest in other.first_by_digest
        ]

    def _compare_size(self, sample: InspectedSample, files: EncodedImageSource) -> None:
        width, height = sample.size[:2]
        if decode.is_enlarged((width, height), files.size, files.preprocessing):
            self.small.append(sample.sample)
        if files.preprocessing.fit == "crop" and decode.kept_share((width, height), files.size) < MIN_KEPT_SHARE:
            self.cut.append(sample.sample)

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
            "smaller_than_image_size": [self.name_of(sample) for sample in self.small],
            "cut_by_more_than_half": [self.name_of(sample) for sample in self.cut],
            "several_pages": [self.name_of(sample) for sample in self.paged],
            "transparent_everywhere": [self.name_of(sample) for sample in self.hidden],
            "broken": [{"name": self.name_of(sample), "reason": reason} for sample, reason in self.broken],
            "duplicates": [_pair_json(self, self, pair) for pair in self.duplicates],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFindings:
    """Findings about all splits.

    classes: lines on class balance. per_class: the counts of each split. test: None if the data has no test split.
    """

    title: str
    training: SplitFindings
    validation: SplitFindings
    classes: list[str]
    per_class: tuple[dict[str, int], ...]
    test: SplitFindings | None = None

    @property
    def splits(self) -> list[SplitFindings]:
        """The splits, in the order in which they are shown."""
        return [self.training, self.validation, *([self.test] if self.test else [])]

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
        rows = [
            ("data", self.title),
            *(row for split in self.splits for row in self._lines(split)),
        ]
        lines = [f"{name:<14} {value}" for name, value in rows]
        lines[1:1] = self.classes
        for name, problems in (("broken", self._broken()), ("leakage", self._leaked())):
            examples = [f"  {problem}" for problem in problems[:MAX_SHOWN]]
            lines += [f"{name:<14} {len(problems) or 'none'}", *examples]
            lines += [f"  and {len(problems) - MAX_SHOWN:,} more: see --json"] if len(problems) > MAX_SHOWN else []
        return join_lines(lines)

    def as_json(self) -> str:
        """All findings as JSON."""
        splits = {split.name: split.as_json(counts) for split, counts in zip(self.splits, self.per_class, strict=True)}
        leaks = [
            {"split": split.name, "other_split": leak.other.name}
            | _pair_json(split, leak.other, (leak.sample, leak.same_as))
            for split in self.splits
            for leak in split.leaked
        ]
        return dump_json({"ok": self.failure is None, "data": self.title, **splits, "leaks": leaks}, indent=2)

    def _lines(self, split: SplitFindings) -> list[tuple[str, str]]:
        if split.samples == 0:
            return [(split.name, "no samples")]
        speed = f", {1e3 * split.seconds / split.read:.3g} ms each" if split.read else ""
        share = f"{split.read:,} of " if split.broken else ""
        rows = [(split.name, f"{share}{split.samples:,} read{speed}")]
        if split.read:
            rows += [
                ("  sizes", _format_sizes(split.sizes)),
                ("  pixels", _format_modes(split.modes) + _format_max_value(split.highest)),
            ]
        if split.small and split.files is not None:
            size = _format_image_size(split.files.size)
            examples = _format_examples(split, split.small)
            rows += [("  small", f"{len(split.small):,} below data.image_size {size}, scaled up: {examples}")]
        if split.cut:
            share = f"{len(split.cut):,} of {split.read:,} lose more than half of their area to the crop"
            rows += [("  cut", f"{share}: {_format_examples(split, split.cut)}. fix: {CUT_FIX}")]
        for title, samples, text in (
            ("  pages", split.paged, decode.PAGES_TEXT),
            ("  transparent", split.hidden, "are transparent everywhere, and read as one colour"),
        ):
            if samples:
                rows += [(title, f"{len(samples):,} {text}: {_format_examples(split, samples)}")]
        if split.duplicates:
            examples = list_some(split.duplicates, 3, partial(_format_pair, split, split), "; ")
            rows += [("  duplicates", f"{len(split.duplicates):,}: {examples}")]
        return rows

    def _broken(self) -> list[str]:
        return [
            reason if reason.startswith(split.name_of(sample)) else f"{split.name_of(sample)}: {reason}"
            for split in self.splits
            for sample, reason in split.broken
        ]

    def _leaked(self) -> list[str]:
        return [
            _format_pair(split, leak.other, (leak.sample, leak.same_as))
            for split in self.splits
            for leak in split.leaked
        ]


def _pair_json(side: SplitFindings, other: SplitFindings, pair: SamplePair) -> dict[str, Any]:
    same = side.label_of(pair[0]) == other.label_of(pair[1])
    return {"name": side.name_of(pair[0]), "same_as": other.name_of(pair[1]), "same_class": same}


def _format_pair(side: SplitFindings, other: SplitFindings, pair: SamplePair) -> str:
    facts = _pair_json(side, other, pair)
    return f"{facts['name']} = {facts['same_as']}" + ("" if facts["same_class"] else " (of another class!)")


def _summarize_sizes(sizes: Counter[tuple[int, ...]]) -> dict[str, Any] | None:
    if not sizes:
        return None
    ordered = sorted(sizes, key=lambda size: (math.prod(size), size))
    most_frequent, count = sizes.most_common(1)[0]
    return {"smallest": ordered[0], "largest": ordered[-1], "most_frequent": most_frequent, "of_that_size": count}


def _format_sizes(sizes: Counter[tuple[int, ...]]) -> str:
    summary = _summarize_sizes(sizes) or {}
    if len(sizes) == 1:
        return f"all {_format_size(summary['most_frequent'])}"
    share = summary["of_that_size"] / sizes.total()
    most_frequent = f"most often {_format_size(summary['most_frequent'])} ({share:.1%})"
    return f"{_format_size(summary['smallest'])} to {_format_size(summary['largest'])}, {most_frequent}"


def _format_examples(split: SplitFindings, samples: Sequence[int]) -> str:
    return list_some(samples, 3, split.name_of)


def _format_image_size(size: ImageSize) -> str:
    """data.image_size as it is written."""
    height, width = height_and_width(size)
    return str(height) if height == width else f"[{height}, {width}]"


def _format_size(size: Sequence[int]) -> str:
    return " x ".join(map(str, size))


def _format_modes(modes: Counter[str]) -> str:
    return ", ".join(f"{mode} {count:,}" for mode, count in modes.most_common())


def _format_max_value(value: int | None) -> str:
    return "" if value is None else f", highest value of 16 bits {value:,} of {MAX_16_BIT_VALUE:,}"


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
        split = _make_split_findings(name, source)
        for sample in inspect_source(source, splits.shape, num_usable_cores()):
            split.add(sample, findings)
            num_read = split.samples + sum(other.samples for other in findings)
            report_progress(f"{num_read:,} of {total:,} samples read")
        findings.append(split)
    return _make_findings(config, splits, findings, [source.labels for source in sources.values()])


def _make_findings(
    config: RunConfig, sets: DataSplits, findings: Sequence[SplitFindings], labels: Sequence[Tensor]
) -> DataFindings:
    """findings, labels: of training, validation, and test if there is one."""
    location = f" ({config.data.root})" if isinstance(sets.training, EncodedImageSource) else ""
    task = open_task(sets.task, sets.classes, sets.target)
    notes = [*(f"WARNING: {warning}" for warning in sets.warnings), *(f"note: {note}" for note in sets.notes)]
    return DataFindings(
        title=f"{config.data.name}{location}: {TASKS[sets.task].describe_outputs(sets.classes)}",
        training=findings[0],
        validation=findings[1],
        test=findings[2] if len(findings) > 2 else None,
        classes=[*notes, *task.describe_balance(labels[0], labels[1], config.optim.class_weights)],
        per_class=tuple(map(task.count_images, labels)),
    )


def _make_split_findings(name: str, source: SampleSource) -> SplitFindings:
    labels, files = source.labels.tolist(), source if isinstance(source, EncodedImageSource) else None

    def name_of(sample: int) -> str:
        return f"{name} sample {sample}" if files is None else str(files.paths[sample])

    return SplitFindings(name=name, name_of=name_of, label_of=labels.__getitem__, files=files)
