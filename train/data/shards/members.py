"""Reads the members of a tar shard: each image with its label, and what is passed over.

A tar file has no list of its members, so it is read from its first to its last byte. What follows the end of an archive
is another archive (`cat a.tar b.tar`), or the file is damaged. This module does not import torch.
"""

from __future__ import annotations

import os
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Final

from entrypoint import ExitCode, Failure
from train import files
from train.data.class_folders import IMAGE_SUFFIXES
from train.data.shard_labels import LABEL_SUFFIXES, Annotation, Label, parse_annotation
from train.names import normalize_name

BLOCK: Final = tarfile.BLOCKSIZE
END_BYTES: Final = 2 * BLOCK  # zeros
MAX_IMAGE_BYTES: Final = 2**32 - 1
MAX_LABEL_BYTES: Final = 2**20  # of a member with a label
# Members without bytes of their own, and how tar writes these.
MEMBER_TYPES: Final = {
    tarfile.DIRTYPE: "folders",
    tarfile.LNKTYPE: "hard links, which tar --hard-dereference packs as files",
    tarfile.SYMTYPE: "symbolic links, which tar -h packs as files",
}
NO_LABEL: Final[Annotation] = (None, None)
# The number of members that are passed over, by description, and the first of each as SHARD:MEMBER.
Skipped = dict[str, tuple[int, str]]
ShardImage = tuple[int, int, int, Label, str | None]  # offset, length, crc32, label, and its group if it has one


def describe_skipped(skipped: Skipped) -> str:
    """Such as `5 members: .depth.png (4, such as a.tar:0.depth.png), folders (1, such as a.tar:x)`."""
    by_count = sorted(skipped.items(), key=itemgetter(1), reverse=True)
    total = sum(count for count, _ in skipped.values())
    listed = ", ".join(f"{each} ({count:,}, such as {example})" for each, (count, example) in by_count)
    return f"{total:,} member{'s' * (total != 1)}: {listed}"


def read_images(path: Path, file: BinaryIO, size: int, skipped: Skipped) -> list[ShardImage]:
    """The images of a shard in the order of their bytes. skipped: counts the members that are passed over.

    Raises:
        Failure: DATA for a damaged shard, for an image without a label, and for a label that cannot be used.
        OSError: the file cannot be read.
    """
    images = list[ShardImage]()
    for _, members in groupby(_read_members(path, file, size), key=itemgetter(0)):
        archive = _Archive(path=path, skipped=skipped)
        for _, member in members:
            archive.add(file, member)
        images += archive.labelled_images()
    return images


@dataclass(frozen=True, slots=True, kw_only=True)
class _Archive:
    """The images and labels of one archive by name: of two members of one name the later counts, as tar extracts them.

    images: offset, length and crc32 of each. labels: by the name without its last ending, and by that ending; a Failure
    for one that cannot be read, since it may not be needed.
    """

    path: Path
    skipped: Skipped
    images: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    labels: dict[str, dict[str, Annotation | Failure]] = field(default_factory=dict)

    def add(self, file: BinaryIO, member: tarfile.TarInfo) -> None:
        """Read a member, or count it as skipped. Raises Failure (DATA) for an image that is too large; OSError."""
        name = normalize_name(member.name)
        stem, ending = os.path.splitext(name)
        ending = ending.lower()
        if name in self.images or ending in self.labels.get(stem, {}):
            self._skip("members that a later one of the same name replaces", name)
        file.seek(member.offset_data)
        if not member.isreg() or member.issparse():
            description = (
                "sparse files, which tar without -S packs whole" if member.isreg() else "devices, pipes and others"
            )
            self._skip(MEMBER_TYPES.get(member.type, description), name)
        elif os.path.basename(name).startswith("."):
            self._skip("hidden files", name)
        elif ending in IMAGE_SUFFIXES and member.size > MAX_IMAGE_BYTES:
            raise damaged_shard_failure(self.path, f"{name} has {member.size:,} bytes")
        elif ending in IMAGE_SUFFIXES:
            self.images[name] = (member.offset_data, member.size, zlib.crc32(file.read(member.size)))
        elif ending in LABEL_SUFFIXES:
            self.labels.setdefault(stem, {})[ending] = _read_annotation(self.path, file, member, ending)
        else:
            self._skip(ending or "members without an ending", name)

    def labelled_images(self) -> list[ShardImage]:
        """The images with their labels, in the order of their bytes.

        The label of `a.b.png` is in `a.b.cls`, or else in `a.cls`. Of several images with one label that one counts
        whose name is the label's but for the ending, or else the first: others are depth maps, masks and the like.

        Raises:
            Failure: DATA for an image without a label, and for a label that cannot be used.
        """
        chosen, images = dict[str, str](), list[ShardImage]()
        for name in sorted(self.images, key=self.images.__getitem__):
            stem = next((stem for stem in _stems(name) if self._find_label(stem)), None)
            if stem is None:
                passed_over = f"; passed over: {describe_skipped(self.skipped)}" if self.skipped else ""
                raise Failure(
                    f"an image in {self.path} has no label",
                    found=f"{name}{passed_over}",
                    expected=f"beside it one of {', '.join(_stems(name)[0] + suffix for suffix in LABEL_SUFFIXES)}",
                    fix="write a number or a class name into it, and make the shard again",
                    code=ExitCode.DATA,
                )
            first = chosen.setdefault(stem, name)
            if os.path.splitext(name)[0] == stem != os.path.splitext(first)[0]:
                chosen[stem], name = name, first
            if name != chosen[stem]:
                self._skip(name[len(stem) :].lower(), name)
        for stem, of_stem in self.labels.items():
            used = self._find_label(stem) if stem in chosen else None
            if used is not None:
                images.append((*self.images[chosen[stem]], *used[1:]))
            for ending in of_stem:
                has_group = ending == ".json" and used is not None and used[2] is not None
                if used is None or (ending != used[0] and not has_group):
                    self._skip(ending if used else f"{ending} without an image", stem + ending)
        return sorted(images, key=itemgetter(0))

    def _find_label(self, stem: str) -> tuple[str, Label, str | None] | None:
        """The first of LABEL_SUFFIXES with a label, this label, and the group. Raises Failure (DATA) for a bad one."""
        of_stem = self.labels.get(stem, {})
        for ending in LABEL_SUFFIXES:
            annotation, with_group = of_stem.get(ending, NO_LABEL), of_stem.get(".json")
            if isinstance(annotation, Failure):
                raise annotation
            if annotation[0] is not None:
                return ending, annotation[0], with_group[1] if isinstance(with_group, tuple) else None
        return None

    def _skip(self, description: str, name: str) -> None:
        count, example = self.skipped.get(description, (0, f"{self.path.name}:{name}"))
        self.skipped[description] = count + 1, example


