"""Packs image files into tar shards: `train data pack`.

The images of a split are shuffled once, so that shards hold all classes. A shard is written under another name and
renamed when it is whole; the same command again goes on with those that are missing.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from entrypoint import ExitCode, Failure, file_writer
from train import files, rng
from train.config.schema import DataConfig
from train.data import decode, image_lists, image_table, partition, registry
from train.data.class_folders import IMAGE_SUFFIXES
from train.data.process_pool import map_in_processes
from train.data.shard_labels import CLASSES_FILE, GROUP_KEY
from train.data.shards import index as shard_index
from train.data.sources.table import read_table
from train.data.splits import ImageFileSource

PLAN_FILE: Final = "pack.json"
SHARD_BYTES: Final = 10**9
MAX_KEY_LETTERS: Final = 60
DEFAULT_QUALITY: Final = 90
NO_LINE: Final = re.compile("\n|\r$|^\ufeff")
PlannedImage = tuple[str, str, int | float | list[float], int, str | None, int, int]
SPLIT_NAMES: Final = {"training": "train", "validation": "val", "test": "test"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """A shard to write.

    members: of each image key, path, label as `SampleSource.labels`, number and group; and size and time of the last
    change (ns) of its file, which tell it from another image.
    """

    path: Path
    members: list[PlannedImage]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The shorter side in pixels to which larger images are scaled, and the quality of the JPEGs that this makes."""

    size: int
    quality: int


def pack_images(
    data: DataConfig,
    output: Path,
    *,
    scaling: Scaling | None,
    say: Callable[[str], None],
    shard_bytes: int = SHARD_BYTES,
) -> shard_index.ShardIndex:
    """Write the shards of all splits, class names and the index into `output`. say: takes a line for each shard.

    Raises:
        Failure: as opening the data; USAGE for samples that are no image files with a class, and for an `output` in the
            folder that is packed; OUTPUT for a folder that holds anything else; DATA for shards that do not hold what
            was packed, which get no index; what reading and writing raise.
    """
    root, is_listed = Path(data.root), registry.find_source(data.name).origin == "files"
    if is_listed and root.is_dir() and output.resolve().is_relative_to(root.resolve()):
        raise Failure(
            "--output lies in the folder that is packed",
            found=f"{output}, in {data.root}",
            fix="give a folder outside of it: --output DIR",
            code=ExitCode.USAGE,
        )
    splits = registry.open_splits(data)
    for line in (*(f"note: {note}" for note in splits.notes), *(f"warning: {each}" for each in splits.warnings)):
        say(line)
    sources = {"training": splits.training, "validation": splits.validation, "test": splits.test}
    if splits.training.image_files() is None or splits.weights is not None:
        weights = "" if splits.weights is None else ", with a weight for each image"
        raise Failure(
            "only image files with labels can be packed",
            found=f"data.name: {data.name}{weights}",
            fix="pack a folder of class folders, or a table of paths and labels without a column of weights",
            code=ExitCode.USAGE,
        )
    # The names behind an empty or a broken line would be those of other numbers.
    if unwritable := [name for name in splits.classes if not name.strip() or NO_LINE.search(name)]:
        raise Failure(
            f"the name of a class cannot be a line of {CLASSES_FILE}",
            found=repr(unwritable[0]),
            fix="rename the class: no line breaks",
            code=ExitCode.DATA,
        )
    packed = {
        SPLIT_NAMES[split]: images
        for split, source in sources.items()
        if source is not None and (images := source.image_files()) is not None
    }
    groups, plans = _group_by_path(data, packed.values()), list[ShardPlan]()
    for name, source in packed.items():
        if len(source.labels):
            plans += _plan_split(source, groups, name, output, shard_bytes)
    files.prepare_folder(output)
    with shard_index.only_writer(output):
        _prepare_output(output, plans, f"{shard_bytes} {scaling}")
        files.write_atomic(output / CLASSES_FILE, b"".join(os.fsencode(name) + b"\n" for name in splits.classes))
        missing = [plan for plan in plans if not plan.path.exists()]
        if len(missing) < len(plans):
            say(f"{len(plans) - len(missing)} of {len(plans)} shards are there already")
        written = map_in_processes(partial(write_shard, scaling, data.max_bad_images), missing)
        for line in chain.from_iterable(written):
            say(line)
        index = shard_index.read_shards(output, task=splits.task, say=say)
        counts = {shard.name: shard.images for shard in index.shards}
        for plan in plans:
            if counts.get(plan.path.name, 0) != len(plan.members):
                raise Failure(
                    "a shard does not hold the images that were packed into it",
                    found=f"{plan.path}: {counts.get(plan.path.name, 0):,} of {len(plan.members):,} images",
                    fix="delete it, and start the same command again",
                    code=ExitCode.DATA,
                )
        shard_index.write_files(index)
    return index


