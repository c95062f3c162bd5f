"""This module translates exceptions of torch and the operating system into a Failure with a fix."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import distributed as dist

from entrypoint import ExitCode, Failure
from train import files
from train.config.batches import BatchSizes, largest_divisor
from train.data.workers import DEAD_WORKER_FIX
from train.distributed import device

# The messages of torch and gloo when another rank has gone; they have no exception type for it.
LOST_PEER_MESSAGES = ("Connection closed", "Connection reset", "Connection refused", "Timed out waiting", "Broken pipe")
COMMUNICATION_LAYERS = ("gloo", "NCCL", "ProcessGroup", "TCPStore", "store")


def as_failure(error: Exception, parts: BatchSizes | None = None, *, exact: bool = False) -> Failure | None:
    """Translate `error` into a Failure; None for a bug of ours.

    parts: the sizes of the batches, once they are known. exact: whether train.reproducible is bitwise.
    """
    if isinstance(error, Failure):
        return error
    if device.is_out_of_memory(error) or isinstance(error, MemoryError):
        return _out_of_memory_failure(
            error,
            suggest_bitwise_memory_fix(parts) if exact and parts else suggest_smaller_micro_batch(parts),
            parts.why if parts else "",
        )
    if fault := device.failure_from_error(error):
        return fault
    if isinstance(error, dist.DistError) or _is_lost_peer(error):
        return _lost_peer_failure(error)
    if "does not have a deterministic implementation" in str(error):
        return _nondeterministic_failure(error)
    if worker := next(filter(_is_dead_data_worker, _exception_chain(error)), None):
        return _dead_data_worker_failure(worker)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
        return files.os_error_failure(error, Path(error.filename or "."))
    return None


def _out_of_memory_failure(error: Exception, fix: str, why: str) -> Failure:
    where, details = "GPU" if device.is_out_of_memory(error) else "host", device.summarize_error(error)
    if where == "GPU" and not isinstance(
        error, torch.OutOfMemoryError
    ):  # torch's error says which process holds how much
        details, fix = f"{details}; {device.describe_gpu()}", f"see who else uses the GPU: nvidia-smi; else {fix}"
    tried = f"; the micro batch was found at the start ({why})" if why else ""
    return Failure(f"out of {where} memory", found=details + tried, fix=fix, code=ExitCode.RESOURCE)


def suggest_smaller_micro_batch(parts: BatchSizes | None) -> str:
    """Advice to halve the micro batch, with the numbers if they are known."""
    if parts is None:
        return "halve train.micro_batch_size: the global batch, and with it the training, stays the same"
    if parts.micro == 1:
        return "take more GPUs, a smaller model or smaller images: a micro batch is one sample already"
    micro = largest_divisor(parts.micro * parts.accumulation, parts.micro // 2)
    return (
        f"set train.micro_batch_size={micro} (it was {parts.micro}): the global batch of {parts.global_}, and with it "
        "the training, stays the same"
    )


def suggest_bitwise_memory_fix(parts: BatchSizes) -> str:
    """Advice for bitwise runs: their micro batch cannot change, because it decides the bits."""
    half = f"train.micro_batch_size={parts.micro // 2}" if parts.micro % 2 == 0 else "a smaller model"
    return (
        f"take GPUs with more memory, or more ranks: each adds up fewer gradients; or start over with {half} and "
        "another run.name (train.reproducible bitwise goes on with the same micro batches only)"
    )


def _is_lost_peer(error: Exception) -> bool:
    text = str(error)
    return (
        isinstance(error, RuntimeError)
        and any(t in text for t in LOST_PEER_MESSAGES)
        and any(p in text for p in COMMUNICATION_LAYERS)
    )


def _lost_peer_failure(error: Exception) -> Failure:
    return Failure(
        "another rank is gone",
        found=_strip_gloo_prefix(device.summarize_error(error)),
        fix="look at the first error in logs/ and errors/; start the same command again to resume",
        code=ExitCode.PEER,
    )


def _strip_gloo_prefix(text: str) -> str:
    """gloo's message without its source file and its advice."""
    return re.sub(r"^\[/[^]]*\]\s*", "", text).split(". ")[0]


def _nondeterministic_failure(error: Exception) -> Failure:
    return Failure(
        "train.reproducible bitwise: the model uses what GPUs compute in any order",
        found=device.summarize_error(error).split(",")[0],
        fix="set train.reproducible=fast, or take another model",
        code=ExitCode.USAGE,
    )


def _exception_chain(error: BaseException) -> Iterator[BaseException]:
    """`error`, and the exceptions that were being handled when it was raised.

    torch's SIGCHLD handler raises a data worker's death anywhere in the main thread. The code that it interrupts
    may then raise another error.
    """
    current: BaseException | None = error
    while current is not None:
        yield current
        current = current.__context__


def _is_dead_data_worker(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("DataLoader worker", "shared memory")
    )


def _dead_data_worker_failure(error: BaseException) -> Failure:
    return Failure(
        "a data worker process died",
        found=device.summarize_error(error),
        fix=DEAD_WORKER_FIX,
        code=ExitCode.RESOURCE,
    )