def _stems(name: str) -> list[str]:
    """The name up to its last dot, then up to the one before it, and so on; not in the folders above it."""
    return [name[:end] for end in range(len(name) - 1, name.rfind("/") + 1, -1) if name[end] == "."]


def _read_annotation(path: Path, file: BinaryIO, member: tarfile.TarInfo, ending: str) -> Annotation | Failure:
    """As `parse_annotation`; a Failure (DATA) for a member that is too long or cannot be parsed. Raises OSError."""
    try:
        if member.size > MAX_LABEL_BYTES:
            raise ValueError(f"it has {member.size:,} bytes, and at most {MAX_LABEL_BYTES:,} are read")
        return parse_annotation(ending, file.read(member.size).decode("utf-8-sig"))
    except ValueError as error:
        return Failure(
            "a label in a shard cannot be used",
            found=f"{path}: {member.name}: {error}",
            expected="one line in UTF-8, or a list of labels; a number to predict is finite and fits into 32 bits",
            fix="write the label alone into KEY.cls, or leave the sample out, and make the shard again",
            code=ExitCode.DATA,
        )


def _read_members(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[int, tarfile.TarInfo]]:
    """The members of each archive of a file, with the byte where the archive begins.

    Raises:
        Failure: DATA for a file that is not whole.
    """
    begin = 0
    while begin < max(size, 1):  # an empty file is no archive
        end = begin
        try:
            file.seek(begin)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                while end <= size and (member := archive.next()) is not None:
                    end = archive.offset
                    if end <= size:
                        yield begin, member
                    archive.members = []  # type: ignore[attr-defined]  # or it keeps all of them
        except (tarfile.TarError, MemoryError, *files.MALFORMED_ERRORS) as error:  # of a header that claims anything
            raise damaged_shard_failure(path, str(error)) from error
        begin = _end_archive(path, file, begin, end, size)


def _end_archive(path: Path, file: BinaryIO, begin: int, end: int, size: int) -> int:
    """Where the next archive begins; the size of the file if there is none.

    tar writes two blocks of zeros after the last member, and more of them up to a whole record. Other numbers of zeros
    are members that were lost: a part of the file was never written.

    begin, end: of the archive, without the zeros.

    Raises:
        Failure: DATA.
    """
    padded = begin - (begin - end - END_BYTES) // tarfile.RECORDSIZE * tarfile.RECORDSIZE
    file.seek(min(end, size))
    padding = file.read(max(padded - end, 0) + BLOCK)
    zeros = len(padding) - len(padding.lstrip(bytes(1)))
    following = size if end + zeros == size else end + zeros // BLOCK * BLOCK
    if end > size or zeros < BLOCK:
        raise damaged_shard_failure(path, f"it ends in the middle, or holds something else from byte {end:,} on")
    if zeros > padded - end:
        fix = f"copy it again, or make it again; if its last members are there: truncate -s {padded} {path}"
        raise damaged_shard_failure(path, f"it holds zeros only from byte {end:,} on, more than tar writes", fix)
    if following not in (size, padded, end + END_BYTES):
        raise damaged_shard_failure(path, f"it holds zeros from byte {end:,} on, and more members after these")
    return following


def damaged_shard_failure(path: Path, reason: str, fix: str = "copy it again, or make it again") -> Failure:
    """The Failure (DATA) for a shard of which no image is used."""
    return Failure("a shard is damaged", found=f"{path}: {reason}", fix=fix, code=ExitCode.DATA)
