"""The host checks compare memory, limits and cores with what the ranks and their data workers need."""

from __future__ import annotations

import os
import resource
from dataclasses import replace

from entrypoint import engines
from entrypoint.console import pluralize
from entrypoint.doctor.context import CheckContext, Finding, fail, graded, ok, warn
from entrypoint.errors import LIMIT_FAILURES, resource_limit_failure
from entrypoint.machine import MIB, cores_quota, free_memory_mib, num_free_pids
from entrypoint.threads import refuse_few_threads

MIN_SHM_PER_RANK_MIB = 40  # one batch of 64 x 3 x 224 x 224 float32 is 37 MiB
RECOMMENDED_SHM_PER_RANK_MIB = 512  # some prefetched batches and NCCL's buffers
# Per rank, before any data: what torch needs with CUDA or without, and what leaves room for data.
MIN_MEMORY_PER_CUDA_RANK_MIB, RECOMMENDED_MEMORY_PER_CUDA_RANK_MIB = 1024, 4096
MIN_MEMORY_PER_CPU_RANK_MIB, RECOMMENDED_MEMORY_PER_CPU_RANK_MIB = 384, 1024
MIN_OPEN_FILES, RECOMMENDED_OPEN_FILES = 256, 1024
THREADS_PER_RANK = 32  # of torch, NCCL, data workers and their libraries
_SHM_FIX = engines.fix("shm")
_MEMORY_FIX = f"ask for more (srun --mem, {engines.fix('memory')}), or start fewer ranks on this machine"


def check_memory_and_limits(context: CheckContext) -> list[Finding]:
    """Check shared memory, memory, open files and threads."""
    return [check_shared_memory(context), check_memory(context), check_open_files(), check_threads(context)]


def memory_and_limits_preflight(context: CheckContext) -> list[Finding]:
    """The same without starting threads, and with shared memory only if it is certainly needed.

    For data.workers=auto the training itself checks shared memory, since it knows the batch size.
    """
    nccl_uses_shm = not context.on_cpu and context.ranks_on_node > 1
    return [
        *([check_shared_memory(context)] if nccl_uses_shm or context.workers else []),
        check_memory(context),
        check_open_files(),
    ]


def check_shared_memory(context: CheckContext) -> Finding:
    """Check /dev/shm, through which data workers pass batches and ranks of a node exchange data."""
    folder = os.path.join(context.root, "dev/shm")
    try:
        space = os.statvfs(folder)
    except OSError as error:
        return fail("shared memory", f"{folder} cannot be used: {error.strerror}", _SHM_FIX)
    return shared_memory_finding(
        space.f_blocks * space.f_frsize // MIB, space.f_bavail * space.f_frsize // MIB, context.ranks_on_node
    )


def shared_memory_finding(size: int, free: int, ranks: int) -> Finding:
    """Compare /dev/shm with the ranks' needs. size, free: in MiB."""
    return graded(
        "shared memory",
        f"/dev/shm has {free} of {size} MiB free, for {pluralize(ranks, 'rank')} here",
        free / ranks,
        (MIN_SHM_PER_RANK_MIB, "not one batch of images for each"),
        (RECOMMENDED_SHM_PER_RANK_MIB, "large batches will not fit"),
        _SHM_FIX,
    )


def check_memory(context: CheckContext) -> Finding:
    """Check the free memory of the machine and of this process's control group."""
    free, ranks = free_memory_mib(context.root), context.ranks_on_node
    if free is None:
        return ok("memory", "this machine does not report how much is free")
    minimum, recommended = (
        (MIN_MEMORY_PER_CPU_RANK_MIB, RECOMMENDED_MEMORY_PER_CPU_RANK_MIB)
        if context.on_cpu
        else (MIN_MEMORY_PER_CUDA_RANK_MIB, RECOMMENDED_MEMORY_PER_CUDA_RANK_MIB)
    )
    return graded(
        "memory",
        f"{free / 1024:.1f} GiB free, for {pluralize(ranks, 'rank')} here",
        free / ranks,
        (minimum, f"torch alone takes about {minimum} MiB in each"),
        (recommended, "little is left for data"),
        _MEMORY_FIX,
    )


