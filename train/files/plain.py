"""A small file that anybody may have put there becomes JSON, or an error that its reader expects."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, Final

LIMIT: Final = 64 << 20  # bytes; ours are far smaller


def read_json(path: Path) -> Any:
    """The value in the regular file `path`.

    Raises:
        OSError: it is not there, cannot be read, is too long, or is a pipe or a device, which could be read for ever.
        ValueError: it is not JSON.
    """
    try:
        return json.loads(read(path))
    except RecursionError as error:  # a few kilobytes of brackets are enough
        raise ValueError(f"{path} is nested too deep") from error


def read(path: Path, limit: int = LIMIT) -> bytes:
    """The bytes of the regular file `path`. Raises OSError as `read_json` does."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = stream.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"longer than {limit} bytes", str(path))
    return data
