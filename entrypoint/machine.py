"""`read_machine` reads this machine's cores, GPUs, container and parent job once, for the plan.

It reads /proc and control groups itself; `accelerators` and `engines` know how GPUs and containers show.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from entrypoint import engines
from entrypoint.accelerators import amd, nvidia
from entrypoint.engines import EngineName
from entrypoint.files import StrPath, process_stat, read_text
from entrypoint.platforms import HOST_FILES


def num_usable_cores(root: StrPath = "/") -> int:
    """How many threads of this process can run at the same time."""
    return cores_within_quota(len(os.sched_getaffinity(0)), root)


def cores_within_quota(cores: int, root: StrPath = "/") -> int:
    """`cores`, or fewer if a quota (docker run --cpus, Kubernetes' limits.cpu) gives less CPU time.

    A quota hides none of the machine's cores; threads beyond it are throttled.
    """
    quota = cores_quota(root)
    return cores if quota is None else min(cores, math.ceil(quota))


def cores_quota(root: StrPath = "/") -> float | None:
    """The control group's CPU quota in cores; None without a quota."""
    return min(filter(None, (_read_cores_quota(folder) for folder in cgroup_folders(root, "cpu"))), default=None)


def cgroup_folders(root: StrPath, controller: str) -> Iterator[str]:
    """Folders of this process's control group for `controller` and its parents, innermost first.

    A container may see its group at the root.
    """
    for line in read_text(root, "proc/self/cgroup").splitlines():
        names, _, path = line.partition(":")[2].partition(":")
        if names and controller not in names.split(","):
            continue
        base = os.path.join(root, "sys/fs/cgroup", names)
        if names and not os.path.isdir(base):
            base = os.path.join(root, "sys/fs/cgroup", controller)
        inner = path.strip("/")
        while inner:
            yield os.path.join(base, inner)
            inner = os.path.dirname(inner)
        yield base


def _read_cores_quota(folder: str) -> float | None:
    words = read_text(folder, "cpu.max").split()
    if len(words) != 2:
        words = [read_text(folder, f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    return int(words[0]) / int(words[1]) if all(word.isdigit() for word in words) and int(words[1]) else None


_SLURMSTEPD_TITLE = re.compile(r"slurmstepd: \[(\d+)\.(\w+)\]")
# The step `extern` holds ssh sessions to a node of the job: they are no task of it.
_SLURM_STEP_CGROUP = re.compile(r"/job_(\d+)/step_(?!extern)(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a plan needs to know about the machine that it runs on.

    Attributes:
        hostname: the kernel's node name, short form (HOSTNAME may be another machine's under
            Slurm).
        cores: cores that this process can keep busy.
        core_ids: the kernel's numbers of the cores that this process may run on.
        machine_cores: cores that the machine has, or that its quota gives.
        threads_per_core: how many of the machine's cores each of `core_ids` stands for: 2 where this process may run
            on one of the two threads of each core (Slurm's --hint=nomultithread).
        gpus: UUIDs of the GPUs that this process may use, in CUDA's order.
        gpu_cores: for each of `gpus` the numbers of the cores near it (its NUMA node's), empty where the
            driver does not say; empty for a single GPU.
        idle: UUIDs of GPUs that it was given and cannot use, because one of `gpus` is a MIG
            instance.
        amd: what shows that this machine has AMD GPUs, such as "/dev/kfd"; empty if nothing does.
        amd_accelerators: whether these are made for computing (Instinct), not for a display.
        container: which engine this process runs in.
        hidden_job: SLURM_* variables of this process's job if its own were removed (`--cleanenv`),
            otherwise empty.
        host_files: the text of each file with the job's hosts that can be read here, by its variable
            or its path (HOST_FILES).
    """

    hostname: str
    cores: int
    core_ids: frozenset[int]
    machine_cores: int
    gpus: tuple[str, ...]
    gpu_cores: tuple[frozenset[int], ...]
    idle: tuple[str, ...]
    amd: str
    amd_accelerators: bool
    container: EngineName
    hidden_job: Mapping[str, str]
    host_files: Mapping[str, str]
    threads_per_core: int = 1


def read_machine(environ: Mapping[str, str], *, gpus: bool = True, root: StrPath = "/") -> Machine:
    """Read the machine once; every later stage uses the value. gpus: False skips counting GPUs."""
    visible = environ.get(nvidia.VISIBLE_VARIABLE)
    all_gpus = nvidia.list_gpus(root) if gpus and not nvidia.hides_all_gpus(visible) else ()
    usable = nvidia.visible_gpus(all_gpus, visible)
    look_for_amd = gpus and not usable
    return Machine(
        hostname=os.uname().nodename.split(".")[0],
        cores=num_usable_cores(root),
        core_ids=frozenset(os.sched_getaffinity(0)),
        machine_cores=cores_within_quota(os.cpu_count() or 1, root),  # a machine's tasks usually share a group
        gpus=usable,
        gpu_cores=nvidia.near_cores(usable) if len(usable) > 1 else (),
        idle=tuple(name for name in nvidia.select_gpus(all_gpus, visible) if name not in usable),
        amd=amd.find_device_file(root) if look_for_amd else "",
        amd_accelerators=look_for_amd and amd.has_accelerators(root),
        container=engines.detect(),
        hidden_job={} if "SLURM_JOB_ID" in environ else slurm_job_of_parents(os.getppid()),
        host_files=_read_host_files(environ, root),
        threads_per_core=_threads_per_core(os.sched_getaffinity(0), root),
    )


def _threads_per_core(core_ids: Iterable[int], root: StrPath) -> int:
    """The threads of a core over those of them that are among `core_ids`; 1 if the kernel does not say."""
    file = os.path.join(root, f"sys/devices/system/cpu/cpu{min(core_ids)}/topology/thread_siblings")
    siblings = int(read_text(file).strip().replace(",", "") or "0", 16)
    return siblings.bit_count() // (sum(siblings >> core & 1 for core in core_ids) or 1) or 1


def _read_host_files(environ: Mapping[str, str], root: StrPath) -> dict[str, str]:
    """The text of the host files. Only regular files are read.

    Opening a pipe would wait for its writer.
    """
    paths = {
        name: os.path.join(root, name.lstrip("/")) if name.startswith("/") else environ.get(name, "")
        for name in HOST_FILES
    }
    texts = {name: read_text(path) for name, path in paths.items() if os.path.isfile(path)}
    return {name: text for name, text in texts.items() if text.strip()}


def find_mount(path: StrPath, root: StrPath = "/") -> tuple[str, str]:
    """The mount point of the file system that holds `path`, and its type (nfs4, overlay, ...).

    ("", "unknown") if no mount matches.
    """
    real_path = os.path.realpath(path)
    mount_point, fs_type = "", "unknown"
    for line in read_text(root, "proc/self/mounts").splitlines():
        _, folder, folder_type = line.split(" ")[:3]
        folder = folder.replace("\\040", " ")
        if (real_path == folder or real_path.startswith(folder.rstrip("/") + "/")) and len(folder) >= len(mount_point):
            mount_point, fs_type = folder, folder_type
    return mount_point, fs_type


def slurm_job_of_parents(pid: int, proc: StrPath = "/proc", max_parents: int = 16) -> dict[str, str]:
    """SLURM_* variables of the nearest parent process with a SLURM_JOB_ID, read from /proc.

    In a user namespace (unprivileged Apptainer) no parent's environment can be read, but
    slurmstepd's process title names the job and step. In a process namespace (`--containall`) no
    parent is visible; Apptainer leaves a process in its step's control group, whose path names them
    too.
    """
    for _ in range(max_parents):
        process = os.path.join(proc, str(pid))
        entries = read_text(process, "environ").split("\0")
        variables = dict(entry.split("=", 1) for entry in entries if "=" in entry)
        if "SLURM_JOB_ID" in variables:
            return {name: value for name, value in variables.items() if name.startswith("SLURM_")}
        if step_title := _SLURMSTEPD_TITLE.match(read_text(process, "cmdline")):
            return {"SLURM_JOB_ID": step_title[1], "SLURM_STEP_ID": step_title[2]}
        pid = int((process_stat(process) or ("?", 0))[1])
        if pid <= 1:
            break
    step_cgroup = _SLURM_STEP_CGROUP.search(read_text(proc, "self", "cgroup"))
    return {"SLURM_JOB_ID": step_cgroup[1], "SLURM_STEP_ID": step_cgroup[2]} if step_cgroup else {}


def count_oom_kills(root: StrPath = "/") -> int:
    """How many processes of this control group the OOM killer has killed; 0 if that is not counted."""
    files = ("memory.events", "memory.oom_control")  # of version 2 and of version 1
    texts = (read_text(folder, file) for folder in cgroup_folders(root, "memory") for file in files)
    return next((int(match[1]) for match in map(_OOM_KILL_LINE.search, texts) if match), 0)


_OOM_KILL_LINE = re.compile(r"^oom_kill (\d+)$", re.M)


# What the checks compare with a training's needs

MIB = 2**20
_CGROUP_FILES = {  # value -> its file in cgroup version 2 and in version 1
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "memory used": ("memory.current", "memory.usage_in_bytes"),
    "tasks": ("pids.max", "pids.max"),
    "tasks used": ("pids.current", "pids.current"),
}
_CAP_IPC_LOCK = 14  # source: linux/capability.h
_UNLIMITED = 2**60  # cgroup 1 writes "no limit" as a number of that size


def free_memory_mib(root: StrPath = "/") -> int | None:
    """Memory that this process may still use, on this machine and in its control groups."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", read_text(root, "proc/meminfo"), re.M)
    free = [int(match[1]) // 1024] if match else []
    for folder in cgroup_folders(root, "memory"):
        limit, used = _read_cgroup_number(folder, "memory"), _read_cgroup_number(folder, "memory used")
        if limit is not None and used is not None:
            # The kernel frees cached files when memory is needed.
            cached = re.search(r"^(?:total_)?inactive_file (\d+)$", read_text(folder, "memory.stat"), re.M)
            free.append(max(0, limit - used + int(cached[1] if cached else 0)) // MIB)
    return min(free, default=None)


def num_free_pids(root: StrPath = "/") -> int | None:
    """How many more processes and threads the control group allows; None without a limit."""
    numbers = [
        (_read_cgroup_number(folder, "tasks"), _read_cgroup_number(folder, "tasks used"))
        for folder in cgroup_folders(root, "pids")
    ]
    return min((limit - (used or 0) for limit, used in numbers if limit is not None), default=None)


def filesystem_type(path: StrPath, root: StrPath = "/") -> str:
    """The type of the file system that holds `path` (nfs4, overlay, ...), or `unknown`."""
    return find_mount(path, root)[1]


def can_lock_memory(root: StrPath = "/") -> bool:
    """Whether this process may lock memory without a limit.

    It needs CAP_IPC_LOCK in the initial user namespace.

    Source: can_do_mlock() in the kernel's mm/mlock.c.
    """
    effective = re.search(r"^CapEff:\s+([0-9a-f]+)$", read_text(root, "proc/self/status"), re.M)
    in_initial_namespace = read_text(root, "proc/self/uid_map").split() == ["0", "0", str(2**32 - 1)]
    return in_initial_namespace and effective is not None and bool(int(effective[1], 16) >> _CAP_IPC_LOCK & 1)


def _read_cgroup_number(folder: str, value: str) -> int | None:
    for name in _CGROUP_FILES[value]:
        text = read_text(folder, name).strip()
        if text.isdigit():
            return int(text) if int(text) < _UNLIMITED else None
    return None
