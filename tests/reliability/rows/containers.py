"""Rows of docs/evidence/failures.md about containers and their limits."""

from __future__ import annotations

import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from containers import OPTIONS, RUNTIMES, Image, call, mounted, writable
from stage import TINY, Ended, train, verdict
from trials import Trial

Row = Callable[[int, Path], Trial]
NAME = "localhost/train:latest"
GROUPS = Path("/sys/fs/cgroup")
LIMIT = 420 * 2**20


def no_groups() -> str | None:
    """Why no memory can be limited here; None where it can."""
    try:
        with limited():
            return None
    except OSError as error:
        return f"machine: no memory limit can be set: {error}"


@contextmanager
def limited() -> Iterator[Path]:
    """A control group with little memory, of either version."""
    first = GROUPS / "memory"
    place = (first if first.is_dir() else GROUPS) / f"chaos-{os.getpid()}-{threading.get_ident()}"
    place.mkdir()
    try:
        if first.is_dir():
            (place / "memory.limit_in_bytes").write_text(str(LIMIT))
            with suppress(OSError):
                (place / "memory.memsw.limit_in_bytes").write_text(str(LIMIT))
        else:
            (place / "memory.max").write_text(str(LIMIT))
            (place / "memory.swap.max").write_text("0")
        yield place
    finally:
        with suppress(OSError):
            place.rmdir()


def out_of_memory(seed: int, folder: Path) -> Trial:
    """Row 40: the kernel kills a rank for want of memory."""
    with limited() as group:
        enter = f'echo $$ > {group}/cgroup.procs && exec "$@"'
        words = (
            *TINY,
            "data.image_size=512",
            "data.samples=4000",
            "train.global_batch_size=1024",
            "train.micro_batch_size=1024",
        )
        ended = train(folder, *words, before=("sh", "-c", enter, "sh"))
    return verdict(
        ended, 71, "out of host memory", "fix:", injector="a cgroup of 420 MiB", process="rank 0", folder=folder
    )


@functools.cache
def image() -> Image | str:
    """The newest image of this project that an engine here has and can start; or why there is none. None is built."""
    for engine in filter(shutil.which, RUNTIMES):
        for options in (runtime + limits for runtime in RUNTIMES[engine] for limits in OPTIONS):
            tried = call(engine, "run", "--rm", "--network=none", *options, NAME, "true")
            if tried.returncode == 0:
                return Image(engine=engine, name=NAME, options=options)
    return "machine: no engine here has and starts the image (make image)"


def no_image() -> str | None:
    """Why row 69 cannot be played; None where it can."""
    found = image()
    return found if isinstance(found, str) else None


def locked_up(seed: int, folder: Path) -> Trial:
    """Row 69: nothing but the run's folder can be written, no user, no capabilities."""
    found, place = image(), writable(folder / "work")
    assert isinstance(found, Image)
    options = ("--read-only", "--read-only-tmpfs=false") if found.engine == "podman" else ("--read-only",)
    user = f"--user={54321 + seed}:{54321 + seed}"
    options += ("--cap-drop=ALL", "--security-opt=no-new-privileges", user, mounted(place, "/workspace"))
    done = found.run("train", "--device", "cpu", *TINY, options=options)
    ended = Ended(code=done.code, said=done.output, seconds=0)
    return verdict(ended, 0, injector=" ".join(options), process="a container", folder=place, kept=8)


ROWS: Mapping[int, Row] = {40: out_of_memory, 69: locked_up}
MISSING = {40: no_groups, 69: no_image}
