"""From what CUDA, its libraries and NCCL say to what can be done: one table for all that computes."""

from __future__ import annotations

import re
import socket
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from entrypoint import ExitCode, Failure

# torch has a type only for its own allocator's lack of memory. The others' words are those of libcudart, libcublas and
# libcudnn (9) themselves, as torch 2.15 hands them on: AcceleratorError, a RuntimeError, or NCCL's last error.
FULL: Final = re.compile(
    r"CUDA[^\n]*out of memory|Cuda failure[^\n]*'out of memory'"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_\w*DEVICE_ALLOCATION_FAILED"
)
CUDA: Final = re.compile(r"(?:CUDA (?:driver )?error: |Cuda failure (?:\d+ )?'|Triton Error \[CUDA\]: )([^\n']+)")
SHARED: Final = re.compile(r"shared memory (?:segment|file)|/dev/shm/nccl|No space left on device")
NCCL: Final = "NCCL: "
LAST: Final = "Last error:"  # below it torch shows what NCCL warned of last
PACKAGES: Final = tuple(Path(torch.__file__).parents[1] / name for name in ("torch", "accelerate"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Errors with one remedy. signs: CUDA's words. line: the program may be the reason, so that its line is told."""

    signs: tuple[str, ...]
    what: str
    fix: str
    code: ExitCode = ExitCode.NODE
    line: bool = False


LEAVE: Final = "leave this node out (srun --exclude={host})"
KINDS: Final = (
    Kind(
        signs=("uncorrectable ECC error", "uncorrectable NVLink error", "over nvlink or a hardware error"),
        what="its hardware reports an error that it cannot correct",
        fix=LEAVE + " and report it: nvidia-smi -q -d ECC shows its memory; a reset of the GPU may help",
    ),
    Kind(
        signs=(
            "unspecified launch failure",
            "an illegal memory access was encountered",
            "an illegal instruction was encountered",
            "misaligned address",
            "invalid program counter",
            "hardware stack error",
            "operation not supported on global/shared address space",
        ),
        what="a kernel failed on it",
        fix="where only torch's own kernels ran, this GPU or its driver is the likelier reason: " + LEAVE + " and look "
        "for Xid in its dmesg; where CUDA or Triton kernels of your own ran, they are: with CUDA_LAUNCH_BLOCKING=1 the "
        "line that is named is where it failed, and theirs fail on other nodes too",
        line=True,
    ),
    Kind(
        signs=("busy or unavailable", "exclusive-thread device already in use"),
        what="it is busy or does not answer",
        fix="end the other program on it (nvidia-smi), or start one rank per GPU: in the compute mode "
        "EXCLUSIVE_PROCESS (nvidia-smi -q -d COMPUTE) it takes one process; where nobody uses it, " + LEAVE,
    ),
    Kind(
        signs=("no kernel image is available", "device kernel image is invalid"),
        what="there is no code for this kind of GPU",
        fix="take other GPUs, or an image whose torch was built for these (torch.cuda.get_arch_list() tells); build "
        "kernels of your own for these too",
    ),
    Kind(
        signs=("invalid device ordinal", "no CUDA-capable device is detected"),
        what="CUDA does not find it",
        fix="compare nvidia-smi -L with CUDA_VISIBLE_DEVICES; where a GPU is missing from the list, " + LEAVE,
    ),
    Kind(
        signs=(
            "unknown error",
            "initialization error",
            "system not yet initialized",
            "unsupported display driver / cuda driver combination",
            "CUDA driver version is insufficient",
            "compiled with an unsupported toolchain",
            "forward compatibility was attempted",
            "the launch timed out and was terminated",
            "MPS client",
            "MPS server",
        ),
        what="CUDA does not run on it",
        fix="entrypoint doctor compares the driver with torch's CUDA; " + LEAVE,
    ),
    Kind(
        signs=("device-side assert triggered",),
        what="an index was out of range there (a device-side assert)",
        fix="labels must be 0 to classes - 1 (train data check --config FILE); in a model or data of your own look at "
        "indexes, embeddings and outputs: with CUDA_LAUNCH_BLOCKING=1 the line that is named is where it failed",
        code=ExitCode.DATA,
        line=True,
    ),
)


def is_full(error: BaseException) -> bool:
    """Whether the GPU had no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or FULL.search(str(error)) is not None


def understood(error: BaseException, index: int | None = None) -> Failure | None:
    """The failure that `error` is: RESOURCE for want of memory, NODE or DATA as in the table; None for another.

    index: the GPU's, where it was not taken yet.
    """
    if is_full(error):
        fix = "end the other program that holds its memory (nvidia-smi), or take another GPU (CUDA_VISIBLE_DEVICES)"
        return Failure("out of GPU memory", found=f"{said(error)}; {gpu(index)}", fix=fix, code=ExitCode.RESOURCE)
    if said(error).startswith(NCCL) and SHARED.search(said(error)):
        return _no_shared_memory(error)
    told = CUDA.search(str(error))
    kind = next((one for one in KINDS if told and any(sign in told[1] for sign in one.signs)), None)
    if kind is None:
        return None
    found = said(error) + (_noticed(error) if kind.line else "")
    fix = kind.fix.format(host=socket.gethostname())
    return Failure(f"{gpu(index)}: {kind.what}", found=found, fix=fix, code=kind.code)


def said(error: BaseException) -> str:
    """The error in one line: of NCCL's the reason, which stands below its kind and its version."""
    text = str(error).strip() or type(error).__name__
    reasons = text.partition(LAST)[2].strip().splitlines() if "NCCL error" in text else []
    return f"{NCCL}{reasons[0]}" if reasons else re.sub(r"^(NCCL error) in: [^,\n]*, ", r"\1: ", text.splitlines()[0])


def gpu(index: int | None = None) -> str:
    """This rank's GPU and host by name, as far as CUDA still tells them."""
    name = "GPU" if index is None else f"GPU {index}"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # after an error it may answer with the same one
            number = torch.cuda.current_device()
            facts = torch.cuda.get_device_properties(number)
            name = f"GPU {number} ({facts.name}, GPU-{facts.uuid})"
    return f"{name} of {socket.gethostname()}"


def _noticed(error: BaseException) -> str:
    """The last line that is not torch's: kernels run later than they are called, so it is not sure."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not _of_torch(one.filename)]
    return f"; noticed at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _of_torch(path: str) -> bool:
    return path.startswith("<") or any(Path(path).is_relative_to(package) for package in PACKAGES)


def _no_shared_memory(error: BaseException) -> Failure:
    return Failure(
        f"NCCL got no shared memory on {socket.gethostname()}",
        found=said(error),
        fix="give the container more of it (docker run --shm-size=8g or --ipc=host), or free it: df -h /dev/shm",
        code=ExitCode.RESOURCE,
    )
