"""Lists the labelled images in class folders, and splits off a validation set if there is none.

Unread files, misplaced folders and classes that are too small are reported. A long listing is kept in the user's cache
for as long as no folder changes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from entrypoint import Failure
from train import files
from train.config.schema import DataConfig
from train.data import class_folders, image_lists, partition
from train.data.class_folders import DirectoryState
from train.data.registry import refuse_wrong_class_count
from train.data.sources.arrays import PARSE_ERRORS
from train.data.sources.folder import find_layout
from train.data.splits import DataSplits, ImageFileSource, configured_image_shape, configured_images, split_off
from train.distributed.shared_memory import HostRanks
from train.tasks import CLASSIFICATION
from train.tasks.labels import missing_validation_warnings

LISTING_VERSION: Final = 3  # raised whenever the same folder would be listed otherwise
# By the number of names and not by the seconds of a listing, so that each start of a run does the same. Reading so many
# names takes half a second on a local disk, and many seconds on a parallel file system.
MIN_NAMES: Final = 100_000
MIN_NAMES_PER_FOLDER: Final = 10  # with fewer, examining the folders takes as long as listing them
# A later change of a folder could get the same time as the last one: file systems count time in steps of up to two
# seconds, and the clocks of file servers differ from those of nodes.
MIN_AGE_S: Final = 10.0
MOUNTS_FILE: Final = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderListing:
    """The image files in the class folders of one folder.

    letters: uint8, all names below the folder, class by class, as bytes of the file system. lengths: int32 [count], of
    each name. counts: the number of images of each class. unread: other files, by ending. inside: the folders directly
    in each class folder. states: of each class folder and each folder below one, by name. devices: their file systems.
    has_open_link: as `class_folders.WalkedFolder`, of any of them.
    """

    letters: npt.NDArray[np.uint8]
    lengths: npt.NDArray[np.int32]
    counts: tuple[int, ...]
    unread: Mapping[str, int]
    inside: Mapping[str, Sequence[str]]
    states: Mapping[str, DirectoryState]
    devices: frozenset[int] = frozenset()
    has_open_link: bool = False


def list_class_folders(above: Path, classes: Sequence[str]) -> FolderListing:
    """Walk through the class folders in `above`.

    Raises:
        Failure: as `class_folders.walk_class_folder`.
    """
    letters, lengths, counts = bytearray(), list[npt.NDArray[np.int32]](), dict.fromkeys(classes, 0)
    unread, inside, states = Counter[str](), dict[str, Sequence[str]](), dict[str, DirectoryState]()
    devices, has_open_link, prefix = set[int](), False, len(str(above / "_")) - 1
    for label in classes:
        for walked in class_folders.walk_class_folder(above / label):
            name = walked.path[prefix:]
            encoded = [os.fsencode(f"{name}/{image}") for image in walked.images]
            letters += b"".join(encoded)
            lengths.append(np.fromiter(map(len, encoded), np.int32, len(encoded)))
            counts[label] += len(encoded)
            unread.update(map(class_folders.suffix_label, walked.others))
            inside.setdefault(label, walked.folders)  # the class folder itself comes first
            states[name] = walked.state
            devices.add(walked.device)
            has_open_link |= walked.has_open_link
    return FolderListing(
        letters=np.frombuffer(bytes(letters), np.uint8),
        lengths=np.concatenate(lengths) if lengths else np.empty(0, np.int32),
        counts=tuple(counts.values()),
        unread=unread,
        inside=inside,
        states=states,
        devices=frozenset(devices),
        has_open_link=has_open_link,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingCache:
    """Where listings are kept. folder: None if no folder lasts. is_writer: whether this rank writes them.

    A listing is read only if the state of each directory is the one that it had before it was listed.
    """

    folder: Path | None = None
    is_writer: bool = True
    clock: Callable[[], float] = time.time

    def list_images(self, above: Path, classes: Sequence[str]) -> FolderListing:
        """The listing that is kept of these class folders, or a new one. Raises Failure: as `list_class_folders`."""
        if self.folder is None:
            return list_class_folders(above, classes)
        path = self.folder / hashlib.sha256(os.fsencode(os.path.abspath(above))).hexdigest()[:32]
        with suppress(OSError, RuntimeError, MemoryError, zipfile.BadZipFile, *PARSE_ERRORS):
            if (listing := _read_listing(path, above, classes)) is not None:
                return listing
        begun_at = self.clock()
        listing = list_class_folders(above, classes)
        if self.is_writer and is_worth_keeping(listing, begun_at):
            with suppress(OSError, ValueError, Failure):
                if not listing.devices & _fuse_devices():
                    _write_listing(path, above, classes, listing)
        return listing


def is_worth_keeping(listing: FolderListing, begun_at: float) -> bool:
    """Whether reading this listing again saves time, and a change of the folders cannot go unnoticed.

    begun_at: when the first folder was listed, in seconds since 1970.
    """
    names, folders = len(listing.lengths) + sum(listing.unread.values()), len(listing.states)
    if names < max(MIN_NAMES, MIN_NAMES_PER_FOLDER * folders) or listing.has_open_link:
        return False
    times = {(modified, changed) for _, modified, _, changed in listing.states.values()}
    # On file systems that give all folders the same times (images that are built reproducibly, some object stores), the
    # times prove nothing.
    return len(times) > 1 and max(map(max, times)) < (begun_at - MIN_AGE_S) * 1e9


def _fuse_devices() -> set[int]:
    """The mounted FUSE file systems: of some (s3fs, rclone), a folder keeps its time when a file is added.

    Raises:
        OSError, ValueError: the mounts are not known.
    """
    devices = set()
    for line in MOUNTS_FILE.read_text(errors="replace").splitlines():
        mount, _, file_system = line.partition(" - ")
        if file_system.startswith("fuse"):
            major, minor = map(int, mount.split()[2].split(":"))
            devices.add(os.makedev(major, minor))
    return devices


def _key(above: Path, classes: Sequence[str]) -> dict[str, Any]:
    return {"version": LISTING_VERSION, "folder": os.path.abspath(above), "classes": [*classes]}


def _write_listing(path: Path, above: Path, classes: Sequence[str], listing: FolderListing) -> None:
    """Write the facts (JSON), the lengths and the letters into one file of numpy's, which has a checksum of each.

    Raises:
        OSError, Failure: as `files.write_atomic`.
    """
    facts = {"counts": listing.counts, "unread": listing.unread, "inside": listing.inside, "states": listing.states}
    header, content = json.dumps(_key(above, classes) | facts).encode(), io.BytesIO()
    np.savez(content, facts=np.frombuffer(header, np.uint8), lengths=listing.lengths, letters=listing.letters)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.write_atomic(path, content.getvalue())


def _read_listing(path: Path, above: Path, classes: Sequence[str]) -> FolderListing | None:
    """The listing in this file; None if it is damaged, of other classes, or if a folder has changed since.

    Raises:
        OSError: the file, or a folder, is gone or cannot be examined.
        RuntimeError, MemoryError, zipfile.BadZipFile, PARSE_ERRORS: the file is no listing, or damaged.
    """
    with files.open_regular_file(path) as file:
        arrays = dict(np.load(file, allow_pickle=False))
    facts, key = files.parse_json(arrays["facts"].tobytes()), _key(above, classes)
    states = {name: tuple(state) for name, state in facts["states"].items()}
    if {name: facts.get(name) for name in key} != key or any(
        class_folders.directory_state(os.stat(above / name)) != state for name, state in states.items()
    ):
        return None
    return FolderListing(
        letters=arrays["letters"],
        lengths=arrays["lengths"],
        counts=tuple(facts["counts"]),
        unread=facts["unread"],
        inside=facts["inside"],
        states=states,
    )


NO_CACHE: Final = ListingCache()


def open_image_folder(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
    """All splits. The first rank of each machine lists the folder, and its ranks share the memory of the names.

    cache_folder: as `registry.open_splits`.

    Raises:
        Failure: as `list_splits` and `HostRanks.first_shared`.
    """
    folder = None if cache_folder is None else cache_folder / "listings"
    cache = ListingCache(folder=folder, is_writer=host.rank == 0)
    return host.first_shared(lambda: list_splits(data, cache))


def list_splits(data: DataConfig, cache: ListingCache = NO_CACHE) -> DataSplits:
    """List all files of data.root, and split off what has no folder: validation images, and test images if asked for.

    cache: of listings, by the folder of class folders.

    Raises:
        Failure: NO_INPUT for missing folders and classes without images, DATA for another number of classes and for
            groups that cannot be kept in one split, USAGE for a split that has a folder and is asked for by a key.
    """
    layout = find_layout(data)
    refuse_wrong_class_count(data, len(layout.classes), "class folders", str(layout.training))
    classes, unread = layout.classes, Counter[str]()

    def list_files(above: Path, labels: Iterable[int] = range(len(classes))) -> tuple[ImageFileSource, FolderListing]:
        """The files in the folders of some classes, all of them unless `labels` has their numbers."""
        paths_by_class, names = class_folders.class_paths(above), [classes[label] for label in labels]
        folders = [paths_by_class.get(name, above / name).name for name in names]
        listing = cache.list_images(above, folders)
        class_folders.refuse_empty_classes(above, dict(zip(names, listing.counts, strict=True)), listing.unread)
        unread.update(listing.unread)
        paths = image_lists.from_lengths(str(above / "_")[:-1], listing.letters, listing.lengths)
        return configured_images(data, paths, np.repeat(np.array([*labels], np.int64), listing.counts)), listing

    training, listed = list_files(layout.training)
    class_folders.count_files_outside_classes(Path(data.root), layout, unread)
    validation = None if layout.validation is None else list_files(layout.validation)[0]
    test = None
    if layout.test is not None:  # which may lack classes
        test, _ = list_files(layout.test, [*map(classes.index, class_folders.class_names(layout.test))])
    groups = None
    if data.group is not None:  # searched in the paths below the folder of class folders, so that none above can match
        lists = {"training": training, "validation": validation, "test": test}
        names = {
            name: image_lists.as_packed_paths(images.paths).names()
            for name, images in lists.items()
            if images is not None
        }
        groups = {name: partition.group_names(paths, data.group) for name, paths in names.items()}
    training, validation, test, parts = split_off(
        training, data, training.labels.numpy(), validation=validation, test=test, groups=groups
    )
    of_splits = training.labels.numpy(), validation.labels.numpy()
    return DataSplits(
        training=training,
        validation=validation,
        test=test,
        classes=classes,
        shape=configured_image_shape(data),
        has_own_validation=layout.validation is not None,
        notes=(
            *parts.notes,
            *filter(None, (class_folders.describe_unread_files(unread), *class_folders.layout_notes(layout))),
        ),
        warnings=(
            *class_folders.split_folder_warnings(dict(zip(classes, listed.inside.values(), strict=True))),
            *class_folders.mask_warnings(training.paths),
            *missing_validation_warnings(CLASSIFICATION, classes, *of_splits),
        ),
    )