def _group_by_path(data: DataConfig, sources: Iterable[ImageFileSource]) -> dict[str, str]:
    """The group of each image, which stays in one split when the shards are split; empty without groups."""
    if data.name == "table":
        table = read_table(data)
        groups = image_table.group_names(table, data)
        return {} if groups is None else dict(zip(table.paths, groups, strict=True))
    if data.group is None:
        return {}
    paths = [image_lists.as_packed_paths(source.paths) for source in sources]
    names = partition.group_names(chain.from_iterable(each.names() for each in paths), data.group)
    return dict(zip(chain.from_iterable(paths), names, strict=True))


def _plan_split(
    source: ImageFileSource, groups: Mapping[str, str], name: str, output: Path, shard_bytes: int
) -> Iterator[ShardPlan]:
    order = rng.permutation(len(source.labels), rng.SPLIT, len(source.labels))
    images = list[PlannedImage]()
    for position, (sample, label) in enumerate(zip(order.tolist(), source.labels[order].tolist(), strict=True)):
        path = str(source.paths[sample])
        try:
            status = os.stat(path)
        except OSError as error:
            raise decode.unreadable_image_failure(Path(path), sample, error) from error
        state = status.st_size, status.st_mtime_ns
        images.append((_member_key(position, path), path, label, sample, groups.get(path), *state))
    shards = np.cumsum([image[-2] for image in images]) // shard_bytes
    bounds = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(images)]
    for number, (first, end) in enumerate(pairwise(bounds)):
        yield ShardPlan(path=output / f"{name}-{number:05d}.tar", members=images[first:end])


def _member_key(position: int, path: str) -> str:
    """A name without dots that nothing else has, and that ends as the file's path does."""
    readable = re.sub(r"[^A-Za-z0-9-]+", "_", os.path.splitext(path)[0])[-MAX_KEY_LETTERS:].strip("_")
    return f"{position:08d}_{readable}"


def _prepare_output(output: Path, plans: Sequence[ShardPlan], settings: str) -> None:
    """Refuse a folder with other files, or with shards of other images; remove what a killed writer left in ours."""
    digest = hashlib.sha256(settings.encode())
    for plan in plans:
        digest.update(repr((plan.path.name, plan.members)).encode(errors="surrogateescape"))
    names = [PLAN_FILE, CLASSES_FILE, files.PROBE_NAME, *(plan.path.name for plan in plans)]  # another one may begin
    left = file_writer.left_files(output, names)
    locks = output.glob(f"{shard_index.LOCK_NAME}.*")
    existing = {*os.listdir(output)} - {path.name for path in (*left, *locks)}
    plan_file = output / PLAN_FILE
    if plan_file.name in existing or not existing:
        for path in left:
            files.remove(path)
    if plan_file.name in existing:
        with suppress(OSError, *files.MALFORMED_ERRORS):
            if files.read_json(plan_file)["sha256"] == digest.hexdigest():
                return
        conflict = f"{plan_file} is of other images, of other options, or of another version"
    elif existing:
        conflict = f"{output} holds {sorted(existing)[0]}"
    else:
        files.write_json(plan_file, {"sha256": digest.hexdigest(), "shards": [plan.path.name for plan in plans]})
        return
    raise Failure(
        "shards are packed into an empty folder, or into one that the same command has begun",
        found=conflict,
        fix="give another folder: --output DIR",
        code=ExitCode.OUTPUT,
    )


