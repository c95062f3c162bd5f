"""This module chooses a rank's device and precision, and explains errors of CUDA and NCCL.

Every module that computes asks it to turn a message of CUDA, its libraries or NCCL into a Failure with a fix; what
each error of CUDA means stands in the launcher's table of the driver's problems.
"""

from __future__ import annotations

import re
import socket
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch

from entrypoint import ExitCode, Failure, Handover, engines, nvidia, shell_command
from train.config import checks
from train.config.precisions import PRECISIONS

# torch has an exception type only for its own allocator. The other messages are those of libcudart,
# libcublas and libcudnn (9), which torch 2.11 to 2.15 pass on: in an AcceleratorError, a RuntimeError,
# or as NCCL's last error.
OUT_OF_MEMORY_PATTERN: Final = re.compile(
    r"CUDA[^\n]*out of memory|Cuda failure[^\n]*'out of memory'"
    r"|CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|CUDNN_STATUS_\w*DEVICE_ALLOCATION_FAILED"
)
CUDA_ERROR_PATTERN: Final = re.compile(
    r"(?:CUDA (?:driver )?error: |Cuda failure (?:\d+ )?'|Triton Error \[CUDA\]: "
    r"|(?=The NVIDIA driver on your system is too old))([^\n']+)"  # torch's own words, in c10
)
SHARED_MEMORY_PATTERN: Final = re.compile(r"shared memory (?:segment|file)|/dev/shm/nccl|No space left on device")
# What torch's two NCCL backends write. That of torch 2.11 (NCCLUtils.hpp; in 2.15 with TORCH_DIST_USE_NCCL2=0) raises
# DistBackendError, that of torch 2.15 (nccl2/ProcessGroupNCCL.cpp) RuntimeError. Both repeat ncclGetErrorString.
NCCL_ERROR_PATTERN: Final = re.compile(
    r"NCCL (?:error|timeout) in: |NCCL [\w ]+ failed|NCCL Async Error|NCCL operation timed out"
    r"|NCCL communicator was aborted|Failed to (?:initialize NCCL communicator|get NCCL unique ID)"
)
# What NCCL warned of last: the older backend writes it below a line of its own, the newer one behind its name.
NCCL_LAST_ERROR_PATTERN: Final = re.compile(r"^(?:Last error:\n|NCCL Last Error: )(\S.*)", re.MULTILINE)
NCCL_WARNING_PATTERN: Final = re.compile(r" NCCL WARN (\S.*)")  # in what NCCL writes itself with NCCL_DEBUG=WARN
NCCL_CUDA_ERROR: Final = "unhandled cuda error"
LIBRARY_FOLDERS: Final = tuple(Path(torch.__file__).parents[1] / name for name in ("torch", "accelerate"))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the GPU had no memory left."""
    return isinstance(error, torch.OutOfMemoryError) or OUT_OF_MEMORY_PATTERN.search(str(error)) is not None


def failure_from_error(error: BaseException, index: int | None = None) -> Failure | None:
    """Translate an error of CUDA or NCCL into a Failure; None if neither of them reported it.

    The code is RESOURCE if memory is short, else the table's, else PEER for what NCCL reports.

    index: the GPU's index, if this rank has not set its device yet.
    """
    if is_out_of_memory(error):
        fix = "end the other program that holds its memory (nvidia-smi), or take another GPU (CUDA_VISIBLE_DEVICES)"
        return Failure(
            "out of GPU memory",
            found=f"{summarize_error(error)}; {describe_gpu(index)}",
            fix=fix,
            code=ExitCode.RESOURCE,
        )
    if is_nccl_error(error) and SHARED_MEMORY_PATTERN.search(summarize_error(error)):
        return _shared_memory_failure(error)
    match = CUDA_ERROR_PATTERN.search(str(error))
    problem = nvidia.problem_of_message(match[1]) if match else None
    if problem is None:
        return _nccl_failure(error) if is_nccl_error(error) else None
    return Failure(
        f"{describe_gpu(index)}: {problem.what}",
        found=summarize_error(error) + (_last_user_line(error) if problem.show_line else ""),
        fix=problem.fix.format(
            host=socket.gethostname(),
            doctor=shell_command("entrypoint doctor"),
            check=shell_command("train data check", same_config=True),
        ),
        code=problem.code,
    )


def is_nccl_error(error: BaseException) -> bool:
    """Whether NCCL reported it, through either of torch's backends."""
    return isinstance(error, RuntimeError) and NCCL_ERROR_PATTERN.search(str(error)) is not None


def add_nccl_warning(error: Exception, warnings: str) -> Exception:
    """Add the last of NCCL's own `warnings` to an NCCL error without a reason.

    While NCCL starts, torch 2.15 gives only the type of the error.
    """
    reasons = NCCL_WARNING_PATTERN.findall(warnings)
    if not reasons or not is_nccl_error(error) or NCCL_LAST_ERROR_PATTERN.search(str(error)):
        return error
    return RuntimeError(f"{error}\nNCCL Last Error: {reasons[-1]}").with_traceback(error.__traceback__)


def summarize_error(error: BaseException) -> str:
    """The error in one line. NCCL writes the reason below the type of the error and the version."""
    text = str(error).strip() or type(error).__name__
    if is_nccl_error(error) and (reason := NCCL_LAST_ERROR_PATTERN.search(text)):
        return f"NCCL: {reason[1].strip()}"
    return re.sub(r"^(NCCL error) in: [^,\n]*, ", r"\1: ", text.splitlines()[0].strip())


