"""NVIDIA's GPUs: which there are, which a process may use, how they do, and what an error of their driver means.

This module alone asks NVML and CUDA's driver. Another vendor would be one more module with these functions:
`list_gpus`, `visible_gpus`, `near_cores`, `read_snapshot`, `open_meters`, `refuse_broken_driver`, `rank_variables`.
"""

from __future__ import annotations

import glob
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, Literal, TypeVar

from entrypoint import engines, images
from entrypoint.console import pip_command
from entrypoint.errors import ExitCode, Failure
from entrypoint.files import StrPath, read_text

T = TypeVar("T")
GpuUuids = tuple[str, tuple[str, ...]]  # a GPU's UUID, and those of its MIG instances

VISIBLE_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"
HIDDEN_VALUES: Final = ("", "-1", "NoDevFiles", "10000")  # none are visible; the last two: of Slurm and HTCondor


# Which GPUs there are


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """A GPU, or a MIG instance.

    Attributes:
        position: in NVML's list, which is in the order of the PCI bus.
        index: the number in /dev/nvidia0 if NVML tells it, otherwise the position. The position would not do: it is 0
            for each of several tasks on a host that may use one GPU each.
        instance: None for a full GPU.
        handle: NVML's. board: the handle of the full GPU.
        migs: the GPU's instances that this process may use.
    """

    uuid: str
    position: int
    index: int
    instance: int | None = None
    handle: Any
    board: Any
    migs: tuple[GpuDevice, ...] = ()

    @property
    def uuids(self) -> GpuUuids:
        """As `list_gpus` lists it."""
        return self.uuid, tuple(mig.uuid for mig in self.migs)


def import_pynvml() -> Any:
    """Import pynvml, which is needed only to ask about GPUs.

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


def ask(nvml: Any, question: str, *arguments: Any, default: Any = None) -> Any:
    """The answer of NVML's function `question`, or `default` if this GPU or driver does not support it."""
    try:
        return getattr(nvml, question)(*arguments)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):  # the second: the driver is older than pynvml
        return default


def list_gpus(root: StrPath = "/") -> tuple[GpuUuids, ...]:
    """Each GPU's UUID with its MIG instances' UUIDs, in NVML's (PCI bus) order; empty without a driver.

    Raises:
        Failure: NODE or IMAGE_MISMATCH for a driver that opens no GPU for this process, NODE for a GPU that does not
            answer; also as `import_pynvml`.
    """
    return _with_nvml(lambda nvml: tuple(gpu.uuids for gpu in open_gpus(nvml, strict=True)), root) or ()


def open_gpus(nvml: Any, *, strict: bool = False) -> list[GpuDevice]:
    """The GPUs that this process may use. strict: refuse a GPU that does not answer, and a driver without GPUs.

    Raises:
        Failure: NODE, only if strict.
    """
    gpus, count = [], nvml.nvmlDeviceGetCount()
    for position in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(position)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            if strict and error.value != nvml.NVML_ERROR_NO_PERMISSION:  # that is what another job's GPU answers
                raise Failure(
                    f"GPU {position} of this node does not answer",
                    found=f"NVML: {error}",
                    fix="leave this node out (srun --exclude) and report it: a lost GPU needs a reset",
                    code=ExitCode.NODE,
                ) from error
            continue
        index = ask(nvml, "nvmlDeviceGetMinorNumber", handle, default=position)
        migs = tuple(_open_migs(nvml, handle, position, index))
        gpus.append(GpuDevice(uuid=uuid, position=position, index=index, handle=handle, board=handle, migs=migs))
    if strict and not gpus:
        raise Failure(
            "no GPU can be used here, although NVIDIA's driver runs",
            found=f"NVML counts {count}, of which this process may open none",
            fix="ask the scheduler for GPUs (--gpus-per-node=1), or give the container some (--gpus all); if `sudo "
            "nvidia-smi` lists none either, the reason is in dmesg; or train without GPUs: --device cpu",
            code=ExitCode.NODE,
        )
    return gpus


