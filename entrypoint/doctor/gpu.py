"""The GPU checks list the usable GPUs and find those that are broken, in use or slow.

They also tell whether the installed torch runs on this driver and these GPUs, and name the image
that does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from entrypoint import images
from entrypoint.accelerators import nvidia
from entrypoint.accelerators.nvidia import Gpu, Snapshot
from entrypoint.doctor.context import CheckContext, Finding, fail, ok, warn

_DRIVER_FINDING = "driver"


def torch_findings(
    snapshot: Snapshot,
    gpus: tuple[Gpu, ...],
    torch: tuple[str, str | None] | None,
    environ: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Whether the installed torch (its version, its CUDA) runs on the driver and on the used GPUs."""
    if snapshot.cuda is None:
        return [warn(_DRIVER_FINDING, f"driver {snapshot.driver} does not report which CUDA it supports", _LIBCUDA_FIX)]
    driver = f"driver {snapshot.driver} supports CUDA {_format_version(snapshot.cuda)}"
    if torch is None:
        return [warn(_DRIVER_FINDING, f"{driver}; no torch is installed", "install torch, if this Python is to train")]
    version, torch_cuda = torch
    if torch_cuda is None:
        return [fail(_DRIVER_FINDING, f"{driver}, but torch {version} is a build for the CPU only", _CUDA_BUILD_FIX)]
    needed = images.parse_version(torch_cuda)
    image_fix = images.fix(snapshot.cuda, [gpu.capability for gpu in gpus if gpu.capability])
    text = f"{driver}; torch {version} was built for CUDA {torch_cuda}"
    if folder := nvidia.compat_folder(environ or {}, snapshot.cuda, needed):
        text = f"{text}: the driver is too old by itself, and {nvidia.COMPAT_VARIABLE}={folder} is used"
    elif snapshot.cuda[0] < needed[0]:
        return [fail(_DRIVER_FINDING, f"{text}: the driver is too old", image_fix)]
    enough = ": it runs, one major version is enough" if snapshot.cuda < needed else ""
    findings = [ok(_DRIVER_FINDING, text + enough)]
    identity = (version.partition("+")[0], needed)  # of another torch the architectures are not known
    image = next((each for each in images.IMAGES.values() if (each.torch, each.cuda) == identity), None)
    without_code = [gpu for gpu in gpus if image and gpu.capability and not image.has_code_for(gpu.capability)]
    if without_code:
        names = ", ".join(
            dict.fromkeys(f"{gpu.name} ({_format_version(gpu.capability or (0, 0))})" for gpu in without_code)
        )
        text = f"torch {version} has no code for the compute capability of {names}"
        findings.append(fail("architecture", text, image_fix))
    return findings


# With older drivers, RTX 40 GPUs offer direct copies that do not work. Source: accelerate, check_cuda_p2p_ib_support.
_RTX_40_DRIVER = (550, 40, 7)


