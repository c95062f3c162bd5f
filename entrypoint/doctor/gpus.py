"""The GPUs that this process may use: which they are, and whether each is sound, free and at full speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from entrypoint.doctor import driver, reading
from entrypoint.doctor.findings import Finding, fail, ok, warn
from entrypoint.doctor.nvml import Gpu, Reading, read
from entrypoint.doctor.scene import Scene
from entrypoint.host import container, nvml_gpus, visible

_BUSY = 0.05  # of a GPU's memory: less is what the driver itself and a desktop take
_RESET = "ask the administrator to reset the GPU; srun --exclude=HOST until then"
FLAGS = {
    "apptainer": "start the container with --nv: apptainer exec --nv ...",
    "docker": "start the container with --gpus all: docker run --gpus all ...",
    "none": "see what `nvidia-smi` says on this host; the kernel driver and libnvidia-ml.so must fit together",
}


def check(scene: Scene) -> list[Finding]:
    """All about the GPUs and their driver."""
    if scene.options.device == "cpu":
        return [ok("gpus", "not looked at: --device cpu")]
    found = read()
    if found is None or not found.gpus:
        return [unseen(scene)]
    gpus = used(found, nvml_gpus(), scene.environ.get("CUDA_VISIBLE_DEVICES"))
    return [*findings(found, gpus), *driver.findings(found, reading.torch_cuda())]


def brief(scene: Scene) -> list[Finding]:
    """Without what is as it is on this board; and without memory that may be a neighbour task's of the same run."""
    alone = scene.ranks_of_task == scene.ranks_here
    left_out = ("peer access",) if alone else ("peer access", "gpu memory")
    return [finding for finding in check(scene) if finding.name not in left_out]


def unseen(scene: Scene) -> Finding:
    """No GPU shows: because there is none, or because the container was started without them."""
    version = reading.driver_of_host(scene.root)
    if version is None:
        return ok("gpus", "this machine has no NVIDIA driver: training would compute on the CPU")
    text = f"this machine has the NVIDIA driver {version}, but no GPU can be used here"
    return fail("gpus", text, f"{FLAGS[container(scene.root)]}; to train without GPUs: --device cpu")


def used(found: Reading, pairs: Iterable[tuple[str, tuple[str, ...]]], wanted: str | None) -> tuple[Gpu, ...]:
    """Those that CUDA would show, in its order; of a MIG instance the GPU that it is a part of.

    pairs: each GPU's UUID with those of its instances. wanted: CUDA_VISIBLE_DEVICES.
    """
    pairs = tuple(pairs)
    owner = {name: uuid for uuid, instances in pairs for name in (uuid, *instances)}
    by_uuid = {gpu.uuid: gpu for gpu in found.gpus}
    return tuple(dict.fromkeys(by_uuid[owner[name]] for name in visible(pairs, wanted)))


def findings(found: Reading, gpus: tuple[Gpu, ...]) -> list[Finding]:
    """For the GPUs that are used: one line that lists them, one for each trouble."""
    if not gpus:
        text = f"CUDA_VISIBLE_DEVICES hides all {len(found.gpus)} GPUs: training would compute on the CPU"
        return [warn("gpus", text, "unset CUDA_VISIBLE_DEVICES, or say --device cpu")]
    kinds = ", ".join(dict.fromkeys(f"{gpu.name} with {gpu.memory_mib / 1024:.0f} GiB" for gpu in gpus))
    listed = [ok("gpus", f"{len(gpus)} of {len(found.gpus)}: {kinds}: {' '.join(gpu.uuid for gpu in gpus)}")]
    return [*listed, *_mixed(gpus), *(one for gpu in gpus for one in _troubles(gpu)), *_apart(found, gpus)]


def _troubles(gpu: Gpu) -> list[Finding]:
    return [finding for look in TROUBLES if (finding := look(gpu))]


def _ecc(gpu: Gpu) -> Finding | None:
    if gpu.worn_out:
        return fail("ecc", f"{_called(gpu)}: a broken row of its memory could not be replaced", _RESET)
    if gpu.uncorrected:
        return fail("ecc", f"{_called(gpu)}: {gpu.uncorrected} uncorrected memory errors", _RESET)
    if gpu.to_replace:
        return warn("ecc", f"{_called(gpu)}: broken memory is replaced only at the next reset", _RESET)
    return None


def _slowed(gpu: Gpu) -> Finding | None:
    if not gpu.slowed:
        return None
    fix = "look at its cooling and power (nvidia-smi -q -d PERFORMANCE), or take another node"
    return warn("throttling", f"{_called(gpu)}: {', '.join(gpu.slowed)}", fix)


def _taken(gpu: Gpu) -> Finding | None:
    if gpu.programs == 0 and gpu.used_mib <= gpu.memory_mib * _BUSY:
        return None
    text = f"{_called(gpu)}: {gpu.used_mib / 1024:.1f} of {gpu.memory_mib / 1024:.1f} GiB are taken already"
    return warn(
        "gpu memory", f"{text}, by {gpu.programs} programs", "end what runs there (nvidia-smi names it), if yours"
    )


def _prohibited(gpu: Gpu) -> Finding | None:
    if not gpu.prohibited:
        return None
    fix = "ask the administrator: nvidia-smi --compute-mode=DEFAULT"
    return fail("compute mode", f"{_called(gpu)} refuses compute programs (mode PROHIBITED)", fix)


TROUBLES: tuple[Callable[[Gpu], Finding | None], ...] = (_ecc, _prohibited, _slowed, _taken)


def _mixed(gpus: tuple[Gpu, ...]) -> list[Finding]:
    names = sorted({gpu.name for gpu in gpus})
    if len(names) == 1:
        return []
    text = f"the GPUs differ ({', '.join(names)}): all ranks wait for the slowest at each step"
    return [warn("gpu kinds", text, "choose equal ones with CUDA_VISIBLE_DEVICES")]


def _apart(found: Reading, gpus: tuple[Gpu, ...]) -> list[Finding]:
    """Pairs of used GPUs whose copies go through the host's memory."""
    indices = {gpu.index for gpu in gpus}
    pairs = [f"{i}-{j}" for i, j in found.apart if {i, j} <= indices]
    if len(gpus) < 2 or not pairs:
        return [ok("peer access", "all GPUs reach each other's memory")] if len(gpus) > 1 else []
    text = f"no direct copies between GPUs {', '.join(pairs[:8])}: gradients go through the host's memory, slower"
    fix = (
        "nothing, if the board has no such path; if a start hangs: NCCL_P2P_DISABLE=1, and IOMMU or ACS off in the BIOS"
    )
    return [warn("peer access", text, fix)]


def _called(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name}, {gpu.uuid})"
