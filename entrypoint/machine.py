"""`read_machine` reads this machine's cores, GPUs, container and parent job once.

This is the only module that reads /proc, NVML, control groups and the container's marker files for
a plan.
"""

from __future__ import annotations

import glob
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from entrypoint import driver_errors
from entrypoint.console import pip_command
from entrypoint.errors import ExitCode, Failure
from entrypoint.platforms import HOST_FILES

StrPath = str | os.PathLike[str]  # importing pathlib would take a tenth of `entrypoint show`


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
    """The file's text, empty if it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            return opened.read()
    except OSError:
        return ""


AMD_DEVICE = "/dev/kfd"
_AMD_VERSION_LINE = re.compile(r"^gfx_target_version (\d+)$", re.M)
# gfx908 (MI100), gfx90a (MI200), gfx940 to gfx942 (MI300), gfx950 (MI350), as 10000 x major + 100 x minor + stepping.
# Integrated GPUs and those for displays have other numbers. Source: kfd_device.c in the kernel.
INSTINCT_VERSIONS = ("90008", "90010", "90400", "90401", "90402", "90500")
ContainerEngine = Literal["apptainer", "docker", "none"]
T = TypeVar("T")
# Values of the variables by which schedulers and users give a process GPUs, that mean none. Slurm sets
# ROCR_VISIBLE_DEVICES on NVIDIA nodes too.
NO_GPU_VALUES = {
    "CUDA_VISIBLE_DEVICES": ("", "-1", "NoDevFiles", "10000"),  # the last two: of Slurm and HTCondor
    "ROCR_VISIBLE_DEVICES": ("", "-1"),
    "HIP_VISIBLE_DEVICES": ("", "-1"),
    "SLURM_GPUS_ON_NODE": ("", "0"),
}
# NVML's errors without a driver: it is not loaded, its library is not here.
NVML_DRIVER_NOT_LOADED, NVML_LIBRARY_NOT_FOUND = 9, 12
DRIVER_FILES = ("proc/driver/nvidia/version", "dev/nvidia*")  # containers without GPUs see the first, too
DRIVER_LIBRARY_FOLDERS = (
    "usr/lib/*-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    ".singularity.d/libs",
)
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
    container: ContainerEngine
    hidden_job: Mapping[str, str]
    host_files: Mapping[str, str]
    threads_per_core: int = 1


def read_machine(environ: Mapping[str, str], *, gpus: bool = True, root: StrPath = "/") -> Machine:
    """Read the machine once; every later stage uses the value. gpus: False skips counting GPUs."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    all_gpus = nvml_gpus(root) if gpus and not hides_all_gpus(visible) else ()
    usable = visible_gpus(all_gpus, visible)
    look_for_amd = gpus and not usable
    return Machine(
        hostname=os.uname().nodename.split(".")[0],
        cores=num_usable_cores(root),
        core_ids=frozenset(os.sched_getaffinity(0)),
        machine_cores=cores_within_quota(os.cpu_count() or 1, root),  # a machine's tasks usually share a group
        gpus=usable,
        gpu_cores=read_gpu_cores(usable) if len(usable) > 1 else (),
        idle=tuple(name for name in _selected_gpus(all_gpus, visible) if name not in usable),
        amd=AMD_DEVICE if look_for_amd and os.path.exists(os.path.join(root, AMD_DEVICE.lstrip("/"))) else "",
        amd_accelerators=look_for_amd and has_amd_accelerators(root),
        container=container_engine(),
        hidden_job={} if "SLURM_JOB_ID" in environ else slurm_job_of_parents(os.getppid()),
        host_files=_read_host_files(environ, root),
        threads_per_core=_threads_per_core(os.sched_getaffinity(0), root),
    )


def _threads_per_core(core_ids: Iterable[int], root: StrPath) -> int:
    """The threads of a core over those of them that are among `core_ids`; 1 if the kernel does not say."""
    file = os.path.join(root, f"sys/devices/system/cpu/cpu{min(core_ids)}/topology/thread_siblings")
    siblings = int(_read_text(file).strip().replace(",", "") or "0", 16)
    return siblings.bit_count() // (sum(siblings >> core & 1 for core in core_ids) or 1) or 1


