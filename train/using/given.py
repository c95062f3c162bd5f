"""Words of a command line become image files: those that are named, and all in folders and below them. No torch."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.data import imagefolder

SETTING: Final = re.compile(r"[a-z_]+(\.[a-z_]+)+=.*", re.DOTALL)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """(images, settings): `section.key=value` is a setting, unless a file is called so."""
    settings = [word for word in words if SETTING.fullmatch(word) and not os.path.lexists(word)]
    return [word for word in words if word not in settings], settings


def files(words: Sequence[str], unread: Counter[str] | None = None) -> list[Path]:
    """All image files, in the order of the words; a folder's in sorted order, with those of folders in it.

    A file that is named is taken whatever its name ends in; in folders, those that end as images do. unread: counts
    the others by ending.

    Raises:
        Failure: USAGE without any word; NO_INPUT for what is not there, and for a folder without an image.
    """
    if not words:
        raise Failure("there is no image to look at", fix="name image files or folders", code=ExitCode.USAGE)
    return [path for word in words for path in _of(Path(word), unread)]


def _of(path: Path, unread: Counter[str] | None) -> list[Path]:
    if not os.path.exists(path):
        raise _missing(f"{path} does not exist", "correct the path (in a container: mount the folder)")
    if not os.path.isdir(path):
        return [path]
    _refuse_shut(path)
    found = list(imagefolder.image_files(path, unread))
    if not found:
        fix = f"name a folder with images ({' '.join(imagefolder.SUFFIXES)}), or the files themselves"
        raise _missing(f"{path} holds no image", fix)
    return found


def _refuse_shut(folder: Path) -> None:
    """Python's walk would pass over a folder that it cannot list."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        raise _missing(f"{folder} cannot be read: {error.strerror}", "let this user read it") from error


def _missing(what: str, fix: str) -> Failure:
    return Failure(what, fix=fix, code=ExitCode.NO_INPUT)
