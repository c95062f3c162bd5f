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
# libcudnn (9) themselves, as torch 2.11 to 2.15 hand them on: AcceleratorError, a RuntimeError, or NCCL's last error.
FULL: Final = re.compile(
    r"CUDA[^\n]*out of memory|Cuda failure[^\n]*'out of memory'"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_\w*DEVICE_ALLOCATION_FAILED"
)
CUDA: Final = re.compile(r"(?:CUDA (?:driver )?error: |Cuda failure (?:\d+ )?'|Triton Error \[CUDA\]: )([^\n']+)")
SHARED: Final = re.compile(r"shared memory (?:segment|file)|/dev/shm/nccl|No space left on device")
# What torch's two NCCL backends write. That of torch 2.11 (NCCLUtils.hpp; in 2.15 with TORCH_DIST_USE_NCCL2=0) raises
# DistBackendError, that of torch 2.15 (nccl2/ProcessGroupNCCL.cpp) RuntimeError. Both repeat ncclGetErrorString.
NCCL_ERROR: Final = re.compile(
    r"NCCL (?:error|timeout) in: |NCCL [\w ]+ failed|NCCL Async Error|NCCL operation timed out"
    r"|NCCL communicator was aborted|Failed to (?:initialize NCCL communicator|get NCCL unique ID)"
)
# What NCCL warned of last: the older backend writes it below a line of its own, the newer one behind its name.
LAST_WARNING: Final = re.compile(r"^(?:Last error:\n|NCCL Last Error: )(\S.*)", re.MULTILINE)
OWN_WARNING: Final = re.compile(r" NCCL WARN (\S.*)")  # in what NCCL writes itself with NCCL_DEBUG=WARN
CUDAS_FAULT: Final = "unhandled cuda error"
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
    """The failure that `error` is; None where neither CUDA nor NCCL reported it.

    RESOURCE for want of memory, NODE or DATA as in the table, PEER for all else that NCCL reports.

    index: the GPU's, where it was not taken yet.
    """
    if is_full(error):
        fix = "end the other program that holds its memory (nvidia-smi), or take another GPU (CUDA_VISIBLE_DEVICES)"
        return Failure("out of GPU memory", found=f"{said(error)}; {gpu(index)}", fix=fix, code=ExitCode.RESOURCE)
    if is_nccl(error) and SHARED.search(said(error)):
        return _no_shared_memory(error)
    told = CUDA.search(str(error))
    kind = next((one for one in KINDS if told and any(sign in told[1] for sign in one.signs)), None)
    if kind is None:
        return _nccl_failed(error) if is_nccl(error) else None
    found = said(error) + (_noticed(error) if kind.line else "")
    fix = kind.fix.format(host=socket.gethostname())
    return Failure(f"{gpu(index)}: {kind.what}", found=found, fix=fix, code=kind.code)


def is_nccl(error: BaseException) -> bool:
    """Whether NCCL reported it, through either of torch's backends."""
    return isinstance(error, RuntimeError) and NCCL_ERROR.search(str(error)) is not None


def with_warning(error: Exception, warnings: str) -> Exception:
    """NCCL's error, with the last of NCCL's own `warnings` as its reason where torch gave none.

    While NCCL starts, torch 2.15 tells only the kind of the error.
    """
    own = OWN_WARNING.findall(warnings)
    if not own or not is_nccl(error) or LAST_WARNING.search(str(error)):
        return error
    return RuntimeError(f"{error}\nNCCL Last Error: {own[-1]}").with_traceback(error.__traceback__)


def said(error: BaseException) -> str:
    """The error in one line: of NCCL's the reason, which stands below its kind and its version."""
    text = str(error).strip() or type(error).__name__
    if is_nccl(error) and (reason := LAST_WARNING.search(text)):
        return f"NCCL: {reason[1].strip()}"
    return re.sub(r"^(NCCL error) in: [^,\n]*, ", r"\1: ", text.splitlines()[0].strip())


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


def _nccl_failed(error: BaseException) -> Failure:
    again = "; where it fails each time, NCCL_DEBUG=INFO tells more"
    if CUDAS_FAULT in str(error):
        return Failure(
            f"{gpu()}: CUDA failed in NCCL",
            found=said(error),
            fix=LEAVE.format(host=socket.gethostname()) + again,
            code=ExitCode.NODE,
        )
    return Failure(
        f"NCCL failed on {socket.gethostname()}: the network, or another rank",
        found=said(error),
        fix="look at the first error in logs/ and errors/; start the same command again to resume" + again,
        code=ExitCode.PEER,
    )