def has_amd_accelerators(root: StrPath = "/") -> bool:
    """Whether the kernel lists an AMD GPU of the Instinct series."""
    folder = os.path.join(root, "sys/class/kfd/kfd/topology/nodes")
    nodes = os.listdir(folder) if os.path.isdir(folder) else []
    texts = (_read_text(os.path.join(folder, node, "properties")) for node in nodes)
    versions = {match[1] for text in texts if (match := _AMD_VERSION_LINE.search(text))}
    return not versions.isdisjoint(INSTINCT_VERSIONS)


def _read_host_files(environ: Mapping[str, str], root: StrPath) -> dict[str, str]:
    """The text of the host files. Only regular files are read.

    Opening a pipe would wait for its writer.
    """
    paths = {
        name: os.path.join(root, name.lstrip("/")) if name.startswith("/") else environ.get(name, "")
        for name in HOST_FILES
    }
    texts = {name: _read_text(path) for name, path in paths.items() if os.path.isfile(path)}
    return {name: text for name, text in texts.items() if text.strip()}


def nvml_gpus(root: StrPath = "/") -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each GPU's UUID with its MIG instances' UUIDs, in NVML's (PCI bus) order; empty without a driver.

    Raises:
        Failure: NODE or IMAGE_MISMATCH for a driver that opens no GPU for this process, NODE for a GPU that does not
            answer; also as `import_pynvml`.
    """
    return _ask_nvml(_list_gpus, root) or ()


def _list_gpus(pynvml: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    count = pynvml.nvmlDeviceGetCount()
    if gpus := tuple(gpu for index in range(count) if (gpu := _read_gpu_uuids(pynvml, index))):
        return gpus
    raise Failure(
        "no GPU can be used here, although NVIDIA's driver runs",
        found=f"NVML counts {count}, of which this process may open none",
        fix="ask the scheduler for GPUs (--gpus-per-node=1), or give the container some (--gpus all); if `sudo "
        "nvidia-smi` lists none either, the reason is in dmesg; or train without GPUs: --device cpu",
        code=ExitCode.NODE,
    )


def hides_all_gpus(visible_devices: str | None) -> bool:
    """Whether this value of CUDA_VISIBLE_DEVICES asks for no GPU: then nobody asks NVML, which may not work."""
    return visible_devices in NO_GPU_VALUES["CUDA_VISIBLE_DEVICES"]


def driver_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver supports, such as (12, 2); None without a driver, or if it does not say.

    Raises:
        Failure: as `nvml_gpus`.
    """
    version = _ask_nvml(lambda pynvml: query(pynvml, pynvml.nvmlSystemGetCudaDriverVersion_v2)) or 0
    return (version // 1000, version % 1000 // 10) if version else None


def read_gpu_cores(gpus: Sequence[str]) -> tuple[frozenset[int], ...]:
    """For each GPU the numbers of the cores near it; empty where the driver does not say."""
    words = max(os.sched_getaffinity(0)) // 64 + 1
    return _ask_nvml(lambda pynvml: tuple(_near_cores(pynvml, uuid, words) for uuid in gpus)) or ()


def _ask_nvml(question: Callable[[Any], T], root: StrPath = "/") -> T | None:
    """The answer of NVML, which is open meanwhile; None where no NVIDIA driver is.

    Raises:
        Failure: if there is a driver and NVML does not answer; also as `import_pynvml`.
    """
    pynvml = import_pynvml()
    try:
        pynvml.nvmlInit()
        try:
            return question(pynvml)
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        loader = f" ({error.__context__})" if error.__context__ else ""  # why the library or its function is missing
        if failure := nvml_failure(error.value, f"{error}{loader}", root):
            raise failure from error
        return None


def nvml_failure(error: int, message: str, root: StrPath = "/") -> Failure | None:
    """The Failure for an NVML that does not open the GPUs; None where no NVIDIA driver is.

    A library alone is no driver: login nodes have it too, and `apptainer --nv` binds it. error, message: NVML's.
    """
    files, loaded = (_list_files(root, patterns) for patterns in (DRIVER_FILES, DRIVER_FILES[:1]))
    # Without device files NVML takes a driver that is loaded for one that is not.
    if (error == NVML_LIBRARY_NOT_FOUND and files) or (error == NVML_DRIVER_NOT_LOADED and loaded):
        return library_failure("libnvidia-ml.so.1", message, root)
    if error == NVML_LIBRARY_NOT_FOUND or (
        error == NVML_DRIVER_NOT_LOADED and not (files or _has_nvidia_display_controller(root))
    ):
        return None
    return driver_errors.driver_failure("nvml", error, f"NVML error {error}: {message}")


def _has_nvidia_display_controller(root: StrPath) -> bool:
    names = map(_read_text, _list_files(root, ("sys/bus/pci/devices/*/modalias",)))
    return any("v000010DE" in name and "bc03" in name for name in names)  # PCI's number of the vendor, and the class


def library_failure(library: str, message: str, root: StrPath = "/") -> Failure:
    """The Failure for a library of the driver that does not work here. message: the loader's, or its own."""
    libraries = [f"{folder}/{library.removesuffix('.1')}*" for folder in DRIVER_LIBRARY_FOLDERS]
    files, engine = _list_files(root, (*DRIVER_FILES, *libraries)), container_engine(root)
    return Failure(
        f"no GPU can be used here: NVIDIA's driver is on this machine, and its {library} does not work",
        found=f"{message}; here: {', '.join(files) or 'no file of the driver'}",
        fix=driver_errors.FIX_BY_CONTAINER_ENGINE[engine] + driver_errors.CPU_FIX,
        code=ExitCode.NODE if engine == "none" else ExitCode.IMAGE_MISMATCH,  # each node starts this container so
    )


def _list_files(root: StrPath, patterns: Iterable[str]) -> list[str]:
    return [path for pattern in patterns for path in sorted(glob.glob(os.path.join(root, pattern)))]


def _near_cores(pynvml: Any, uuid: str, words: int) -> frozenset[int]:
    masks = query(
        pynvml, lambda: pynvml.nvmlDeviceGetCpuAffinity(pynvml.nvmlDeviceGetHandleByUUID(uuid), words), default=()
    )
    return frozenset(64 * index + bit for index, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)


def query(pynvml: Any, question: Callable[[], Any], default: Any = None) -> Any:
    """NVML's answer, or `default` if this GPU or driver does not support the question."""
    try:
        return question()
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):  # the second: the driver is older than pynvml
        return default


