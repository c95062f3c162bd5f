"""From what was asked for to the device and the precision that this rank has."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

import torch

from entrypoint import ExitCode, Failure
from train.ranks import devicefaults
from train.settings.variables import SET_BY_PARENT

THREADS: Final = "OMP_NUM_THREADS"


def choose_device(kind: str, local_rank: int) -> torch.device:
    """This rank's device. Where a rank sees one GPU only, it is its own, whatever local_rank says.

    Raises:
        Failure: NODE, where CUDA finds no GPU for this rank or cannot use it; RESOURCE, where others fill it.
    """
    if kind == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    index = 0 if count == 1 else local_rank
    if index >= count:
        raise Failure(
            f"CUDA finds no GPU for local rank {local_rank}",
            found=f"{count} usable GPUs",
            expected=f"{local_rank + 1} or more, or exactly one for this rank alone",
            fix="start the container with --nv (Apptainer) or --gpus all (Docker), or use --device cpu",
            code=ExitCode.NODE,
        )
    try:
        torch.cuda.set_device(index)  # the first that CUDA itself is asked for
    except (RuntimeError, torch.cuda.DeferredCudaCallError) as error:
        raise devicefaults.understood(error, index) or _unusable(index, error) from error
    return torch.device("cuda", index)


def _unusable(index: int, error: Exception) -> Failure:
    return Failure(
        f"CUDA cannot use {devicefaults.gpu(index)}",
        found=devicefaults.said(error),
        fix="entrypoint doctor says what is wrong with it; or take another node (srun --exclude)",
        code=ExitCode.NODE,
    )


def choose_precision(wanted: str, device: torch.device) -> str:
    """The precision in effect: auto is bf16 on GPUs that have it, else fp32.

    Raises:
        Failure: USAGE for one that the device would ignore or emulate.
    """
    has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    if wanted == "auto":
        return "bf16" if has_bf16 else "fp32"
    missing = {"fp16": device.type == "cpu", "bf16": device.type == "cuda" and not has_bf16}
    if missing.get(wanted, False):
        raise Failure(
            f"train.precision {wanted} is not possible on this device",
            found=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
            fix="set train.precision to auto, which takes the best that every device has "
            "(in a new run: another run.name)",
            code=ExitCode.USAGE,
        )
    return wanted


def describe(precision: str, device: torch.device, *, tf32: bool) -> str:
    """The precision in effect and what it means, for the banner."""
    if precision == "fp32" and device.type == "cpu":
        return "fp32"
    fp32 = "TF32 on: train.tf32" if tf32 else "TF32 off"
    means = {"fp32": fp32, "bf16": "autocast; weights in fp32", "fp16": "autocast, loss scaling; weights in fp32"}
    return f"{precision} ({means[precision]})"


def allow_tf32(allowed: bool) -> None:
    """Say for all of CUDA's products and convolutions whether TF32 may stand in for fp32: torch's own defaults differ.

    Set by the older two switches: torch 2.15 then answers questions in its old and its new words (fp32_precision),
    but raises in code that asks in the old ones after the new were used. The CPU is not touched.
    """
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def make_repeatable(device: torch.device) -> None:
    """The same run on the same number of ranks and threads gives the same bits: no kernels chosen by a stopwatch."""
    if device.type == "cuda":
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


def make_exact(kind: str, environ: MutableMapping[str, str]) -> None:
    """The same run on another number of ranks gives the same bits. To be called before CUDA starts.

    On GPUs by kernels that always add in the same order, or refuse. On the CPU by always the same number of threads:
    the user's own, else 1, since what our parent sets follows the number of ranks.
    """
    if kind == "cuda":
        environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
        # On, it costs a kernel for each new tensor, and finds mistakes that would show anyway.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    elif THREADS not in environ or THREADS in environ.get(SET_BY_PARENT, "").split(","):
        torch.set_num_threads(1)


def arithmetic(device: torch.device) -> dict[str, str | int]:
    """What the bits of a computation depend on beside the program: kind of device, threads, torch."""
    if device.type == "cuda":
        return {"device": torch.cuda.get_device_name(device), "torch": torch.__version__}
    kind = f"CPU, {torch.backends.cpu.get_cpu_capability()}"
    return {"device": kind, "threads": torch.get_num_threads(), "torch": torch.__version__}