def _open_migs(nvml: Any, board: Any, position: int, index: int) -> Iterator[GpuDevice]:
    """A GPU's MIG instances, without those of other jobs; none without support for MIG."""
    for number in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", board, default=0)):
        handle = ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", board, number)
        uuid = None if handle is None else ask(nvml, "nvmlDeviceGetUUID", handle)
        if uuid is not None:  # a removed instance leaves a gap in the indices
            yield GpuDevice(uuid=str(uuid), position=position, index=index, instance=number, handle=handle, board=board)


def hides_all_gpus(visible_devices: str | None) -> bool:
    """Whether this value of CUDA_VISIBLE_DEVICES asks for no GPU: then nobody asks NVML, which may not work."""
    return visible_devices in HIDDEN_VALUES


def visible_gpus(gpus: Iterable[GpuUuids], visible_devices: str | None) -> tuple[str, ...]:
    """The GPUs that CUDA would show for this value of CUDA_VISIBLE_DEVICES.

    Entries are indices, UUIDs or prefixes of them, and MIG names; the list ends at the first
    unknown entry; unset means all, empty means none. If a MIG instance is among them, CUDA shows a
    process only the first instance.

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; MIG User Guide, "CUDA Device
    Enumeration".
    """
    gpus = tuple(gpus)
    selected, instances = select_gpus(gpus, visible_devices), {name for _, migs in gpus for name in migs}
    return next(((name,) for name in selected if name in instances), selected)


def select_gpus(gpus: Sequence[GpuUuids], visible_devices: str | None) -> tuple[str, ...]:
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


def _match_gpu_entry(gpus: Sequence[GpuUuids], entry: str) -> tuple[str, ...]:
    if entry.isascii() and entry.isdigit():
        index = int(entry)
        return gpus[index][1] or (gpus[index][0],) if index < len(gpus) else ()
    names = [mig for _, migs in gpus for mig in migs] if entry.startswith("MIG-") else [uuid for uuid, _ in gpus]
    matches = tuple(name for name in names if entry and name.startswith(entry))
    return matches if len(matches) == 1 else ()


def near_cores(uuids: Sequence[str]) -> tuple[frozenset[int], ...]:
    """For each GPU the numbers of the cores near it; empty where the driver does not say."""
    words = max(os.sched_getaffinity(0)) // 64 + 1

    def read(nvml: Any, uuid: str) -> frozenset[int]:
        handle = ask(nvml, "nvmlDeviceGetHandleByUUID", uuid)
        masks = () if handle is None else ask(nvml, "nvmlDeviceGetCpuAffinity", handle, words, default=())
        return frozenset(64 * index + bit for index, mask in enumerate(masks) for bit in range(64) if mask >> bit & 1)

    return _with_nvml(lambda nvml: tuple(read(nvml, uuid) for uuid in uuids)) or ()