def check_open_files() -> Finding:
    """Check the limit on open files: each batch in flight needs one, each worker and peer a few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return ok("open files", "any number of open files")
    fix = f"ulimit -n 4096 ({engines.fix('open files')})"
    if hard != resource.RLIM_INFINITY and hard < RECOMMENDED_OPEN_FILES:
        fix = f"ask the administrator: the hard limit is {hard} ({engines.fix('open files')})"
    return graded(
        "open files",
        f"{soft} open files for each process",
        soft,
        (MIN_OPEN_FILES, "not enough for data workers"),
        (RECOMMENDED_OPEN_FILES, "may run out with many data workers"),
        fix,
    )


def check_threads(context: CheckContext) -> Finding:
    """Start threads at once. That tests the limits of the user, the control group and the machine together."""
    needed = THREADS_PER_RANK * context.ranks_on_node
    try:
        refuse_few_threads(needed)
    except RuntimeError as error:
        if resource_limit_failure(error) is None:
            raise
        return fail("threads", f"fewer than {needed} more threads could be started", LIMIT_FAILURES["processes"][1])
    free_pids = num_free_pids(context.root)
    text = f"{needed} started at once on top of what runs here, as training needs: no limit is in the way"
    return ok("threads", text + (f"; the container allows {free_pids} more" if free_pids else ""))


CORES_PER_RANK = 2  # one for the rank, one for a data worker
_CORES_FIX = (
    f"give more: srun --cpus-per-task=N (and --cpu-bind=cores), {engines.fix('cores')}; or start fewer ranks here"
)
_QUOTA_FIX = f"limit cores instead of CPU time: {engines.fix('core list')}; `train` itself keeps to the quota"
_WORKERS_FIX = (
    f"give more: srun --cpus-per-task=N, {engines.fix('cores')}; or set data.workers to auto, which counts them"
)


def check_cores(context: CheckContext) -> list[Finding]:
    """Check the affinity and the control group's CPU quota."""
    usable, machine_cores, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, cores_quota(context.root)
    return [
        cores_finding(
            usable, machine_cores, quota, num_ranks_sharing_cores(usable, machine_cores, context), context.workers
        )
    ]


def num_ranks_sharing_cores(usable: int, machine_cores: int, context: CheckContext) -> int:
    """How many ranks share these cores.

    Those of this task, or more if tasks are not bound to separate cores.
    """
    return max(context.ranks_of_task, context.ranks_on_node * usable // machine_cores)


def cores_preflight(context: CheckContext) -> list[Finding]:
    """The check for a training, which keeps to a quota.

    Without data workers one core per rank is enough.
    """
    findings = check_cores(replace(context, workers=0) if context.on_cpu and context.workers is None else context)
    return [finding for finding in findings if finding.fix != _QUOTA_FIX]


def cores_finding(
    cores: int, machine_cores: int, quota: float | None, ranks: int, workers: int | None = None
) -> Finding:
    """Compare cores with ranks.

    cores: in this process's affinity. quota: in cores, None for no quota. workers: data workers of
    each rank, if known; they may share the rank's own core.
    """
    usable = min(cores, quota) if quota else cores
    text = f"{cores} of {machine_cores} can be used" + (
        f", with a quota of {quota:g}" if quota and quota < cores else ""
    )
    text += f", for {pluralize(ranks, 'rank')}"
    text += f" with {pluralize(workers, 'data worker')} each" if workers else ""
    needed = ranks * (CORES_PER_RANK if workers is None else max(workers, min(workers + 1, CORES_PER_RANK)))
    if usable >= needed:
        if usable == cores:
            return ok("cores", text)
        return warn("cores", f"{text}: a program that counts cores starts threads that are throttled", _QUOTA_FIX)
    if workers:
        return warn("cores", f"{text}: they take turns", _WORKERS_FIX)
    return warn(
        "cores", f"{text}: no core of its own for {'each' if workers == 0 else 'a data worker of each'}", _CORES_FIX
    )