def import_pynvml() -> Any:
    """Import pynvml, which is needed only to count GPUs.

    Without it nobody can tell whether there are GPUs, and computing on the CPU would be a guess.

    Raises:
        Failure: NODE if pynvml is not installed.
    """
    try:
        import pynvml
    except ImportError as error:
        raise Failure(
            "GPUs cannot be counted: the package nvidia-ml-py (module pynvml) cannot be loaded",
            found=f"{type(error).__name__}: {error}, in {sys.executable}",
            fix=f"{pip_command('nvidia-ml-py')}; or to compute without GPUs: --device cpu",
            code=ExitCode.NODE,
        ) from error
    return pynvml


def _read_gpu_uuids(pynvml: Any, index: int) -> tuple[str, tuple[str, ...]] | None:
    """A GPU's UUID and those of its MIG instances; None for a GPU of another job."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        return str(pynvml.nvmlDeviceGetUUID(handle)), _mig_uuids(pynvml, handle)
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
            return None
        raise Failure(
            f"GPU {index} of this node does not answer",
            found=f"NVML: {error}",
            fix="leave this node out (srun --exclude) and report it: a lost GPU needs a reset",
            code=ExitCode.NODE,
        ) from error


def visible_gpus(gpus: Iterable[tuple[str, tuple[str, ...]]], visible_devices: str | None) -> tuple[str, ...]:
    """The GPUs that CUDA would show for this value of CUDA_VISIBLE_DEVICES.

    Entries are indices, UUIDs or prefixes of them, and MIG names; the list ends at the first
    unknown entry; unset means all, empty means none. If a MIG instance is among them, CUDA shows a
    process only the first instance.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA Device
    Enumeration".
    """
    gpus = tuple(gpus)
    selected, instances = _selected_gpus(gpus, visible_devices), {name for _, migs in gpus for name in migs}
    return next(((name,) for name in selected if name in instances), selected)


def container_engine(root: StrPath = "/") -> ContainerEngine:
    """The container engine whose marker files are in the root file system."""
    if os.path.isdir(os.path.join(root, ".singularity.d")):
        return "apptainer"
    marks = (os.path.join(root, name) for name in (".dockerenv", "run/.containerenv"))
    return "docker" if any(map(os.path.exists, marks)) else "none"


def find_mount(path: StrPath, root: StrPath = "/") -> tuple[str, str]:
    """The mount point of the file system that holds `path`, and its type (nfs4, overlay, ...).

    ("", "unknown") if no mount matches.
    """
    real_path = os.path.realpath(path)
    mount_point, fs_type = "", "unknown"
    for line in _read_text(os.path.join(root, "proc/self/mounts")).splitlines():
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
        variables = _read_process_environ(process)
        if "SLURM_JOB_ID" in variables:
            return {name: value for name, value in variables.items() if name.startswith("SLURM_")}
        if step_title := _SLURMSTEPD_TITLE.match(_read_text(os.path.join(process, "cmdline"))):
            return {"SLURM_JOB_ID": step_title[1], "SLURM_STEP_ID": step_title[2]}
        pid = _parent_pid(process)
        if pid <= 1:
            break
    step_cgroup = _SLURM_STEP_CGROUP.search(_read_text(os.path.join(proc, "self", "cgroup")))
    return {"SLURM_JOB_ID": step_cgroup[1], "SLURM_STEP_ID": step_cgroup[2]} if step_cgroup else {}


def count_oom_kills(cgroups: StrPath = "/proc/self/cgroup", root: StrPath = "/sys/fs/cgroup") -> int:
    """How many processes of this cgroup the OOM killer has killed; 0 if that is not counted.

    A container may see its cgroup at the root, while /proc shows the host's path of it.
    """
    for line in _read_text(cgroups).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        base, name = _OOM_FILES.get(controllers, ("", ""))
        candidates = (os.path.join(root, base, path.lstrip("/"), name), os.path.join(root, base, name)) if name else ()
        if match := next(filter(None, (_OOM_KILL_LINE.search(_read_text(file)) for file in candidates)), None):
            return int(match[1])
    return 0


# Controllers of a cgroup line (version 2 names none) -> the controller's folder, and the file with
# the count.
_OOM_FILES = {"memory": ("memory", "memory.oom_control"), "": (".", "memory.events")}
_OOM_KILL_LINE = re.compile(r"^oom_kill (\d+)$", re.M)


def _read_text(file: StrPath) -> str:
    """The file's text, empty if it cannot be read."""
    try:
        with open(file, encoding="utf-8", errors="replace", newline="") as opened:
            return opened.read()
    except OSError:
        return ""


