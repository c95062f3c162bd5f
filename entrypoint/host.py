"""Facts about this machine, read once: the only module that looks at /proc, NVML and the container's marks."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from entrypoint.cgroups import Place, in_time, processors
from entrypoint.errors import ExitCode, Failure

Container = Literal["apptainer", "docker", "none"]
# Variables that name a file with a job's hosts: of PBS, Grid Engine and LSF.
HOST_FILES = ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE")
_STEPD = re.compile(r"slurmstepd: \[(\d+)\.(\w+)\]")
# In `extern` are those who come by ssh to a node of their job: no task of it.
_STEPS_GROUP = re.compile(r"/job_(\d+)/step_(?!extern)(\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a plan needs to know of the machine that it runs on.

    Attributes:
        hostname: the kernel's node name, short form (HOSTNAME may be another machine's under Slurm).
        cores: processors that this process can keep busy, of cores_there that the machine has (or gives, by a quota).
        gpus: UUIDs of the GPUs that this process may use, in CUDA's order.
        idle: UUIDs of those that it was given and cannot use, since one of `gpus` is an instance of MIG.
        container: which engine this process runs in.
        hidden_job: SLURM_* variables of the job that this process is in without having them (`--cleanenv`), else empty.
        host_files: the text of each of HOST_FILES that is set and can be read here.
    """

    hostname: str
    cores: int
    cores_there: int
    gpus: tuple[str, ...]
    idle: tuple[str, ...]
    container: Container
    hidden_job: Mapping[str, str]
    host_files: Mapping[str, str]


def read_machine(environ: Mapping[str, str], *, gpus: bool = True, root: Place = "/") -> Machine:
    """Look once; every later stage works on the value. gpus: False where none is wanted: nobody counts them then."""
    there, wanted = nvml_gpus() if gpus else (), environ.get("CUDA_VISIBLE_DEVICES")
    used = visible(there, wanted)
    return Machine(
        hostname=os.uname().nodename.split(".")[0],
        cores=processors(root),
        cores_there=in_time(os.cpu_count() or 1, root),  # tasks of one machine are most often in one group
        gpus=used,
        idle=tuple(name for name in _given(there, wanted) if name not in used),
        container=container(),
        hidden_job={} if "SLURM_JOB_ID" in environ else parents_job(os.getppid()),
        host_files=_host_files(environ),
    )


def _host_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Only plain files are read: to open a pipe would wait for who writes into it."""
    paths = {name: environ[name] for name in HOST_FILES if environ.get(name)}
    texts = {name: _text(path) for name, path in paths.items() if os.path.isfile(path)}
    return {name: text for name, text in texts.items() if text.strip()}


def nvml_gpus() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each GPU's UUID with its MIG instances' UUIDs, in NVML's (PCI bus) order; empty without a driver.

    Raises:
        Failure: NODE, where one of them does not answer; as `nvml`.
    """
    pynvml = nvml()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(found for index in range(pynvml.nvmlDeviceGetCount()) if (found := _gpu(index)))
    finally:
        pynvml.nvmlShutdown()


def nvml() -> Any:
    """The module that asks NVML, loaded where somebody wants to know of GPUs.

    Without it nobody can tell whether there are GPUs: to compute on the CPU then would be a guess.

    Raises:
        Failure: NODE, where this Python does not have it.
    """
    try:
        import pynvml
    except ImportError as error:
        raise Failure(
            "GPUs cannot be counted: the package nvidia-ml-py (module pynvml) cannot be loaded",
            found=f"{type(error).__name__}: {error}, in {sys.executable}",
            fix=f"{sys.executable} -m pip install nvidia-ml-py; or to compute without GPUs: --device cpu",
            code=ExitCode.NODE,
        ) from error
    return pynvml


def _gpu(index: int) -> tuple[str, tuple[str, ...]] | None:
    """None for one that is another job's."""
    pynvml = nvml()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return str(pynvml.nvmlDeviceGetUUID(handle)), _mig(handle)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
            return None
        raise Failure(
            f"GPU {index} of this node does not answer",
            found=f"NVML: {error}",
            fix="leave this node out (srun --exclude) and report it: a GPU that is lost needs a reset",
            code=ExitCode.NODE,
        ) from error


def visible(gpus: Iterable[tuple[str, tuple[str, ...]]], wanted: str | None) -> tuple[str, ...]:
    """The GPUs that CUDA would show, by its rules: indices, UUIDs or their beginnings, and MIG names; the list
    ends at the first entry that is not there; unset means all; empty means none. With an instance of MIG among them,
    CUDA shows a process the first one, and neither a second one nor a whole GPU beside it.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA Device Enumeration".
    """
    gpus = tuple(gpus)
    found, instances = _given(gpus, wanted), {name for _, migs in gpus for name in migs}
    return next(((name,) for name in found if name in instances), found)


