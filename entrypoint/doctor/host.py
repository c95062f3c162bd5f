"""The host checks compare memory, limits, cores and clock with what the ranks need.

A rank's data workers count too. The clock is compared with the file server's and with the day of
the installation.
"""

from __future__ import annotations

import os
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from entrypoint.doctor import paths, reading
from entrypoint.doctor.context import CheckContext, Finding, fail, ok, warn
from entrypoint.errors import LIMIT_FAILURES, resource_limit_failure
from entrypoint.machine import cores_quota

MIB = reading.MIB
MIN_SHM_PER_RANK_MIB = 40  # of a rank: one batch of 64 images of 224 x 224, three colours, 4 bytes each, is 37 MiB
RECOMMENDED_SHM_PER_RANK_MIB = 512  # of a rank: some batches that wait, and NCCL's own buffers
# Of a rank, before any data: what torch takes with CUDA, or without; and what leaves room.
MIN_MEMORY_PER_CUDA_RANK_MIB, RECOMMENDED_MEMORY_PER_CUDA_RANK_MIB = 1024, 4096
MIN_MEMORY_PER_CPU_RANK_MIB, RECOMMENDED_MEMORY_PER_CPU_RANK_MIB = 384, 1024
MIN_OPEN_FILES, RECOMMENDED_OPEN_FILES = 256, 1024
THREADS_PER_RANK = 32  # torch's own and NCCL's, data workers and those of their libraries
MAX_TRIED_THREADS = 512  # tried at once: who has a place for these has one for more
_SHM_FIX = "docker run --shm-size=8g (or --ipc=host); apptainer without --contain"
_MEMORY_FIX = "ask for more (srun --mem, docker run --memory), or start fewer ranks on this machine"


def check_memory_and_limits(scene: CheckContext) -> list[Finding]:
    """All of it."""
    return [check_shared_memory(scene), check_memory(scene), check_open_files(), check_threads(scene)]


def memory_and_limits_preflight(scene: CheckContext) -> list[Finding]:
    """Without trying how many threads can be started; shared memory where something is sure to need it.

    Data workers that were not asked for are counted by the training, which then knows how large their batches are.
    """
    exchanged = not scene.on_cpu and scene.ranks_here > 1  # NCCL's own buffers
    return [
        *([check_shared_memory(scene)] if exchanged or scene.workers else []),
        check_memory(scene),
        check_open_files(),
    ]


def check_shared_memory(scene: CheckContext) -> Finding:
    """/dev/shm, by which data workers and ranks of one node hand over what they have."""
    folder = os.path.join(scene.root, "dev/shm")
    try:
        space = os.statvfs(folder)
    except OSError as error:
        return fail("shared memory", f"{folder} cannot be used: {error.strerror}", _SHM_FIX)
    return shared_memory_finding(
        space.f_blocks * space.f_frsize // MIB, space.f_bavail * space.f_frsize // MIB, scene.ranks_here
    )


def shared_memory_finding(size: int, free: int, ranks: int) -> Finding:
    """size, free: of /dev/shm, MiB."""
    text = f"/dev/shm has {free} of {size} MiB free, for {_format_num_ranks(ranks)}"
    if free < MIN_SHM_PER_RANK_MIB * ranks:
        return fail("shared memory", f"{text}: not one batch of images for each", _SHM_FIX)
    if free < RECOMMENDED_SHM_PER_RANK_MIB * ranks:
        return warn("shared memory", f"{text}: large batches will not fit", _SHM_FIX)
    return ok("shared memory", text)


def check_memory(scene: CheckContext) -> Finding:
    """What the machine, and the control group around this process, have left."""
    free, ranks = reading.free_memory_mib(scene.root), scene.ranks_here
    if free is None:
        return ok("memory", "this machine does not say how much is free")
    least, good = (
        (MIN_MEMORY_PER_CPU_RANK_MIB, RECOMMENDED_MEMORY_PER_CPU_RANK_MIB)
        if scene.on_cpu
        else (MIN_MEMORY_PER_CUDA_RANK_MIB, RECOMMENDED_MEMORY_PER_CUDA_RANK_MIB)
    )
    text = f"{free / 1024:.1f} GiB free, for {_format_num_ranks(ranks)}"
    if free < least * ranks:
        return fail("memory", f"{text}: torch alone takes about {least} MiB in each", _MEMORY_FIX)
    if free < good * ranks:
        return warn("memory", f"{text}: little is left for data", _MEMORY_FIX)
    return ok("memory", text)


