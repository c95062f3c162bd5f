"""What a user without any rights gets: one function, in a process that gives its rights away, or for a while here."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
ONLY_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="machine: only root may become another user")


@contextmanager
def of_everybody() -> Iterator[Path]:
    """A folder where everybody may write: pytest's own are root's alone."""
    folder = Path(tempfile.mkdtemp(prefix="everybody-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def being(user: int) -> Iterator[None]:
    """With this user's rights: nobody's for a while, or root's again for a moment."""
    before = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(before)


def as_nobody(action: Callable[[], int]) -> int:
    """What the action returns, or 70 where it raises. It is ended after a minute."""
    child = os.fork()
    if not child:
        signal.alarm(60)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        code = 70
        try:
            code = action()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
