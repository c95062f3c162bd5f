"""These functions read files that others may have written: regular ones only, and no more than a limit.

A pipe would wait for ever, and a device has no end; both may lie under any name in a folder that somebody else made.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, Final

MAX_READ_BYTES: Final = 64 << 20  # our files are far smaller
MAX_NESTING: Final = 100  # objects and lists in each other; whatever goes through them later has a limit too
StrPath = str | os.PathLike[str]
Pairs = Sequence[tuple[str, Any]]  # of an object in JSON


def read_text(*parts: StrPath) -> str:
    """The text of a file of the system, such as one in /proc; empty if it cannot be read."""
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    except OSError:
        return ""


def process_stat(*process: StrPath) -> list[str]:
    """The words of a process's stat, from its state on; none if it has ended. process: its folder in /proc."""
    return read_text(*process, "stat").rpartition(")")[2].split()  # its name may hold spaces and parentheses


def open_regular_file(path: Path) -> BufferedReader:
    """Open the regular file `path`, or the one that a link leads to, to read it.

    Raises:
        OSError: it is missing, cannot be read, or is a pipe, a device or a folder.
        ValueError: no file has such a name.
    """
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return stream


def read_regular_file(path: Path, limit: int = MAX_READ_BYTES) -> bytes:
    """The bytes of the regular file `path`.

    Raises:
        OSError, ValueError: as `open_regular_file`; and OSError for more than `limit` bytes.
    """
    with open_regular_file(path) as stream:
        # The limit may come from the file's author, and the size of a file that grows from a file server's cache.
        data = stream.read(min(limit, max(os.fstat(stream.fileno()).st_size, 1 << 16)) + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes", str(path))
    return data


def parse_json(text: str | bytes, make_object: Callable[[Pairs], dict[str, Any]] | None = None) -> Any:
    """The value of this JSON. make_object: as object_pairs_hook; by itself an object with a key twice is refused.

    Raises:
        ValueError: it is not JSON, holds a key twice or a number of thousands of digits, or is nested too deep.
    """
    with suppress(RecursionError):  # a few kilobytes of brackets are enough
        value = json.loads(text, object_pairs_hook=make_object or _refuse_repeated_keys)
        level = [value]
        for _ in range(MAX_NESTING + 1):
            lists = (
                each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)
            )
            level = [*chain.from_iterable(lists)]
            if not level:
                return value
    raise ValueError("it is nested too deep")


def _refuse_repeated_keys(pairs: Pairs) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError(f"the key {Counter(key for key, _ in pairs).most_common(1)[0][0]!r} is there twice")
    return content


def read_json(path: Path) -> Any:
    """The value in the regular file `path`. Raises OSError, ValueError: as `read_regular_file` and `parse_json`."""
    return parse_json(read_regular_file(path))


def read_json_object(path: Path) -> dict[str, Any]:
    """The object in the regular file `path`; empty if there is none, whatever is the reason."""
    try:
        value = read_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