def write_shard(scaling: Scaling | None, max_bad_images: int, plan: ShardPlan) -> list[str]:
    """Write one shard. Return a line that it is written, and one for each image that is packed as it is.

    max_bad_images: of the shard, that cannot be scaled: a training skips them, as it skips the files.

    Raises:
        Failure: for an image that cannot be read, and for a full disk.
    """
    lines = [f"{plan.path.name} is written"]
    try:
        with (
            files.translate_os_errors(plan.path),
            file_writer.replace_file(plan.path) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive,
        ):
            for key, path, label, sample, group, *_ in plan.members:
                try:
                    suffix, image = _read_image(path, sample, scaling)
                except Failure as failure:
                    if failure.code != ExitCode.DATA or len(lines) > max_bad_images:
                        raise
                    suffix, image = _read_image(path, sample, None)
                    lines.append(f"warning: {failure.what}, and is packed as it is: {failure.found}")
                _add(archive, key + suffix, image)
                _add(archive, *_label_member(key, label, group))
    except Failure as failure:
        if failure.code == ExitCode.IO:
            failure.fix = "free space there, and start the same command again; or give another folder: --output DIR"
        raise
    return lines


def _label_member(key: str, label: int | float | list[float], group: str | None) -> tuple[str, bytes]:
    """The name and the content of the member with label and group: the number of the class alone, or JSON."""
    if isinstance(label, int) and group is None:
        return f"{key}.cls", str(label).encode()
    name = "labels" if isinstance(label, list) else "label" if isinstance(label, int) else "target"
    value = [*np.flatnonzero(label).tolist()] if isinstance(label, list) else label
    return f"{key}.json", json.dumps({name: value} | ({} if group is None else {GROUP_KEY: group})).encode()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    archive.addfile(member, io.BytesIO(content))


def _read_image(path: str, sample: int, scaling: Scaling | None) -> tuple[str, bytes]:
    """The ending and the bytes of an image: those of the file, or of a scaled copy of a larger one, as `_scale`."""
    try:
        content = decode.read_image(Path(path)).data
        scaled = None if scaling is None else _scale(decode.ImageBytes(path, content), scaling)
    except decode.DECODE_ERRORS as error:
        raise decode.unreadable_image_failure(Path(path), sample, error) from error
    suffix = os.path.splitext(path)[1].lower()
    ending = suffix if suffix in IMAGE_SUFFIXES else ".jpg"  # the index looks for them, readers at the content
    return scaled or (ending, content)


def _scale(file: decode.ImageBytes, scaling: Scaling) -> tuple[str, bytes] | None:
    """The ending and the bytes of a JPEG whose shorter side has scaling.size pixels, or of a PNG if it is transparent:
    whoever reads it chooses the colour behind it. None for an image that is no larger, or gray with more than 8 bits.
    """
    with decode.open_image(file) as image:
        if min(image.size) <= scaling.size or decode.is_high_bit_depth(image):
            return None
        has_alpha = decode.has_transparency(image)
        upright = decode.to_rgba(image) if has_alpha else decode.to_8_bits(image, 1 if image.mode == "L" else 3)
    width, height = upright.size
    factor = scaling.size / min(width, height)
    small = upright.resize((round(width * factor), round(height * factor)), Image.Resampling.BICUBIC)
    written = io.BytesIO()
    small.save(written, "PNG" if has_alpha else "JPEG", quality=scaling.quality)
    return (".png" if has_alpha else ".jpg"), written.getvalue()