def _read_driver_cuda(nvml: Any) -> tuple[int, int] | None:
    """The newest CUDA that the driver supports, such as (12, 2); None if it does not say."""
    version = ask(nvml, "nvmlSystemGetCudaDriverVersion_v2", default=0)
    return (version // 1000, version % 1000 // 10) if version else None


# How the GPUs do

MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowdownReason:
    """A reason of NVML's for a lowered clock, which is a problem. Idle GPUs and clocks that somebody set are none.

    Attributes:
        bit: NVML's name of it.
        figure: the figure of GPU_FIELDS that counts its seconds.
        words: what `entrypoint doctor` says of it now; None: nothing.
    """

    bit: str
    figure: str
    words: str | None = None


# Source: NVML API reference, nvmlClocksEventReasons.
SLOWDOWN_REASONS: Final = (
    SlowdownReason(bit="nvmlClocksEventReasonHwSlowdown", figure="slow_s", words="slowed by the hardware"),
    SlowdownReason(bit="nvmlClocksEventReasonHwThermalSlowdown", figure="hot_s", words="too hot (hardware)"),
    SlowdownReason(bit="nvmlClocksEventReasonSwThermalSlowdown", figure="hot_s", words="too hot (driver)"),
    SlowdownReason(
        bit="nvmlClocksEventReasonHwPowerBrakeSlowdown",
        figure="brake_s",
        words="power brake: the node's power supply asks for less",
    ),
    SlowdownReason(bit="nvmlClocksEventReasonSwPowerCap", figure="cap_s"),
)


def read_slowdowns(nvml: Any, board: Any) -> list[SlowdownReason] | None:
    """Why a GPU's clocks are low now; None if it does not say."""
    bits = ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", board)
    if bits is None:  # a driver before 535 has an older name
        bits = ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", board)
    return None if bits is None else [reason for reason in SLOWDOWN_REASONS if bits & getattr(nvml, reason.bit)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, as NVML describes it now.

    Attributes:
        index: its position in NVML's list.
        migs: the UUIDs of its MIG instances.
        capability: its compute capability, such as (9, 0); None if the driver does not say.
        memory_mib, used_mib: its memory, and how much is used now.
        programs: the number of compute programs that use it.
        uncorrected: memory errors that ECC could not correct since the driver was loaded; None
            without ECC.
        to_replace: rows or pages wait for a reset to be replaced. worn_out: a replacement has
            failed.
        slowed: why its clocks are low now, in words. prohibited: compute programs are refused.
    """

    index: int
    uuid: str
    migs: tuple[str, ...]
    name: str
    capability: tuple[int, int] | None
    memory_mib: int
    used_mib: int
    programs: int
    uncorrected: int | None
    to_replace: bool
    worn_out: bool
    slowed: tuple[str, ...]
    prohibited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """NVML's answers about the driver and all GPUs.

    Attributes:
        cuda: the newest version that the driver supports; None if its CUDA library does not answer.
        pairs_without_p2p: pairs of GPU indices without direct copies.
    """

    driver: str
    cuda: tuple[int, int] | None
    gpus: tuple[Gpu, ...]
    pairs_without_p2p: tuple[tuple[int, int], ...]


def read_snapshot(root: StrPath = "/", *, nvml: Any = None, strict: bool = False) -> Snapshot | None:
    """Read everything from NVML; None without a driver. nvml: the module pynvml, or a fake. strict: as `open_gpus`.

    Raises:
        Failure: as `list_gpus`, only if strict.
    """
    try:
        return _with_nvml(lambda nvml: _read_snapshot(nvml, open_gpus(nvml, strict=strict)), root, nvml)
    except Failure:
        if strict:
            raise
        return None


def _read_snapshot(nvml: Any, devices: Sequence[GpuDevice]) -> Snapshot:
    return Snapshot(
        driver=str(ask(nvml, "nvmlSystemGetDriverVersion", default="unknown")),
        cuda=_read_driver_cuda(nvml),
        gpus=tuple(_read_gpu(nvml, device) for device in devices),
        pairs_without_p2p=tuple(
            (first.position, second.position)
            for first, second in combinations(devices, 2)
            if not _has_peer_access(nvml, first, second)
        ),
    )


def _read_gpu(nvml: Any, device: GpuDevice) -> Gpu:
    handle = device.handle
    memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
    _, _, pending, failed = ask(nvml, "nvmlDeviceGetRemappedRows", handle, default=(0, 0, 0, 0))
    capability = ask(nvml, "nvmlDeviceGetCudaComputeCapability", handle)
    error_type, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    return Gpu(
        index=device.position,
        uuid=device.uuid,
        migs=device.uuids[1],
        name=str(ask(nvml, "nvmlDeviceGetName", handle, default="GPU")),
        capability=tuple(capability) if capability else None,
        memory_mib=memory.total // MIB if memory else 0,
        used_mib=memory.used // MIB if memory else 0,
        programs=len(ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle, default=())),
        uncorrected=ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, error_type, counter),
        to_replace=bool(pending) or bool(ask(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", handle)),
        worn_out=bool(failed),
        slowed=tuple(reason.words for reason in read_slowdowns(nvml, handle) or () if reason.words),
        prohibited=ask(nvml, "nvmlDeviceGetComputeMode", handle) == nvml.NVML_COMPUTEMODE_PROHIBITED,
    )


def _has_peer_access(nvml: Any, first: GpuDevice, second: GpuDevice) -> bool:
    """Whether they read each other's memory; so it seems where the driver does not say."""
    works = nvml.NVML_P2P_STATUS_OK
    question = ("nvmlDeviceGetP2PStatus", first.handle, second.handle, nvml.NVML_P2P_CAPS_INDEX_READ)
    return bool(ask(nvml, *question, default=works) == works)


# What a training uses of them

# What a GpuMeter measures. instance: the MIG instance, NaN for a full GPU. Sums only grow, so the difference of any two
# readings is what was used in between. A mean is a sum divided by the seconds for which NVML reported it:
# busy (percent x seconds) / busy_s, energy_j / energy_s, hot_s (and other reasons) / reasons_s.
GPU_FIELDS: Final = (
    *("index", "instance"),
    *("busy", "busy_s"),
    *("memory_bytes", "memory_peak_bytes", "memory_total_bytes"),
    *("energy_j", "energy_s"),
    *("temperature_c", "temperature_peak_c"),
    *("hot_s", "brake_s", "slow_s", "cap_s", "reasons_s"),
)
_SUMS: Final = ("busy", "busy_s", "energy_j", "energy_s", "hot_s", "brake_s", "slow_s", "cap_s", "reasons_s")


def open_meters(nvml: Any, uuids: Sequence[str], visible_devices: str | None) -> list[GpuMeter | None]:
    """A meter for each of these UUIDs in CUDA's form, without NVML's `GPU-` or `MIG-`; None for one that NVML lacks.

    CUDA may name the GPU although the process uses one MIG instance of it; then CUDA_VISIBLE_DEVICES decides.
    """
    nvml.nvmlInit()
    gpus = open_gpus(nvml)
    by_uuid: dict[str, GpuDevice] = {}
    visible = visible_gpus([gpu.uuids for gpu in gpus], visible_devices)
    for gpu in gpus:
        used_mig = next((mig for mig in gpu.migs if mig.uuid in visible), gpu)
        by_uuid |= {gpu.uuid.removeprefix("GPU-"): used_mig} | {mig.uuid.removeprefix("MIG-"): mig for mig in gpu.migs}
    return [GpuMeter(nvml, by_uuid[uuid]) if uuid in by_uuid else None for uuid in uuids]


class GpuMeter:
    """Turns NVML's readings of one GPU into sums, peaks and latest values."""

    def __init__(self, nvml: Any, device: GpuDevice) -> None:
        self._nvml, self.device = nvml, device
        self._joules: float | None = None
        instance = math.nan if device.instance is None else float(device.instance)
        self._figures = dict.fromkeys(GPU_FIELDS, math.nan) | dict.fromkeys(_SUMS, 0.0)
        self._figures |= {"index": float(device.index), "instance": instance}

    def measure(self, seconds: float) -> tuple[float, ...]:
        """The figures of GPU_FIELDS. seconds: since the last measurement."""
        nvml, handle, board = self._nvml, self.device.handle, self.device.board
        if (rates := ask(nvml, "nvmlDeviceGetUtilizationRates", handle)) is not None:  # none of a MIG instance
            self._add(busy=rates.gpu * seconds, busy_s=seconds)
        if (memory := ask(nvml, "nvmlDeviceGetMemoryInfo", handle)) is not None:
            self._set_with_peak("memory", "bytes", memory.used)
            self._figures["memory_total_bytes"] = float(memory.total)
        self._add_energy(seconds)
        degrees = ask(nvml, "nvmlDeviceGetTemperature", board, nvml.NVML_TEMPERATURE_GPU)
        if degrees is not None:
            self._set_with_peak("temperature", "c", degrees)
        if (reasons := read_slowdowns(nvml, board)) is not None:
            figures = {reason.figure for reason in reasons}
            if figures & {"hot_s", "brake_s"}:  # they say more than the hardware's general bit
                figures.discard("slow_s")
            self._add(reasons_s=seconds, **dict.fromkeys(figures, seconds))
        return tuple(self._figures.values())

    def _add_energy(self, seconds: float) -> None:
        """From the GPU's energy counter, or from its power if it has none.

        NVML reports neither for a MIG instance.
        """
        handle, before = self.device.handle, self._joules
        if (milli := ask(self._nvml, "nvmlDeviceGetTotalEnergyConsumption", handle)) is not None:
            self._joules = milli / 1000
            if before is not None and self._joules >= before:
                self._add(energy_j=self._joules - before, energy_s=seconds)
        elif (milliwatts := ask(self._nvml, "nvmlDeviceGetPowerUsage", handle)) is not None:
            self._add(energy_j=milliwatts / 1000 * seconds, energy_s=seconds)

    def _add(self, **sums: float) -> None:
        for name, amount in sums.items():
            self._figures[name] += amount

    def _set_with_peak(self, name: str, unit: str, value: float) -> None:
        peak = f"{name}_peak_{unit}"
        self._figures[f"{name}_{unit}"] = float(value)
        self._figures[peak] = max(float(value), self._figures[peak])  # of a NaN and a number this is the number


# What the driver's errors mean

# NVML's errors without a driver: it is not loaded, its library is not here.
NVML_DRIVER_NOT_LOADED, NVML_LIBRARY_NOT_FOUND = 9, 12
DRIVER_FILES: Final = ("proc/driver/nvidia/version", "dev/nvidia*")  # containers without GPUs see the first, too
DRIVER_LIBRARY_FOLDERS: Final = (
    "usr/lib/*-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    ".singularity.d/libs",
)
CPU_FIX: Final = "; or train without GPUs: --device cpu"
CUDA_NO_DEVICE: Final = 100
_EXCLUDE_FIX: Final = "leave this node out (srun --exclude) and report it"
EXCLUDE_NODE_FIX: Final = "leave this node out (srun --exclude={host})"  # where the host is known


def _with_nvml(question: Callable[[Any], T], root: StrPath = "/", nvml: Any = None) -> T | None:
    """The answer of NVML, which is open meanwhile; None where no NVIDIA driver is.

    Raises:
        Failure: if there is a driver and NVML does not answer; also as `import_pynvml`.
    """
    nvml = nvml or import_pynvml()
    try:
        nvml.nvmlInit()
        try:
            return question(nvml)
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
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
    names = map(read_text, _list_files(root, ("sys/bus/pci/devices/*/modalias",)))
    on_bus = any("v000010DE" in name and "bc03" in name for name in names)  # PCI's number of the vendor, and the class
    if error == NVML_LIBRARY_NOT_FOUND or (error == NVML_DRIVER_NOT_LOADED and not (files or on_bus)):
        return None
    return driver_failure("nvml", error, f"NVML error {error}: {message}")


def library_failure(library: str, message: str, root: StrPath = "/") -> Failure:
    """The Failure for a library of the driver that does not work here. message: the loader's, or its own."""
    libraries = [f"{folder}/{library.removesuffix('.1')}*" for folder in DRIVER_LIBRARY_FOLDERS]
    files, engine = _list_files(root, (*DRIVER_FILES, *libraries)), engines.detect(root)
    return Failure(
        f"no GPU can be used here: NVIDIA's driver is on this machine, and its {library} does not work",
        found=f"{message}; here: {', '.join(files) or 'no file of the driver'}",
        fix=engines.ENGINES[engine].driver_fix + CPU_FIX,
        code=ExitCode.NODE if engine == "none" else ExitCode.IMAGE_MISMATCH,  # each node starts this container so
    )


def _list_files(root: StrPath, patterns: Iterable[str]) -> list[str]:
    return [path for pattern in patterns for path in sorted(glob.glob(os.path.join(root, pattern)))]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProblem:
    """A cause, its fix, and how it shows: at the start as a number, in a program that computes as CUDA's message.

    Attributes:
        fix: for a message with {host}, and {doctor} and {check} for two commands as they were typed.
        nvml, cuda: the errors of nvmlInit and cuInit.
        messages: parts of CUDA's messages. what: what is wrong with the GPU that they are about.
        show_line: whether the user's code may be the cause of a message, so that its line is shown.
        code: IMAGE_MISMATCH where the next node gives the same answer: job scripts start again on another one after
            NODE.
    """

    fix: str
    nvml: tuple[int, ...] = ()
    cuda: tuple[int, ...] = ()
    messages: tuple[str, ...] = ()
    what: str = ""
    show_line: bool = False
    code: ExitCode = ExitCode.NODE


# Sources: NVML API reference, nvmlReturn_t; CUDA Driver API, CUresult.
DRIVER_PROBLEMS = (
    DriverProblem(
        nvml=(18,),
        cuda=(803,),
        fix="driver/library version mismatch: after an update of the driver reboot the machine, or load the new one "
        "(sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia; sudo modprobe nvidia). A container keeps the "
        "libraries of its start: start it again, without a driver's libraries in its image or LD_LIBRARY_PATH (CUDA's "
        "compat folder)",
    ),
    DriverProblem(
        nvml=(999,),
        fix="in a container: start it again, it has lost its GPUs (`systemctl daemon-reload` on the host takes them; "
        "for good: docker's native.cgroupdriver=cgroupfs, or CDI devices); else: the reason is in dmesg (Xid, NVRM), "
        "and the GPU needs a reset, or the machine a reboot",
    ),
    DriverProblem(
        cuda=(999, 304),
        fix="load the driver's memory module and make its device file: sudo modprobe nvidia_uvm; sudo nvidia-modprobe "
        "-u -c=0 (a container needs /dev/nvidia-uvm too). Start a container again: it may have lost its GPUs. Else: "
        "the reason is in dmesg (Xid, NVRM)",
    ),
    DriverProblem(
        nvml=(9,),
        fix="load the driver: sudo modprobe nvidia. If that fails, dmesg says why: after an update of the kernel the "
        "module must be built again, and Secure Boot wants it signed",
    ),
    DriverProblem(
        nvml=(4, 17),
        cuda=(800,),
        fix="this user may not open the device files: compare `ls -l /dev/nvidia*` with `id` (often the group video is "
        "needed). Start a container again: `systemctl daemon-reload` on the host may have taken its GPUs",
    ),
    DriverProblem(
        nvml=(10, 11, 14, 15, 16, 28), cuda=(214, 220), fix=f"{_EXCLUDE_FIX}: a GPU needs a reset, or the node a reboot"
    ),
    DriverProblem(
        cuda=(802, 3),
        fix="system not yet initialized: on a machine with NVSwitch (HGX, DGX) the fabric manager must run, in the "
        "driver's version: sudo systemctl restart nvidia-fabricmanager (nvidia-smi -q shows the Fabric's state); "
        f"elsewhere sudo modprobe nvidia_uvm; or {_EXCLUDE_FIX}",
    ),
    DriverProblem(
        cuda=(CUDA_NO_DEVICE, 101),
        fix="compare `nvidia-smi -L` with CUDA_VISIBLE_DEVICES and with the files /dev/nvidia* (MIG: "
        f"/dev/nvidia-caps), which the container must have too; where a GPU is missing, {_EXCLUDE_FIX}",
    ),
    DriverProblem(
        cuda=(46,),
        fix="end the other program on the GPU (nvidia-smi), or start one rank per GPU: in the compute mode "
        "EXCLUSIVE_PROCESS (nvidia-smi -q -d COMPUTE) it takes one process; where nobody uses it, " + _EXCLUDE_FIX,
    ),
    DriverProblem(
        cuda=tuple(range(805, 811)),
        fix="CUDA's MPS server does not serve this process: start it again on this node (nvidia-cuda-mps-control -d), "
        "or unset CUDA_MPS_PIPE_DIRECTORY to do without it",
    ),
    DriverProblem(cuda=(102,), fix="the virtual GPU has no licence: the administrator should look at nvidia-gridd"),
    DriverProblem(
        cuda=(2,),
        fix="give this process more memory: ulimit -v, and the limit of the job or container",
        code=ExitCode.RESOURCE,
    ),
    DriverProblem(
        nvml=(13,),
        cuda=(34, 302, 303),
        fix="the library is not the driver's own, or a part of it is missing: take folders with other ones (CUDA's "
        "lib64/stubs) out of LD_LIBRARY_PATH; start the container with " + engines.GPU_OPTIONS,
        code=ExitCode.IMAGE_MISMATCH,
    ),
    DriverProblem(
        cuda=(35, 36),
        fix="use the image for this driver (docs/image.md), or ask the administrator for a newer driver",
        code=ExitCode.IMAGE_MISMATCH,
    ),
    DriverProblem(
        cuda=(804,),
        fix="CUDA's compat folder does not work with this type of GPU: unset CUDA_COMPAT, take the folder out of "
        "LD_LIBRARY_PATH, and use the image for this driver (docs/image.md)",
        code=ExitCode.IMAGE_MISMATCH,
    ),
    # What a training meets later. Of a broken driver the message says less than cuInit's number, which the doctor asks.
    DriverProblem(
        messages=("uncorrectable ECC error", "uncorrectable NVLink error", "over nvlink or a hardware error"),
        what="its hardware reports an error that it cannot correct",
        fix=EXCLUDE_NODE_FIX + " and report it: nvidia-smi -q -d ECC shows its memory; a reset of the GPU may help",
    ),
    DriverProblem(
        messages=(
            "unspecified launch failure",
            "an illegal memory access was encountered",
            "an illegal instruction was encountered",
            "misaligned address",
            "invalid program counter",
            "hardware stack error",
            "operation not supported on global/shared address space",
        ),
        what="a kernel failed on it",
        fix="where only torch's own kernels ran, this GPU or its driver is the likelier reason: "
        + EXCLUDE_NODE_FIX
        + " and look "
        "for Xid in its dmesg; where CUDA or Triton kernels of your own ran, they are: with CUDA_LAUNCH_BLOCKING=1 the "
        "line that is named is where it failed, and theirs fail on other nodes too",
        show_line=True,
    ),
    DriverProblem(
        messages=("busy or unavailable", "exclusive-thread device already in use"),
        what="it is busy or does not answer",
        fix="end the other program on it (nvidia-smi), or start one rank per GPU: in the compute mode "
        "EXCLUSIVE_PROCESS (nvidia-smi -q -d COMPUTE) it takes one process; where nobody uses it, " + EXCLUDE_NODE_FIX,
    ),
    DriverProblem(
        messages=("no kernel image is available", "device kernel image is invalid"),
        what="there is no code for this kind of GPU",
        fix="take other GPUs, or the image that docs/image.md names for these; build kernels of your own for these too",
        code=ExitCode.IMAGE_MISMATCH,
    ),
    DriverProblem(
        messages=(
            "CUDA driver version is insufficient",
            "driver on your system is too old",
            "compiled with an unsupported toolchain",
            "forward compatibility was attempted",
        ),
        what="its driver does not run this image's CUDA",
        fix="{doctor} names the image that runs with this driver (docs/image.md); or ask "
        "the administrator for a newer one",
        code=ExitCode.IMAGE_MISMATCH,
    ),
    DriverProblem(
        messages=("invalid device ordinal", "no CUDA-capable device is detected"),
        what="CUDA does not find it",
        fix="compare nvidia-smi -L with CUDA_VISIBLE_DEVICES; where a GPU is missing from the list, "
        + EXCLUDE_NODE_FIX,
    ),
    DriverProblem(
        messages=(
            "unknown error",
            "initialization error",
            "system not yet initialized",
            "unsupported display driver / cuda driver combination",
            "the launch timed out and was terminated",
            "MPS client",
            "MPS server",
        ),
        what="CUDA does not run on it",
        fix="{doctor} starts CUDA, and has a fix for each of its errors; " + EXCLUDE_NODE_FIX,
    ),
    DriverProblem(
        messages=("device-side assert triggered",),
        what="an index was out of range there (a device-side assert)",
        fix="labels must be 0 to classes - 1 ({check}); in a model "
        "or data of your own look at indexes, embeddings and outputs: with CUDA_LAUNCH_BLOCKING=1 the line that is "
        "named is where it failed",
        code=ExitCode.DATA,
        show_line=True,
    ),
)
_OTHER_PROBLEM = DriverProblem(fix=f"see what `nvidia-smi` and dmesg say; {_EXCLUDE_FIX}")


_WHAT = {
    "nvml": "NVML cannot open the GPUs of this machine",
    "cuda": "CUDA does not start here, although NVML lists GPUs",
}


def driver_failure(library: Literal["nvml", "cuda"], error: int, message: str) -> Failure:
    """The Failure for a driver that does not answer. error: nvmlInit's or cuInit's. message: the library's words."""
    problem = next((problem for problem in DRIVER_PROBLEMS if error in getattr(problem, library)), _OTHER_PROBLEM)
    return Failure(_WHAT[library], found=message, fix=problem.fix + CPU_FIX, code=problem.code)


def problem_of_message(message: str) -> DriverProblem | None:
    """What a message of CUDA to a running program means; None for one that says nothing of the GPU or its driver."""
    return next((each for each in DRIVER_PROBLEMS if any(part in message for part in each.messages)), None)


# How CUDA starts

CUDA_PROBE: Final = os.path.join(os.path.dirname(__file__), "cuda_probe.py")
COMPAT_VARIABLE: Final = "CUDA_COMPAT"
COMPAT_LIBRARY: Final = "libcuda.so.1"


def refuse_broken_driver(environ: Mapping[str, str], ranks: int, root: StrPath = "/") -> None:
    """Start CUDA in a process of its own. A broken driver may hang or crash.

    Raises:
        Failure: CUDA does not start, or shows fewer GPUs than this task has ranks.
    """
    command = [sys.executable, "-I", "-S", CUDA_PROBE]
    variables = {**environ, **rank_variables(environ)}
    done = subprocess.run(command, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    answer = done.stdout.splitlines()
    if not answer and done.returncode > 0:  # Python's own, of an exception
        raise library_failure(COMPAT_LIBRARY, done.stderr.strip().rpartition("\n")[2], root)
    error = int(answer[0]) if answer else done.returncode
    if error:
        words = f"cuInit returns {', '.join(answer[:3])}" if answer else f"cuInit ends its process with signal {-error}"
        raise driver_failure("cuda", error, words)
    if answer[3:] and int(answer[3]) < ranks:
        words = f"number of GPUs that CUDA shows: {answer[3]}; ranks of this task: {ranks}"
        raise driver_failure("cuda", CUDA_NO_DEVICE, words)


def compat_folder(
    environ: Mapping[str, str], driver_cuda: tuple[int, int] | None, torch_cuda: tuple[int, int] | None
) -> str | None:
    """The folder of CUDA_COMPAT that ranks have to find their driver's library in; None if the driver's own will do.

    It holds a newer driver's libraries, which let this image's CUDA run on an older driver. NVIDIA calls them
    cuda-compat; they work on data-center GPUs. Beside a driver that is new enough they make CUDA fail (error 803), so
    they are used only beside one of an older major version.
    Source: NVIDIA, "CUDA Compatibility" (forward compatibility).

    Raises:
        Failure: NO_INPUT if CUDA_COMPAT names a folder without that library.
    """
    folder = environ.get(COMPAT_VARIABLE)
    if not folder or not driver_cuda or not torch_cuda or driver_cuda[0] >= torch_cuda[0]:
        return None
    if not os.path.exists(os.path.join(folder, COMPAT_LIBRARY)):
        raise Failure(
            f"{COMPAT_VARIABLE} names a folder without {COMPAT_LIBRARY}",
            found=f"{COMPAT_VARIABLE}={folder}",
            expected="the folder of NVIDIA's cuda-compat package, such as /usr/local/cuda-13.2/compat",
            fix=f"bind that folder ({engines.fix('bind', ', ', target=folder)}), or unset {COMPAT_VARIABLE}",
            code=ExitCode.NO_INPUT,
        )
    return folder


def rank_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """LD_LIBRARY_PATH of ranks that need the folder: before the one that Apptainer and Docker put the driver in.

    Empty where none is needed.

    Raises:
        Failure: as `compat_folder` and `list_gpus`.
    """
    if not environ.get(COMPAT_VARIABLE):
        return {}
    torch = images.installed_torch_versions()
    torch_cuda = images.parse_version(torch[1]) if torch and torch[1] else None
    folder = compat_folder(environ, _with_nvml(_read_driver_cuda), torch_cuda)
    if folder is None:
        return {}
    rest = environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": f"{folder}:{rest}" if rest else folder}
