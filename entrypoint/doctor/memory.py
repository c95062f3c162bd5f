"""Shared memory, memory, open files and threads: what a rank with its data workers takes, against what is left."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable

from entrypoint.doctor import reading
from entrypoint.doctor.findings import Finding, fail, ok, warn
from entrypoint.doctor.scene import Scene
from entrypoint.limits import FAILURES, met

MIB = reading.MIB
SHM_LEAST_MIB = 40  # of a rank: one batch of 64 images of 224 x 224, three colours, 4 bytes each, is 37 MiB
SHM_GOOD_MIB = 512  # of a rank: some batches that wait, and NCCL's own buffers
# Of a rank, before any data: what torch takes with CUDA, or without; and what leaves room.
MEMORY_LEAST_MIB, MEMORY_GOOD_MIB = 1024, 4096
CPU_LEAST_MIB, CPU_GOOD_MIB = 384, 1024
FILES_LEAST, FILES_GOOD = 256, 1024
THREADS_OF_A_RANK = 32  # torch's own and NCCL's, data workers and those of their libraries
MOST_THREADS = 512  # tried at once: who has a place for these has one for more
_SHM_FIX = "docker run --shm-size=8g (or --ipc=host); apptainer without --contain"
_MEMORY_FIX = "ask for more (srun --mem, docker run --memory), or start fewer ranks on this machine"


def check(scene: Scene) -> list[Finding]:
    """All of it."""
    return [shm(scene), memory(scene), files(), threads(scene)]


def brief(scene: Scene) -> list[Finding]:
    """Without trying how many threads can be started; shared memory where something is sure to need it.

    Data workers that were not asked for are counted by the training, which then knows how large their batches are.
    """
    exchanged = not scene.on_cpu and scene.ranks_here > 1  # NCCL's own buffers
    return [*([shm(scene)] if exchanged or scene.workers else []), memory(scene), files()]


def shm(scene: Scene) -> Finding:
    """/dev/shm, by which data workers and ranks of one node hand over what they have."""
    folder = os.path.join(scene.root, "dev/shm")
    try:
        space = os.statvfs(folder)
    except OSError as error:
        return fail("shared memory", f"{folder} cannot be used: {error.strerror}", _SHM_FIX)
    return shm_finding(space.f_blocks * space.f_frsize // MIB, space.f_bavail * space.f_frsize // MIB, scene.ranks_here)


def shm_finding(size: int, free: int, ranks: int) -> Finding:
    """size, free: of /dev/shm, MiB."""
    text = f"/dev/shm has {free} of {size} MiB free, for {_ranks(ranks)}"
    if free < SHM_LEAST_MIB * ranks:
        return fail("shared memory", f"{text}: not one batch of images for each", _SHM_FIX)
    if free < SHM_GOOD_MIB * ranks:
        return warn("shared memory", f"{text}: large batches will not fit", _SHM_FIX)
    return ok("shared memory", text)


def memory(scene: Scene) -> Finding:
    """What the machine, and the control group around this process, have left."""
    free, ranks = reading.memory_free_mib(scene.root), scene.ranks_here
    if free is None:
        return ok("memory", "this machine does not say how much is free")
    least, good = (CPU_LEAST_MIB, CPU_GOOD_MIB) if scene.on_cpu else (MEMORY_LEAST_MIB, MEMORY_GOOD_MIB)
    text = f"{free / 1024:.1f} GiB free, for {_ranks(ranks)}"
    if free < least * ranks:
        return fail("memory", f"{text}: torch alone takes about {least} MiB in each", _MEMORY_FIX)
    if free < good * ranks:
        return warn("memory", f"{text}: little is left for data", _MEMORY_FIX)
    return ok("memory", text)


def files() -> Finding:
    """Open files: each batch on its way from a data worker is one, each worker and each peer a few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = "any number of open files" if soft == resource.RLIM_INFINITY else f"{soft} open files for each process"
    fix = "ulimit -n 4096 (docker run --ulimit nofile=4096)"
    if hard != resource.RLIM_INFINITY and hard < FILES_GOOD:
        fix = f"ask the administrator: the hard limit is {hard} (docker run --ulimit nofile=4096)"
    if soft != resource.RLIM_INFINITY and soft < FILES_LEAST:
        return fail("open files", f"{text}: not enough for data workers", fix)
    if soft != resource.RLIM_INFINITY and soft < FILES_GOOD:
        return warn("open files", f"{text}: may run out with many data workers", fix)
    return ok("open files", text)


def threads(scene: Scene, start: Callable[[int], int] | None = None) -> Finding:
    """Found out by starting them: limits of the user, of the control group and of the machine are one then."""
    wanted = min(THREADS_OF_A_RANK * scene.ranks_here, MOST_THREADS)
    started = (start or start_threads)(wanted)
    if started < wanted:
        fix = FAILURES["processes"][1]
        return fail("threads", f"only {started} more threads could be started, {wanted} are wanted", fix)
    left = reading.tasks_left(scene.root)
    text = f"{wanted} started at once on top of what runs here, as training wants: no limit is in the way"
    return ok("threads", text + (f"; the container takes {left} more" if left else ""))


def start_threads(wanted: int) -> int:
    """How many of `wanted` threads the system starts; all have ended at return.

    Raises:
        RuntimeError: for anything but a limit.
    """
    done, started = threading.Event(), []
    try:
        for _ in range(wanted):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        if met(error) is None:
            raise
    finally:
        done.set()
        for thread in started:
            thread.join()
    return len(started)


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''} here"
