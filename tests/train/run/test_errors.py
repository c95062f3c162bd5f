"""Exceptions of libraries become something to act on."""

from __future__ import annotations

import errno
import threading

import pytest
import torch
from torch import distributed as dist

from entrypoint import ExitCode, Failure
from train.config.batches import compute_batch_sizes
from train.run import errors

NCCL = "NCCL error in: NCCLUtils.cpp:77, unhandled system error, NCCL version 2.28.9\nncclSystemError: x\nLast error:\n"
NCCL2 = "NCCL AllReduce failed: unhandled system error \nNCCL Last Error: "
CUDAS = torch.AcceleratorError("CUDA error: invalid argument")
CASES = {
    "gpu-memory": (torch.OutOfMemoryError("CUDA out of memory. Tried"), 71, "micro_batch_size"),
    "gpu-of-another": (torch.AcceleratorError("CUDA error: out of memory\nSearch for"), 71, "nvidia-smi"),
    "cublas-memory": (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), 71, "micro_batch_size"),
    "cudnn-memory": (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), 71, "micro_batch_size"),
    "gpu-broken": (torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"), 78, "--exclude"),
    "gpu-assert": (torch.AcceleratorError("CUDA error: device-side assert triggered"), 65, "data check"),
    "host-memory": (MemoryError(), 71, "micro_batch_size"),
    "gloo-closed": (RuntimeError("[/x/gloo/pair.cc:1] Connection closed by peer [1.2.3.4]:5"), 69, "resume"),
    "gloo-timeout": (RuntimeError("[/x/gloo/buf.cc] Timed out waiting 30000ms for recv"), 69, "resume"),
    "nccl": (dist.DistBackendError("NCCL error in: x"), 69, "resume"),
    "nccl-peer": (dist.DistBackendError(f"{NCCL}socketProgress: Connection closed by remote peer"), 69, "by remote"),
    "nccl-shm": (dist.DistBackendError(f"{NCCL}Error while creating shared memory segment /dev/shm"), 71, "--ipc=host"),
    "nccl2-start": (RuntimeError("Failed to initialize NCCL communicator: unhandled system error"), 69, "resume"),
    "nccl2": (RuntimeError(NCCL2), 69, "resume"),
    "nccl2-shm": (RuntimeError(f"{NCCL2}Error while creating shared memory segment /dev/shm"), 71, "NCCL got no"),
    "store": (dist.DistNetworkError("The client socket has timed out"), 69, "resume"),
    "data-worker": (RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed."), 71, "--shm-size"),
    "no-fixed-order": (
        RuntimeError("adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set"),
        64,
        "train.reproducible=fast",
    ),
    "disk-full": (OSError(errno.ENOSPC, "No space left on device", "/tmp/x"), 74, "space"),
}


@pytest.mark.parametrize(("error", "code", "words"), CASES.values(), ids=CASES.keys())
def test_a_known_error_has_its_code_and_a_fix(error: Exception, code: int, words: str) -> None:
    failure = errors.as_failure(error)
    assert failure is not None
    assert failure.code == code
    assert words in str(failure)


@pytest.mark.parametrize(
    ("micro", "ranks", "smaller"), [(64, 2, "=32 "), (24, 4, "=12 "), (3, 1, "=1 "), (1, 2, "more GPUs")]
)
def test_a_smaller_micro_batch_that_divides_is_named(micro: int, ranks: int, smaller: str) -> None:
    parts = compute_batch_sizes(micro * ranks * 2, micro, ranks)
    failure = errors.as_failure(torch.OutOfMemoryError("CUDA out of memory"), parts)
    assert failure is not None
    assert smaller in failure.fix


@pytest.mark.parametrize(("micro", "instead"), [(8, "micro_batch_size=4 and another run.name"), (1, "a smaller model")])
def test_a_bitwise_run_is_not_told_to_go_on_with_other_micro_batches(micro: int, instead: str) -> None:
    failure = errors.as_failure(MemoryError(), compute_batch_sizes(micro * 8, micro, 2), exact=True)
    assert failure is not None
    assert "goes on with the same micro batches only" in failure.fix
    assert instead in failure.fix


def test_a_data_workers_death_is_told_whatever_else_failed_on_the_way_out() -> None:
    def interrupted() -> None:
        try:
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")
        finally:
            threading.Lock().release()

    with pytest.raises(RuntimeError, match="unlocked") as caught:
        interrupted()
    failure = errors.as_failure(caught.value)
    assert failure is not None
    assert (failure.code, failure.what) == (71, "a data worker process died")
    assert "pid 7" in str(failure)


def test_gloos_words_are_kept_short() -> None:
    text = "[/x/gloo/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:26547. This is typically caused"
    failure = errors.as_failure(RuntimeError(text))
    assert failure is not None
    assert failure.found == "Connection closed by peer [127.0.0.1]:26547"


def test_a_failure_stays_what_it_is() -> None:
    failure = Failure("x", fix="y", code=ExitCode.DATA)
    assert errors.as_failure(failure) is failure


def test_where_another_program_may_fill_the_gpu_both_ways_out_are_told() -> None:
    failure = errors.as_failure(torch.AcceleratorError("CUDA error: out of memory"), compute_batch_sizes(64, 32, 2))
    assert failure is not None
    assert "nvidia-smi; else set train.micro_batch_size=16" in failure.fix


@pytest.mark.parametrize("error", [ValueError("x"), RuntimeError("mat1 and mat2"), CUDAS, OSError(errno.ENOENT, "no")])
def test_anything_else_is_a_bug_of_ours(error: Exception) -> None:
    assert errors.as_failure(error) is None