def rtx_40_findings(snapshot: Snapshot, gpus: tuple[Gpu, ...], environ: Mapping[str, str]) -> list[Finding]:
    """Whether several RTX 40 GPUs would exchange gradients by direct copies that their driver does not support."""
    driver = tuple(int(part) for part in snapshot.driver.split(".") if part.isdecimal())
    turned_off = all(environ.get(name) for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"))
    if len(gpus) < 2 or turned_off or driver >= _RTX_40_DRIVER or not any("RTX 40" in gpu.name for gpu in gpus):
        return []
    text = f"driver {snapshot.driver} offers RTX 40 GPUs direct copies that do not work: NCCL would hang"
    fix = "export NCCL_P2P_DISABLE=1 NCCL_IB_DISABLE=1, or install driver 550.40.07 or newer"
    return [fail("direct copies", text, fix)]


_LIBCUDA_FIX = (
    "its libcuda.so.1 has to be here: NVIDIA_DRIVER_CAPABILITIES=compute,utility for docker, --nv for apptainer"
)
_CUDA_BUILD_FIX = "install a CUDA build of torch (pip from an index that has one), or use the project's image"


def _format_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


_BUSY_MEMORY_FRACTION = 0.05  # of a GPU's memory; the driver and a desktop use less
_RESET_FIX = "ask the administrator to reset the GPU; srun --exclude=HOST until then"


def check(context: CheckContext) -> list[Finding]:
    """Check the GPUs and their driver."""
    if context.options.device == "cpu":
        return [ok("gpus", "not looked at: --device cpu")]
    visible = context.environ.get(nvidia.VISIBLE_VARIABLE)
    snapshot = nvidia.read_snapshot(context.root, strict=not nvidia.hides_all_gpus(visible))
    if snapshot is None or not snapshot.gpus:
        return [ok("gpus", "no NVIDIA driver works here: training would compute on the CPU")]
    gpus = select_used_gpus(snapshot, visible)
    return [
        *gpu_findings(snapshot, gpus),
        *torch_findings(snapshot, gpus, images.installed_torch_versions(), context.environ),
        *rtx_40_findings(snapshot, gpus, context.environ),
    ]


def preflight(context: CheckContext) -> list[Finding]:
    """The check without fixed properties of the board and without memory of other tasks."""
    is_only_task = context.ranks_of_task == context.ranks_on_node
    left_out = ("peer access",) if is_only_task else ("peer access", "gpu memory")
    return [finding for finding in check(context) if finding.name not in left_out]


def check_cuda(context: CheckContext) -> list[Finding]:
    """Start CUDA in a process of its own, if ranks will compute on GPUs. A broken driver may hang or crash.

    Raises:
        Failure: CUDA does not start.
    """
    if context.plan is None or context.plan.device == "cpu":
        return []
    nvidia.refuse_broken_driver(context.environ, context.plan.spawn, context.root)
    return [ok("cuda", "CUDA starts")]


def select_used_gpus(snapshot: Snapshot, visible_devices: str | None) -> tuple[Gpu, ...]:
    """The GPUs that CUDA would show for this CUDA_VISIBLE_DEVICES, in its order; for a MIG instance its GPU."""
    owner = {uuid: gpu for gpu in snapshot.gpus for uuid in (gpu.uuid, *gpu.migs)}
    pairs = [(gpu.uuid, gpu.migs) for gpu in snapshot.gpus]
    return tuple(dict.fromkeys(owner[uuid] for uuid in nvidia.visible_gpus(pairs, visible_devices)))


def gpu_findings(snapshot: Snapshot, gpus: tuple[Gpu, ...]) -> list[Finding]:
    """For the GPUs that are used: one finding that lists them, and one for each problem."""
    if not gpus:
        text = f"CUDA_VISIBLE_DEVICES hides all {len(snapshot.gpus)} GPUs: training would compute on the CPU"
        return [warn("gpus", text, "unset CUDA_VISIBLE_DEVICES, or say --device cpu")]
    models = ", ".join(dict.fromkeys(f"{gpu.name} with {gpu.memory_mib / 1024:.0f} GiB" for gpu in gpus))
    findings = [ok("gpus", f"{len(gpus)} of {len(snapshot.gpus)}: {models}: {' '.join(gpu.uuid for gpu in gpus)}")]
    if len(names := sorted({gpu.name for gpu in gpus})) > 1:
        text = f"the GPUs differ ({', '.join(names)}): all ranks wait for the slowest at each step"
        findings.append(warn("gpu kinds", text, "choose equal ones with CUDA_VISIBLE_DEVICES"))
    findings += (finding for gpu in gpus for finding in _gpu_problems(gpu))
    indices = {gpu.index for gpu in gpus}
    if pairs := [f"{i}-{j}" for i, j in snapshot.pairs_without_p2p if {i, j} <= indices]:
        text = f"no direct copies between GPUs {', '.join(pairs[:8])}: gradients go through the host's memory, slower"
        fix = "nothing, if the board has no such path; if a start hangs: NCCL_P2P_DISABLE=1, and IOMMU or ACS off in "
        findings.append(warn("peer access", text, f"{fix}the BIOS"))
    elif len(gpus) > 1:
        findings.append(ok("peer access", "all GPUs reach each other's memory"))
    return findings


def _gpu_problems(gpu: Gpu) -> Iterator[Finding]:
    name = f"GPU {gpu.index} ({gpu.name}, {gpu.uuid})"
    if gpu.worn_out:
        yield fail("ecc", f"{name}: a broken row of its memory could not be replaced", _RESET_FIX)
    elif gpu.uncorrected:
        yield fail("ecc", f"{name}: {gpu.uncorrected} uncorrected memory errors", _RESET_FIX)
    elif gpu.to_replace:
        yield warn("ecc", f"{name}: broken memory is replaced only at the next reset", _RESET_FIX)
    if gpu.prohibited:
        fix = "ask the administrator: nvidia-smi --compute-mode=DEFAULT"
        yield fail("compute mode", f"{name} refuses compute programs (mode PROHIBITED)", fix)
    if gpu.slowed:
        fix = "look at its cooling and power (nvidia-smi -q -d PERFORMANCE), or take another node"
        yield warn("throttling", f"{name}: {', '.join(gpu.slowed)}", fix)
    if gpu.programs or gpu.used_mib > gpu.memory_mib * _BUSY_MEMORY_FRACTION:
        text = f"{name}: {gpu.used_mib / 1024:.1f} of {gpu.memory_mib / 1024:.1f} GiB are taken already"
        fix = "end what runs there (nvidia-smi names it), if yours"
        yield warn("gpu memory", f"{text}, by {gpu.programs} programs", fix)