def check_open_files() -> Finding:
    """Open files: each batch on its way from a data worker is one, each worker and each peer a few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = "any number of open files" if soft == resource.RLIM_INFINITY else f"{soft} open files for each process"
    fix = "ulimit -n 4096 (docker run --ulimit nofile=4096)"
    if hard != resource.RLIM_INFINITY and hard < RECOMMENDED_OPEN_FILES:
        fix = f"ask the administrator: the hard limit is {hard} (docker run --ulimit nofile=4096)"
    if soft != resource.RLIM_INFINITY and soft < MIN_OPEN_FILES:
        return fail("open files", f"{text}: not enough for data workers", fix)
    if soft != resource.RLIM_INFINITY and soft < RECOMMENDED_OPEN_FILES:
        return warn("open files", f"{text}: may run out with many data workers", fix)
    return ok("open files", text)


def check_threads(scene: CheckContext, start: Callable[[int], int] | None = None) -> Finding:
    """Found out by starting them: limits of the user, of the control group and of the machine are one then."""
    wanted = min(THREADS_PER_RANK * scene.ranks_here, MAX_TRIED_THREADS)
    started = (start or count_startable_threads)(wanted)
    if started < wanted:
        fix = LIMIT_FAILURES["processes"][1]
        return fail("threads", f"only {started} more threads could be started, {wanted} are wanted", fix)
    left = reading.num_free_pids(scene.root)
    text = f"{wanted} started at once on top of what runs here, as training wants: no limit is in the way"
    return ok("threads", text + (f"; the container takes {left} more" if left else ""))


def count_startable_threads(wanted: int) -> int:
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
        if resource_limit_failure(error) is None:
            raise
    finally:
        done.set()
        for thread in started:
            thread.join()
    return len(started)


def _format_num_ranks(count: int) -> str:
    return f"{count} rank{'s' if count > 1 else ''} here"


CORES_PER_RANK = 2  # of a rank: one for itself, one for a data worker
_CORES_FIX = "give more: srun --cpus-per-task=N (and --cpu-bind=cores), docker run --cpus=N; or start fewer ranks here"
_QUOTA_FIX = (
    "give cores instead of time: docker run --cpuset-cpus=0-3; `train` itself starts no more than there is time for"
)
_WORKERS_FIX = "give more: srun --cpus-per-task=N, docker run --cpus=N; or set data.workers to auto, which counts them"


def check_cores(scene: CheckContext) -> list[Finding]:
    """Affinity, and the time that a control group gives."""
    mine, there, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, cores_quota(scene.root)
    return [cores_finding(mine, there, quota, num_ranks_sharing_cores(mine, there, scene), scene.workers)]


def num_ranks_sharing_cores(mine: int, there: int, scene: CheckContext) -> int:
    """How many ranks share these processors at least: a task's own, or more where tasks were not bound apart (all
    ranks of this machine with so many each are more than there are).
    """
    return max(scene.ranks_of_task, scene.ranks_here * mine // there)


def cores_preflight(scene: CheckContext) -> list[Finding]:
    """On the CPU without data workers a rank is content with one. A quota that is enough is kept to by a training."""
    found = check_cores(replace(scene, workers=0) if scene.on_cpu and scene.workers is None else scene)
    return [finding for finding in found if finding.fix != _QUOTA_FIX]


def cores_finding(mine: int, there: int, quota: float | None, ranks: int, workers: int | None = None) -> Finding:
    """mine: the processors of this process' affinity, of `there`. quota: processors' worth of time, None for all.

    workers: data workers of each rank, where that is known; they may have the rank's own between them.
    """
    usable = min(mine, quota) if quota else mine
    text = f"{mine} of {there} can be used" + (f", with the time of {quota:g}" if quota and quota < mine else "")
    text += f", for {ranks} rank{'s' if ranks > 1 else ''}"
    text += f" with {workers} data worker{'s' if workers > 1 else ''} each" if workers else ""
    wanted = ranks * (CORES_PER_RANK if workers is None else max(workers, min(workers + 1, CORES_PER_RANK)))
    if usable >= wanted:
        if usable == mine:
            return ok("cores", text)
        return warn(
            "cores", f"{text}: a program that counts them starts threads that stand still in between", _QUOTA_FIX
        )
    if workers:
        return warn("cores", f"{text}: they take turns", _WORKERS_FIX)
    return warn(
        "cores", f"{text}: no core of its own for {'each' if workers == 0 else 'a data worker of each'}", _CORES_FIX
    )


MAX_CLOCK_SKEW_S = 2.0  # the same as between ranks of a run
_CLOCK_FIX = "ask the administrator to set the clock (chronyc tracking shows its state)"
_DAY_S = 86_400


def check_clock(scene: CheckContext, clock: Callable[[], float] = time.time) -> list[Finding]:
    """Both. clock: seconds since 1970, as this machine tells them."""
    return [
        clock_finding(
            clock(),
            os.stat(__file__).st_mtime,
            file_server_clock_offset_s(paths.nearest_existing_folder(scene.output.absolute()), clock),
        )
    ]


def file_server_clock_offset_s(folder: Path, clock: Callable[[], float]) -> float | None:
    """How far the clock of who keeps `folder` is ahead of ours, seconds; None where nothing can be written."""
    try:
        with tempfile.NamedTemporaryFile(prefix=".doctor-", dir=folder) as file:
            before = clock()
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
            ahead = os.fstat(file.fileno()).st_mtime - before
            late = clock() - before
    except OSError:
        return None
    return ahead if ahead < 0 else max(0.0, ahead - late)  # how long the writing took is nobody's fault


def clock_finding(now: float, installed: float, ahead: float | None) -> Finding:
    """installed: when this program's files were written. ahead: the file server's clock against ours."""
    said = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < installed - _DAY_S:
        text = f"it says {said}, a time before this program was installed"
        return warn("clock", f"{text}: certificates and tokens are refused", _CLOCK_FIX)
    if ahead is not None and abs(ahead) > MAX_CLOCK_SKEW_S:
        text = f"the file server of the output folder is {abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}"
        return warn("clock", f"{text}: times in logs and of files do not compare", _CLOCK_FIX)
    return ok("clock", said + ("" if ahead is None else ", and the file system of the output folder agrees"))