def _read_process_environ(process: str) -> dict[str, str]:
    entries = _read_text(os.path.join(process, "environ")).split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _parent_pid(process: str) -> int:
    try:  # the process name may contain spaces and parentheses
        return int(_read_text(os.path.join(process, "stat")).rpartition(")")[2].split()[1])
    except (ValueError, IndexError):
        return 0


def _selected_gpus(gpus: tuple[tuple[str, tuple[str, ...]], ...], visible_devices: str | None) -> tuple[str, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES names; a GPU with MIG stands for all its instances."""
    if visible_devices is None:
        return tuple(name for uuid, migs in gpus for name in migs or (uuid,))
    selected: list[str] = []
    for entry in visible_devices.split(","):
        names = _match_gpu_entry(gpus, entry.strip())
        if not names or names[0] in selected:
            break
        selected += names
    return tuple(selected)


def _match_gpu_entry(gpus: tuple[tuple[str, tuple[str, ...]], ...], entry: str) -> tuple[str, ...]:
    if entry.isascii() and entry.isdigit():
        index = int(entry)
        return gpus[index][1] or (gpus[index][0],) if index < len(gpus) else ()
    names = [mig for _, migs in gpus for mig in migs] if entry.startswith("MIG-") else [uuid for uuid, _ in gpus]
    matches = tuple(name for name in names if entry and name.startswith(entry))
    return matches if len(matches) == 1 else ()


def _mig_uuids(pynvml: Any, handle: object) -> tuple[str, ...]:
    """The UUIDs of a GPU's MIG instances, without those of other jobs; none without support for MIG."""

    def read(index: int) -> str:
        return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))

    count = query(pynvml, lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle), default=0)
    uuids = (query(pynvml, partial(read, index)) for index in range(count))
    return tuple(uuid for uuid in uuids if uuid)  # a removed instance leaves a gap in the indices