def describe_gpu(index: int | None = None) -> str:
    """This rank's GPU and host by name, if CUDA still answers."""
    name = "GPU" if index is None else f"GPU {index}"
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        with suppress(RuntimeError):  # after an error, CUDA may report it again
            current = torch.cuda.current_device()
            properties = torch.cuda.get_device_properties(current)
            name = f"GPU {current} ({properties.name}, GPU-{properties.uuid})"
    return f"{name} of {socket.gethostname()}"


def _last_user_line(error: BaseException) -> str:
    """The last line outside torch. It is a guess: kernels run later than they are called."""
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if not _is_library_file(frame.filename)]
    return f"; noticed at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""


def _is_library_file(path: str) -> bool:
    return path.startswith("<") or any(Path(path).is_relative_to(package) for package in LIBRARY_FOLDERS)


def _shared_memory_failure(error: BaseException) -> Failure:
    return Failure(
        f"NCCL got no shared memory on {socket.gethostname()}",
        found=summarize_error(error),
        fix=f"give the container more of it: {engines.fix('shm')}; or free it: df -h /dev/shm",
        code=ExitCode.RESOURCE,
    )


def _nccl_failure(error: BaseException) -> Failure:
    again = "; where it fails each time, NCCL_DEBUG=INFO tells more"
    if NCCL_CUDA_ERROR in str(error):
        return Failure(
            f"{describe_gpu()}: CUDA failed in NCCL",
            found=summarize_error(error),
            fix=nvidia.EXCLUDE_NODE_FIX.format(host=socket.gethostname()) + again,
            code=ExitCode.NODE,
        )
    return Failure(
        f"NCCL failed on {socket.gethostname()}: the network, or another rank",
        found=summarize_error(error),
        fix="look at the first error in logs/ and errors/; start the same command again to resume" + again,
        code=ExitCode.PEER,
    )


THREADS_VARIABLE: Final = "OMP_NUM_THREADS"


def choose_device(device_type: str, local_rank: int) -> torch.device:
    """Set and return this rank's device. A rank that sees only one GPU uses it, whatever local_rank is.

    Raises:
        Failure: NODE if CUDA finds no GPU for this rank or cannot use it; IMAGE_MISMATCH if the
            driver does not run this image's CUDA; RESOURCE if other programs fill its memory.
    """
    if device_type == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    index = 0 if count == 1 else local_rank
    if index >= count:
        raise Failure(
            f"CUDA finds no GPU for local rank {local_rank}",
            found=f"{count} usable GPUs",
            expected=f"{local_rank + 1} or more, or exactly one for this rank alone",
            fix=f"{shell_command('entrypoint doctor')} says why (a container needs {engines.GPU_OPTIONS}); or use "
            "--device cpu",
            code=ExitCode.NODE,
        )
    try:
        torch.cuda.set_device(index)  # the first call that initializes CUDA
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        raise failure_from_error(error, index) or _unusable_gpu_failure(index, error) from error
    return torch.device("cuda", index)


def gpu_uuid(device: torch.device) -> str:
    """A GPU's UUID, which shows whether two ranks use the same GPU; empty on the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _unusable_gpu_failure(index: int, error: Exception) -> Failure:
    return Failure(
        f"CUDA cannot use {describe_gpu(index)}",
        found=summarize_error(error),
        fix=f"{shell_command('entrypoint doctor')} says what is wrong with it; or "
        + nvidia.EXCLUDE_NODE_FIX.format(host=socket.gethostname()),
        code=ExitCode.NODE,
    )


def choose_precision(requested: str, device: torch.device) -> str:
    """Return the precision in effect: auto is bf16 on GPUs that have it, else fp32.

    Raises:
        Failure: USAGE for a precision that the device would ignore or emulate.
    """
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if requested == "auto":
        return "bf16" if has_bf16 else "fp32"
    entry = PRECISIONS[requested]
    emulated = entry.autocast_dtype == "bfloat16" and not has_bf16
    if emulated if device.type == "cuda" else not entry.on_cpu:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        raise checks.impossible_precision_failure(requested, name)
    return requested


def describe_precision(precision: str, device: torch.device, *, tf32: bool) -> str:
    """Describe the precision in effect for the banner."""
    description = PRECISIONS[precision].description
    if not description and device.type == "cuda":
        description = "TF32 on: train.tf32" if tf32 else "TF32 off"
    return f"{precision} ({description})" if description else precision


def allow_tf32(allowed: bool) -> None:
    """Allow or forbid TF32 for all of CUDA's matrix products and convolutions: torch's defaults differ.

    The two older switches are set: after them, torch 2.15 answers through its old and its new names
    (fp32_precision). After the new ones, code that reads the old names raises. The CPU is not touched.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def set_up_cudnn(device: torch.device, *, repeatable: bool) -> None:
    """Let cuDNN take only kernels that give the same bits each time, or choose the fastest by timing them."""
    if device.type == "cuda":
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = repeatable, not repeatable


def use_bitwise_arithmetic(device_type: str, environ: MutableMapping[str, str]) -> None:
    """Give the same bits for the same run on another number of ranks. Call it before CUDA is initialized.

    GPUs use kernels that always add in the same order, or refuse. The CPU always uses the same number
    of threads: the user's, else 1, since the number that our parent sets depends on the ranks.
    """
    if device_type == "cuda":
        environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
        # It would cost a kernel for each new tensor and find only mistakes that show anyway.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    elif THREADS_VARIABLE not in environ or THREADS_VARIABLE in Handover.from_environ(environ).added:
        torch.set_num_threads(1)


def describe_arithmetic(device: torch.device) -> dict[str, str | int]:
    """What the bits of a computation depend on besides the program: device, threads, torch."""
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device), "torch": torch.__version__}
    capability = torch.backends.cpu.get_cpu_capability()
    return {"device": f"CPU, {capability}", "threads": torch.get_num_threads(), "torch": torch.__version__}