def container(root: Place = "/") -> Container:
    """Which engine's marks the root file system bears."""
    if os.path.isdir(os.path.join(root, ".singularity.d")):
        return "apptainer"
    marks = (os.path.join(root, name) for name in (".dockerenv", "run/.containerenv"))
    return "docker" if any(map(os.path.exists, marks)) else "none"


def mount_of(path: Place, root: Place = "/") -> tuple[str, str]:
    """Where the file system that holds `path` is mounted, and its kind (nfs4, overlay, ...).

    Empty and `unknown` where no mount says so.
    """
    whole = os.path.realpath(path)
    best, kind = "", "unknown"
    for line in _text(os.path.join(root, "proc/self/mounts")).splitlines():
        _, place, name = line.split(" ")[:3]
        place = place.replace("\\040", " ")
        if (whole == place or whole.startswith(place.rstrip("/") + "/")) and len(place) >= len(best):
            best, kind = place, name
    return best, kind


def parents_job(pid: int, proc: Place = "/proc", most: int = 16) -> dict[str, str]:
    """SLURM_* variables of the nearest parent process that has a SLURM_JOB_ID, as far as /proc shows them.

    In a user namespace (unprivileged Apptainer) no parent's environment can be read; slurmstepd's title still names the
    job: then that is all there is. In a process namespace (`--containall`) no parent can be seen; Apptainer leaves a
    process in its step's control group, whose path names the job too.
    """
    for _ in range(most):
        process = os.path.join(proc, str(pid))
        variables = _environ_of(process)
        if "SLURM_JOB_ID" in variables:
            return {name: value for name, value in variables.items() if name.startswith("SLURM_")}
        if title := _STEPD.match(_text(os.path.join(process, "cmdline"))):
            return {"SLURM_JOB_ID": title[1], "SLURM_STEP_ID": title[2]}
        pid = _parent_of(process)
        if pid <= 1:
            break
    group = _STEPS_GROUP.search(_text(os.path.join(proc, "self", "cgroup")))
    return {"SLURM_JOB_ID": group[1], "SLURM_STEP_ID": group[2]} if group else {}


def oom_kills(cgroups: Place = "/proc/self/cgroup", root: Place = "/sys/fs/cgroup") -> int:
    """How often the kernel has killed in this process's cgroup for want of memory; 0 where it does not say.

    A container's cgroup may lie at the root that it sees, while /proc has the host's path of it.
    """
    for line in _text(cgroups).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        base, name = _OOM_FILES.get(controllers, ("", ""))
        places = (os.path.join(root, base, path.lstrip("/"), name), os.path.join(root, base, name)) if name else ()
        if counted := next(filter(None, (_OOM_KILL.search(_text(place)) for place in places)), None):
            return int(counted[1])
    return 0


# From a cgroup's controllers (version 2 names none) to the folder of its kind, and the file in it that counts.
_OOM_FILES = {"memory": ("memory", "memory.oom_control"), "": (".", "memory.events")}
_OOM_KILL = re.compile(r"^oom_kill (\d+)$", re.M)


def _text(file: Place) -> str:
    """Empty where it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace", newline="") as opened:
            return opened.read()
    except OSError:
        return ""


def _environ_of(process: str) -> dict[str, str]:
    entries = _text(os.path.join(process, "environ")).split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _parent_of(process: str) -> int:
    try:  # the name in parentheses may itself hold spaces and parentheses
        return int(_text(os.path.join(process, "stat")).rpartition(")")[2].split()[1])
    except (ValueError, IndexError):
        return 0


def _given(gpus: tuple[tuple[str, tuple[str, ...]], ...], wanted: str | None) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES names, of a GPU with MIG all instances."""
    if wanted is None:
        return tuple(name for uuid, migs in gpus for name in migs or (uuid,))
    found: list[str] = []
    for entry in wanted.split(","):
        names = _match(gpus, entry.strip())
        if not names or names[0] in found:
            break
        found += names
    return tuple(found)


def _match(gpus: tuple[tuple[str, tuple[str, ...]], ...], entry: str) -> tuple[str, ...]:
    if entry.isascii() and entry.isdigit():
        index = int(entry)
        return gpus[index][1] or (gpus[index][0],) if index < len(gpus) else ()
    names = [mig for _, migs in gpus for mig in migs] if entry.startswith("MIG-") else [uuid for uuid, _ in gpus]
    matches = tuple(name for name in names if entry and name.startswith(entry))
    return matches if len(matches) == 1 else ()


def _mig(handle: object) -> tuple[str, ...]:
    """The UUIDs of a GPU's instances, without those that are another job's."""
    pynvml = nvml()
    try:
        places = range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    except pynvml.NVMLError:  # it knows no MIG
        return ()
    found: list[str] = []
    for place in places:
        try:
            found.append(str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, place))))
        except pynvml.NVMLError:  # numbers have gaps where an instance was taken away
            continue
    return tuple(found)
