"""Finds the one entry that holds all that is known about a data source, by its name `data.name`.

An entry answers without torch, so that a mistake is reported before any process starts; only its reader
loads it. A new source is a module in `train/data/sources/` with its entry, and a line in
`schema.DATA_SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from entrypoint import ExitCode, Failure, list_some, pluralize
from train import files
from train.config import schema
from train.config.batches import SplitCounts
from train.config.schema import KEYS, DataConfig, RunConfig
from train.data.shape import COLOR_CHANNELS, ImageSize, Shape, height_and_width
from train.names import look_alike_warnings, normalize_name
from train.tasks import AUTO, CLASSIFICATION, REGRESSION, TASKS, UNSUPPORTED_TASKS

if TYPE_CHECKING:
    from train.data.splits import DataSplits
    from train.distributed.shared_memory import HostRanks


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSummary:
    """What `train check` says of data.

    training: the number of training samples. facts: what a resumed run compares with the facts of its start, if the
    data was opened. task: what the labels are.
    """

    description: str
    training: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    task: str = CLASSIFICATION


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """All that is known about one `data.name` before its data is opened.

    reader: "module:function" in train.data, which needs torch: opens all splits, reading no more than a few images. All
        ranks call it, and those of one machine may divide the work. Its arguments are those of `open_splits`. Raises
        Failure: NO_INPUT or DATA, naming the folder, file or sample; USAGE for what the config itself rules out.

    Functions:
        count: the samples of each split; None if counting is slow, or if only opening the data tells: every task calls
            it before a start. Raises Failure: NO_INPUT for missing data, DATA for broken files.
        check: refuses bad values of the source's keys. Raises Failure: USAGE.

    Facts:
        keys: the OPTIONAL_KEYS that act on this source.
        origin: computed from the sample's number, read from files at data.root, or returned by a factory.
        channels: 1 for gray images, 3 for RGB (data.color may change it); None if only the data tell channels and size.
        classes: how many published data has.
        has_class_names: whether classes have names; else they may be numbers only.
        tasks: what its labels may be.
        hashes_paths: whether equal digests (`statistics.data_fingerprint`) mean the same files.
    """

    reader: str
    count: Callable[[DataConfig], SplitCounts | None]
    check: Callable[[DataConfig], None] = lambda data: None  # refuses nothing
    keys: frozenset[str]
    origin: Literal["computed", "files", "factory"]
    channels: int | None = None
    classes: int | None = None
    has_class_names: bool = False
    hashes_paths: bool = False
    tasks: tuple[str, ...] = (CLASSIFICATION,)

    def open(self, data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
        """All splits of the data. Raises Failure: as the reader."""
        module, _, function = self.reader.partition(":")
        splits: DataSplits = getattr(import_module(f"train.data.{module}"), function)(data, host, cache_folder)
        return splits


# Keys of the data section that act on some sources only. All others act on every source.
OPTIONAL_KEYS: Final = tuple(path.removeprefix("data.") for path, key in KEYS.items() if key.elsewhere)
CACHE_FIXES: Final = {
    ExitCode.OUTPUT: "set data.cache to a folder that you may write (in a container: mount one), or leave it out",
    ExitCode.IO: "free space there, set data.cache to another file system, or leave it out",
    ExitCode.SECURITY: "remove the symbolic link, or set data.cache to the place it points to",
}


MAX_NAMED_SAMPLES: Final = 3


def find_source(name: str) -> DataSource:
    """The entry of this `data.name`; any name that is not in the table is package.module:factory."""
    module, _, entry = schema.DATA_SOURCES.get(name, schema.FACTORY_SOURCE).partition(":")
    source: DataSource = getattr(import_module(f"train.data.sources.{module}"), entry)
    return source


def open_splits(data: DataConfig, host: HostRanks | None = None, cache_folder: Path | None = None) -> DataSplits:
    """Open both splits of the data, and look at a few image files.

    Raises Failure: as `DataSource.open` and `decode.sample_warnings`.

    host: the ranks of this machine, all of which call it; None: this rank alone. cache_folder: the user's, for what a
    later start reads again; None: nothing is kept.
    """
    from train.data import decode  # Pillow
    from train.distributed.shared_memory import SINGLE_RANK

    source = find_source(data.name)
    splits = source.open(data, host or SINGLE_RANK, cache_folder)
    warnings = [*splits.warnings, *look_alike_warnings(splits.classes)]
    if (images := splits.training.encoded_images()) is not None:
        with ThreadPoolExecutor(1) as thread:  # which closes the shards that it opens
            facts = thread.submit(decode.sample_facts, images.image, len(images.labels)).result()
        warnings += decode.sample_warnings(facts, data.name if source.origin == "factory" else f"data.root {data.root}")
    warnings += _missing_number_warnings(splits) if splits.task == REGRESSION else ()
    return replace(splits, classes=tuple(map(normalize_name, splits.classes)), warnings=tuple(warnings))


def _missing_number_warnings(splits: DataSplits) -> Iterator[str]:
    """A warning of a number to predict that probably stands for a missing value, such as -999, with its images."""
    import numpy as np

    from train.tasks.labels import missing_number

    labels = splits.training.labels.numpy()
    if (missing := missing_number(labels)) is not None:
        value, (lowest, highest) = missing
        samples = np.flatnonzero(labels == value)
        names = list_some([*map(files.one_line, splits.training.names(samples[:MAX_NAMED_SAMPLES]))])
        yield (
            f"{pluralize(len(samples), 'training image')} have the number {value:g} (such as {names}), and the others "
            f"{lowest:g} to {highest:g}. fix: if it stands for a missing value, leave these images out"
        )


def configured_shape(data: DataConfig) -> Shape | None:
    """The shape of one sample; None if the configuration does not determine it."""
    source = find_source(data.name)
    if source.channels is None:
        return None
    channels = COLOR_CHANNELS[data.color] if "color" in source.keys else source.channels
    frames = () if data.frames is None else (data.frames,)
    return Shape(channels=channels, size=(*frames, *height_and_width(data.image_size)))


def summarize(
    data: DataConfig, splits: DataSplits | None = None, facts: Mapping[str, Any] = MappingProxyType({})
) -> DataSummary:
    """The summary for `train check`.

    splits: None if they are not opened: samples that are computed, or published ones that the start fetches. facts: of
    these splits, as `statistics.data_fingerprint`.
    """
    source = find_source(data.name)
    if splits is None:
        location = f" (not yet in {data.root}: fetched at the start)" if source.origin == "files" else ""
        counts, shape, outputs = source.count(data), configured_shape(data), f"{source.classes or data.classes} classes"
        assert counts is not None
        return DataSummary(description=_describe(data, location, shape, outputs, counts), training=counts.training)
    sizes = [0 if split is None else len(split.labels) for split in (splits.training, splits.validation, splits.test)]
    counts = SplitCounts(training=sizes[0], validation=sizes[1], test=sizes[2])
    outputs = TASKS[splits.task].describe_outputs(splits.classes)
    if TASKS[splits.task].has_classes:
        outputs += f" ({list_some(splits.classes, describe=files.shorten_name)})"
    location = f" ({data.root})" if source.origin == "files" else ""
    return DataSummary(
        description=_describe(data, location, splits.shape, outputs, counts),
        training=counts.training,
        facts=facts,
        warnings=splits.warnings,
        notes=splits.notes,
        task=splits.task,
    )


def _describe(data: DataConfig, location: str, shape: Shape | None, outputs: str, counts: SplitCounts) -> str:
    sizes = f"{counts.training:,} for training, {counts.validation:,} for validation{describe_test(counts.test)}"
    return f"{data.name}{location}, samples of {shape}, {outputs}: {sizes}"


def describe_test(images: int) -> str:
    """The size of the test split, as the end of a description; empty without one."""
    return f", {images:,} for the test at the end" if images else ""


def unused_keys(config: RunConfig) -> tuple[str, ...]:
    """The keys that have no effect in this config, also those at their defaults."""
    acting = {f"data.{key}" for key in find_source(config.data.name).keys}
    if config.data.classes != DataConfig().classes:  # a claim, which is compared with the data
        acting.add("data.classes")
    return tuple(path for path, key in KEYS.items() if key.is_idle(config) or (key.elsewhere and path not in acting))


def unused_key_warnings(config: RunConfig) -> tuple[str, ...]:
    """One line for each key that is set and does nothing, unless it is refused. Defaults give no warning."""
    return tuple(
        f"{path}: {value} does nothing here. fix: {fix.format(name=config.data.name)}"
        for path in unused_keys(config)
        if (fix := KEYS[path].idle_fix) and (value := attrgetter(path)(config)) != KEYS[path].default
    )


def refuse_inapplicable_keys(data: DataConfig) -> None:
    """Refuse keys that act only on other data sources, and values that this source cannot have.

    Raises:
        Failure: USAGE.
    """
    _refuse_other_tasks(data)
    for key in OPTIONAL_KEYS:
        if KEYS[f"data.{key}"].elsewhere == "refuse":
            refuse_unused_key(data, key)
    find_source(data.name).check(data)


def _refuse_other_tasks(data: DataConfig) -> None:
    """Refuse a task that is not supported, or that the labels of this source do not have."""
    if (advice := UNSUPPORTED_TASKS.get(data.task)) is not None:
        raise Failure(
            f"data.task: {data.task} is not supported",
            found=f"data.task: {data.task}",
            expected=f"{AUTO}, {', '.join(TASKS)}",
            fix=advice,
            code=ExitCode.USAGE,
        )
    if data.task not in (AUTO, *find_source(data.name).tasks):
        others = [name for name in schema.DATA_SOURCES if data.task in find_source(name).tasks]
        fix = f"write the labels in a table, and set data.name={others[0]} (docs/data.md)"
        raise inapplicable_key_failure(data, "task", fix)


def refuse_cached_evaluation_size(data: DataConfig, size: ImageSize | None) -> None:
    """Refuse an eval.image_size for images that are kept in data.cache, in one size.

    Raises:
        Failure: USAGE.
    """
    if data.cache is not None and size is not None and height_and_width(size) != height_and_width(data.image_size):
        raise Failure(
            "data.cache keeps images of one size, and eval.image_size is another than data.image_size",
            found=f"eval.image_size: {size}, data.image_size: {data.image_size}",
            fix="leave data.cache out, or eval.image_size",
            code=ExitCode.USAGE,
        )


def refuse_unusable_cache(data: DataConfig, *, writes: bool) -> None:
    """Refuse a data.cache that the next start would take for a class folder, or that cannot be written.

    writes: whether the training would start on this machine; elsewhere the folder may be another one.

    Raises:
        Failure: USAGE in data.root; as `files.refuse_unwritable`.
    """
    source = find_source(data.name)
    if data.cache is None or "cache" not in source.keys or source.origin != "files":
        return
    cache, root = Path(data.cache), Path(data.root)
    if cache.resolve().is_relative_to(root.resolve()):
        raise Failure(
            "data.cache lies inside data.root",
            found=f"{cache}, in {root}",
            fix="set data.cache to a folder outside of data.root",
            code=ExitCode.USAGE,
        )
    if writes and not cache.is_dir():  # one that is filled need not be written
        try:
            files.refuse_unwritable(cache)
        except Failure as failure:
            failure.fix = CACHE_FIXES.get(failure.code, failure.fix)
            raise


def refuse_unused_key(data: DataConfig, key: str) -> None:
    """Raises Failure (USAGE) if this key is set and acts only on other data sources."""
    value = getattr(data, key)
    if value == getattr(DataConfig(), key) or key in find_source(data.name).keys:
        return
    others = " or ".join(name for name in schema.DATA_SOURCES if key in find_source(name).keys)
    raise inapplicable_key_failure(data, key, f"leave data.{key} out, or set data.name to {others}")


def refuse_second_splits(data: DataConfig, *, validation: object = None, test: object = None) -> None:
    """Refuse data.fold and data.test_fraction if the data has validation or test images of its own.

    validation, test: where these are; None: nowhere.

    Raises:
        Failure: USAGE.
    """
    if validation is not None and data.fold is not None:
        raise Failure(
            "data.fold does not go with validation images of their own",
            found=f"data.fold: {data.fold}, and {validation}",
            expected="one list of images, of which each fold is once the validation split",
            fix=f"leave data.fold out; or move the images of {validation} to the training images",
            code=ExitCode.USAGE,
        )
    if test is not None and data.test_fraction:
        raise Failure(
            "data.test_fraction does not go with test images of their own",
            found=f"data.test_fraction: {data.test_fraction:g}, and {test}",
            fix=f"leave data.test_fraction out: {test} is the test split; or move it out of data.root",
            code=ExitCode.USAGE,
        )


def refuse_wrong_class_count(data: DataConfig, count: int, noun: str, location: str, of_what: str = "") -> None:
    """Refuse a data.classes that is not the number of classes. Its default claims nothing.

    noun, of_what: such as "classes" and " in the table".

    Raises:
        Failure: DATA.
    """
    if data.classes not in (count, DataConfig().classes):
        raise Failure(
            f"data.classes is not the number of {noun}{of_what}",
            found=f"{count} {noun} in {location}",
            expected=f"data.classes: {data.classes}",
            fix=f"set data.classes to {count}, or leave it out",
            code=ExitCode.DATA,
        )


def inapplicable_key_failure(data: DataConfig, key: str, fix: str) -> Failure:
    """The Failure for a key, or a value, that belongs to another data source."""
    return Failure(
        f"data.{key} does not go with data.name: {data.name}",
        found=f"data.{key}: {getattr(data, key)}",
        fix=fix,
        code=ExitCode.USAGE,
    )
