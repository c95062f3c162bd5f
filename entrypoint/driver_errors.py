"""An error of NVML or of CUDA's driver becomes a Failure with the fix of that error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from entrypoint.errors import ExitCode, Failure

FIX_BY_CONTAINER_ENGINE = {
    "apptainer": "start the container with --nv: apptainer exec --nv ...",
    "docker": "start the container with --gpus all: docker run --gpus all ... (podman: --device nvidia.com/gpu=all), "
    "and with NVIDIA_DRIVER_CAPABILITIES=compute,utility; if only links of libraries are missing (CDI), run `ldconfig` "
    "in the container, and `sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml` on its host",
    "none": "see what `nvidia-smi` says on this host; the kernel driver and its libraries must fit together, and have "
    "their links (`ldconfig`); in a container of pyxis or enroot: export NVIDIA_VISIBLE_DEVICES=all "
    "NVIDIA_DRIVER_CAPABILITIES=compute,utility before srun",
}
CPU_FIX = "; or train without GPUs: --device cpu"
CUDA_NO_DEVICE = 100
_EXCLUDE_FIX = "leave this node out (srun --exclude) and report it"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverProblem:
    """A cause, its fix, and the errors by which NVML and CUDA (cuInit) tell it.

    code: IMAGE_MISMATCH where the next node gives the same answer: job scripts start again on another one after NODE.
    """

    fix: str
    nvml: tuple[int, ...] = ()
    cuda: tuple[int, ...] = ()
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
        "lib64/stubs) out of LD_LIBRARY_PATH; start the container with --nv or --gpus all",
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
