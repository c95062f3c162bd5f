"""`read_machine` reads this machine's cores, GPUs, container and parent job once.

This is the only module that looks at /proc, NVML, control groups and the container's marks for a
plan. It also knows which paths a container does not show, and which ones end with the container.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from entrypoint.errors import ExitCode, Failure

StrPath = str | os.PathLike[str]  # pathlib alone would be a tenth of what `entrypoint show` takes


def num_usable_cores(root: StrPath = "/") -> int:
    """How many threads of this process can work at once."""
    return cores_within_quota(len(os.sched_getaffinity(0)), root)


def cores_within_quota(cores: int, root: StrPath = "/") -> int:
    """As many of `cores` as there is time for. A quota (docker run --cpus, Kubernetes' limits.cpu) hides none of the
    machine's processors; threads beyond it stand still.
    """
    quota = cores_quota(root)
    return cores if quota is None else min(cores, math.ceil(quota))


def cores_quota(root: StrPath = "/") -> float | None:
    """Processors' worth of time that the control group gives; None where it gives all."""
    return min(filter(None, (_read_cores_quota(folder) for folder in cgroup_folders(root, "cpu"))), default=None)


def cgroup_folders(root: StrPath, controller: str) -> Iterator[str]:
    """This process's control group for it and those around it, innermost first; a container's may lie at the root."""
    for line in _read_cgroup_file(os.path.join(root, "proc/self/cgroup")).splitlines():
        _, names, path = line.split(":", 2)
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
    words = _read_cgroup_file(os.path.join(folder, "cpu.max")).split()
    if len(words) != 2:
        words = [_read_cgroup_file(os.path.join(folder, f"cpu.cfs_{name}_us")).strip() for name in ("quota", "period")]
    return int(words[0]) / int(words[1]) if all(word.isdigit() for word in words) and int(words[1]) else None


def _read_cgroup_file(file: StrPath) -> str:
    """Empty where it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read()
    except OSError:
        return ""


ContainerEngine = Literal["apptainer", "docker", "none"]
# Variables that name a file with a job's hosts: of PBS, Grid Engine and LSF.
HOST_FILE_VARIABLES = ("PBS_NODEFILE", "PE_HOSTFILE", "LSB_DJOB_HOSTFILE")
_SLURMSTEPD_TITLE = re.compile(r"slurmstepd: \[(\d+)\.(\w+)\]")
# In `extern` are those who come by ssh to a node of their job: no task of it.
_SLURM_STEP_CGROUP = re.compile(r"/job_(\d+)/step_(?!extern)(\w+)")


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
        host_files: the text of each of HOST_FILE_VARIABLES that is set and can be read here.
    """

    hostname: str
    cores: int
    cores_there: int
    gpus: tuple[str, ...]
    idle: tuple[str, ...]
    container: ContainerEngine
    hidden_job: Mapping[str, str]
    host_files: Mapping[str, str]


def read_machine(environ: Mapping[str, str], *, gpus: bool = True, root: StrPath = "/") -> Machine:
    """Look once; every later stage works on the value. gpus: False where none is wanted: nobody counts them then."""
    there, wanted = nvml_gpus() if gpus else (), environ.get("CUDA_VISIBLE_DEVICES")
    used = visible_gpus(there, wanted)
    return Machine(
        hostname=os.uname().nodename.split(".")[0],
        cores=num_usable_cores(root),
        cores_there=cores_within_quota(os.cpu_count() or 1, root),  # tasks of one machine are most often in one group
        gpus=used,
        idle=tuple(name for name in _selected_gpus(there, wanted) if name not in used),
        container=container_engine(),
        hidden_job={} if "SLURM_JOB_ID" in environ else slurm_job_of_parents(os.getppid()),
        host_files=_read_host_files(environ),
    )


def _read_host_files(environ: Mapping[str, str]) -> dict[str, str]:
    """Only plain files are read: to open a pipe would wait for who writes into it."""
    paths = {name: environ[name] for name in HOST_FILE_VARIABLES if environ.get(name)}
    texts = {name: _read_text(path) for name, path in paths.items() if os.path.isfile(path)}
    return {name: text for name, text in texts.items() if text.strip()}


def nvml_gpus() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each GPU's UUID with its MIG instances' UUIDs, in NVML's (PCI bus) order; empty without a driver.

    Raises:
        Failure: NODE, where one of them does not answer; as `import_pynvml`.
    """
    pynvml = import_pynvml()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(found for index in range(pynvml.nvmlDeviceGetCount()) if (found := _read_gpu_uuids(index)))
    finally:
        pynvml.nvmlShutdown()


def import_pynvml() -> Any:
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


def _read_gpu_uuids(index: int) -> tuple[str, tuple[str, ...]] | None:
    """None for one that is another job's."""
    pynvml = import_pynvml()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return str(pynvml.nvmlDeviceGetUUID(handle)), _mig_uuids(handle)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
            return None
        raise Failure(
            f"GPU {index} of this node does not answer",
            found=f"NVML: {error}",
            fix="leave this node out (srun --exclude) and report it: a GPU that is lost needs a reset",
            code=ExitCode.NODE,
        ) from error


def visible_gpus(gpus: Iterable[tuple[str, tuple[str, ...]]], wanted: str | None) -> tuple[str, ...]:
    """The GPUs that CUDA would show, by its rules: indices, UUIDs or their beginnings, and MIG names; the list
    ends at the first entry that is not there; unset means all; empty means none. With an instance of MIG among them,
    CUDA shows a process the first one, and neither a second one nor a whole GPU beside it.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA Device Enumeration".
    """
    gpus = tuple(gpus)
    found, instances = _selected_gpus(gpus, wanted), {name for _, migs in gpus for name in migs}
    return next(((name,) for name in found if name in instances), found)


def container_engine(root: StrPath = "/") -> ContainerEngine:
    """Which engine's marks the root file system bears."""
    if os.path.isdir(os.path.join(root, ".singularity.d")):
        return "apptainer"
    marks = (os.path.join(root, name) for name in (".dockerenv", "run/.containerenv"))
    return "docker" if any(map(os.path.exists, marks)) else "none"


def find_mount(path: StrPath, root: StrPath = "/") -> tuple[str, str]:
    """Where the file system that holds `path` is mounted, and its kind (nfs4, overlay, ...).

    Empty and `unknown` where no mount says so.
    """
    whole = os.path.realpath(path)
    best, kind = "", "unknown"
    for line in _read_text(os.path.join(root, "proc/self/mounts")).splitlines():
        _, place, name = line.split(" ")[:3]
        place = place.replace("\\040", " ")
        if (whole == place or whole.startswith(place.rstrip("/") + "/")) and len(place) >= len(best):
            best, kind = place, name
    return best, kind


def slurm_job_of_parents(pid: int, proc: StrPath = "/proc", most: int = 16) -> dict[str, str]:
    """SLURM_* variables of the nearest parent process that has a SLURM_JOB_ID, as far as /proc shows them.

    In a user namespace (unprivileged Apptainer) no parent's environment can be read; slurmstepd's title still names the
    job: then that is all there is. In a process namespace (`--containall`) no parent can be seen; Apptainer leaves a
    process in its step's control group, whose path names the job too.
    """
    for _ in range(most):
        process = os.path.join(proc, str(pid))
        variables = _read_process_environ(process)
        if "SLURM_JOB_ID" in variables:
            return {name: value for name, value in variables.items() if name.startswith("SLURM_")}
        if title := _SLURMSTEPD_TITLE.match(_read_text(os.path.join(process, "cmdline"))):
            return {"SLURM_JOB_ID": title[1], "SLURM_STEP_ID": title[2]}
        pid = _parent_pid(process)
        if pid <= 1:
            break
    group = _SLURM_STEP_CGROUP.search(_read_text(os.path.join(proc, "self", "cgroup")))
    return {"SLURM_JOB_ID": group[1], "SLURM_STEP_ID": group[2]} if group else {}


def count_oom_kills(cgroups: StrPath = "/proc/self/cgroup", root: StrPath = "/sys/fs/cgroup") -> int:
    """How often the kernel has killed in this process's cgroup for want of memory; 0 where it does not say.

    A container's cgroup may lie at the root that it sees, while /proc has the host's path of it.
    """
    for line in _read_text(cgroups).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        base, name = _OOM_FILES.get(controllers, ("", ""))
        places = (os.path.join(root, base, path.lstrip("/"), name), os.path.join(root, base, name)) if name else ()
        if counted := next(filter(None, (_OOM_KILL_LINE.search(_read_text(place)) for place in places)), None):
            return int(counted[1])
    return 0


# From a cgroup's controllers (version 2 names none) to the folder of its kind, and the file in it that counts.
_OOM_FILES = {"memory": ("memory", "memory.oom_control"), "": (".", "memory.events")}
_OOM_KILL_LINE = re.compile(r"^oom_kill (\d+)$", re.M)


def _read_text(file: StrPath) -> str:
    """Empty where it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace", newline="") as opened:
            return opened.read()
    except OSError:
        return ""


def _read_process_environ(process: str) -> dict[str, str]:
    entries = _read_text(os.path.join(process, "environ")).split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _parent_pid(process: str) -> int:
    try:  # the name in parentheses may itself hold spaces and parentheses
        return int(_read_text(os.path.join(process, "stat")).rpartition(")")[2].split()[1])
    except (ValueError, IndexError):
        return 0


def _selected_gpus(gpus: tuple[tuple[str, tuple[str, ...]], ...], wanted: str | None) -> tuple[str, ...]:
    """What CUDA_VISIBLE_DEVICES names, of a GPU with MIG all instances."""
    if wanted is None:
        return tuple(name for uuid, migs in gpus for name in migs or (uuid,))
    found: list[str] = []
    for entry in wanted.split(","):
        names = _match_gpu_entry(gpus, entry.strip())
        if not names or names[0] in found:
            break
        found += names
    return tuple(found)


def _match_gpu_entry(gpus: tuple[tuple[str, tuple[str, ...]], ...], entry: str) -> tuple[str, ...]:
    if entry.isascii() and entry.isdigit():
        index = int(entry)
        return gpus[index][1] or (gpus[index][0],) if index < len(gpus) else ()
    names = [mig for _, migs in gpus for mig in migs] if entry.startswith("MIG-") else [uuid for uuid, _ in gpus]
    matches = tuple(name for name in names if entry and name.startswith(entry))
    return matches if len(matches) == 1 else ()


def _mig_uuids(handle: object) -> tuple[str, ...]:
    """The UUIDs of a GPU's instances, without those that are another job's."""
    pynvml = import_pynvml()
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


# On the image's own file systems; what the host gives is mounted over them. (With `underlay`, / is not the image's.)
CONTAINER_ROOTS = (Path("/"), Path("/usr"))
OUR_IMAGE_MARKER = "opt/image.json"  # only our image has it


def unmounted_path_failure(
    name: str,
    path: Path,
    *,
    code: ExitCode = ExitCode.NO_INPUT,
    engine: ContainerEngine | None = None,
    own: Iterable[Path] = CONTAINER_ROOTS,
) -> Failure | None:
    """The Failure for `path` (said as `name` and the path), if it is not there and its place is the container's own.

    A link is there wherever its folder is mounted; what it leads to is what counts, and what has to be mounted.

    None outside Apptainer, for what is there, and below a folder of the host that is mounted. (Under docker a whole
    machine may live in the container, and a wrong path is only a wrong path.)
    """
    if (engine or container_engine()) != "apptainer" or os.path.exists(path):
        return None
    meant = Path(os.path.realpath(path))
    there = _nearest_container_folder(meant, own)
    if there is None:
        return None
    named = os.path.abspath(path)
    return Failure(
        f"{name} {path} is not visible inside the container",
        found=("" if named == str(meant) else f"{named} leads to {meant}; ")
        + f"of {meant} only {there} is there, and it is the container's own",
        fix=_bind_mount_fix(meant, there),
        code=code,
    )


def is_ephemeral_path(path: Path, *, engine: ContainerEngine | None = None, root: StrPath = "/") -> bool:
    """Whether what can be written in `path` ends with the container, since nothing of the host is mounted there.

    That is known of Apptainer's session (`--contain`, `--writable-tmpfs`), and of our image's own layer, which root can
    write. Another container may be a whole machine, and stay.
    """
    if (engine or container_engine(root)) == "apptainer":
        return _is_in_apptainer_session(path, root)
    return os.path.exists(os.path.join(root, OUR_IMAGE_MARKER)) and find_mount(path, root)[0] == "/"


def _is_in_apptainer_session(path: Path, root: StrPath) -> bool:
    """Apptainer keeps a session's files in one small memory file system, with the accounts' file that it writes; a
    writable image (`--overlay`, `--writable`) has the size of what it is on.
    """
    accounts = os.path.join(root, "etc/passwd")
    try:
        device, session, first = (os.stat(place).st_dev for place in (path, accounts, root))
        sizes = [(disk.f_frsize, disk.f_blocks) for disk in (os.statvfs(path), os.statvfs(accounts))]
    except OSError:
        return False
    return device in (session, first) and sizes[0] == sizes[1]


def _nearest_container_folder(path: Path, own: Iterable[Path] = CONTAINER_ROOTS) -> Path | None:
    """The nearest folder above `path` (without links) that is there, if it is the container's own and not mounted."""
    there = next(place for place in (path, *path.parents) if os.path.lexists(place))
    try:
        return there if there.stat().st_dev in {place.stat().st_dev for place in own} else None
    except OSError:
        return None


def _bind_mount_fix(path: Path, there: Path) -> str:
    """Apptainer mounts the working directory, but not one that is reached through a symbolic link."""
    folder = shlex.quote(str(path.parent if path.suffix else path))
    link = 'cd "$(pwd -P)" before you start or submit; or ' if Path.cwd() == there else ""
    return f"{link}apptainer exec --bind {folder} ..., or for srun and sbatch: export APPTAINER_BIND={folder}"
