"""A rank's GPU, the precision in effect on it, and what errors of its libraries become. Those texts are made up."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist

from entrypoint import ExitCode, Failure
from train.distributed import device

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
HOST = socket.gethostname()

# As torch 2.15 writes below each of CUDA's errors.
BELOW = (
    "\nSearch for `cudaError' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
    "information.\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below "
    "might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
)
NODE = {
    "uncorrectable ECC error encountered": "srun --exclude",
    "uncorrectable NVLink error detected during the execution": "srun --exclude",
    "Invalid access of peer GPU memory over nvlink or a hardware error": "srun --exclude",
    "unspecified launch failure": "Xid",
    "an illegal memory access was encountered": "CUDA_LAUNCH_BLOCKING=1",
    "misaligned address": "CUDA_LAUNCH_BLOCKING=1",
    "CUDA-capable device(s) is/are busy or unavailable": "EXCLUSIVE_PROCESS",
    "invalid device ordinal": "CUDA_VISIBLE_DEVICES",
    "no CUDA-capable device is detected": "CUDA_VISIBLE_DEVICES",
    "system not yet initialized": "entrypoint doctor",
    "unknown error": "entrypoint doctor",
}
IMAGE = {  # alike on all nodes that have this driver or this type of GPU
    "CUDA error: no kernel image is available for execution on the device": "docs/image.md",
    "Triton Error [CUDA]: device kernel image is invalid": "docs/image.md",
    "CUDA error: CUDA driver version is insufficient for CUDA runtime version": "entrypoint doctor",
    "CUDA error: the provided PTX was compiled with an unsupported toolchain.": "entrypoint doctor",
    "CUDA error: forward compatibility was attempted on non supported HW": "entrypoint doctor",
    "The NVIDIA driver on your system is too old (found version 11040).": "entrypoint doctor",
}
SHM = "Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 96), error: No space left on device (28)"
GONE = "socketProgress: Connection closed by remote peer node02<41234>"

# ncclGetErrorString of NCCL 2.30, and what torch's older backend writes below it.
SYSTEM = "unhandled system error (run with NCCL_DEBUG=INFO for details)"
REMOTE = "remote process exited or there was a network error"
INTERNAL = "internal error - please report this issue to the NCCL developers"
CUDAS = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
BELOW_KIND = {
    SYSTEM: "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. ",
    REMOTE: "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
    INTERNAL: "ncclInternalError: Internal check failed.",
    CUDAS: "ncclUnhandledCudaError: Call to CUDA function failed.",
}


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, *, bf16: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "some GPU")


@pytest.mark.parametrize(("count", "local_rank", "index"), [(1, 0, 0), (1, 3, 0), (4, 3, 3), (8, 0, 0)])
def test_one_visible_gpu_is_the_ranks_own_and_of_several_it_takes_its_local_rank(
    monkeypatch: pytest.MonkeyPatch, count: int, local_rank: int, index: int
) -> None:
    gpus(monkeypatch, count)
    assert device.choose_device("cuda", local_rank) == torch.device("cuda", index)


@pytest.mark.parametrize(("count", "local_rank"), [(0, 0), (2, 2)])
def test_a_rank_without_a_gpu_is_refused_with_the_containers_option(
    monkeypatch: pytest.MonkeyPatch, count: int, local_rank: int
) -> None:
    gpus(monkeypatch, count)
    with pytest.raises(Failure, match=f"local rank {local_rank}") as caught:
        device.choose_device("cuda", local_rank)
    assert caught.value.code == ExitCode.NODE
    assert "--nv" in caught.value.fix


@pytest.mark.parametrize(
    ("words", "code", "fix"),
    [
        ("out of memory", 71, "nvidia-smi"),
        ("CUDA-capable device(s) is/are busy or unavailable", 78, "EXCLUSIVE_PROCESS"),
        ("something new", 78, "entrypoint doctor"),
    ],
)
def test_a_gpu_that_cannot_be_taken_is_named(monkeypatch: pytest.MonkeyPatch, words: str, code: int, fix: str) -> None:
    def refuse(index: int) -> None:
        raise torch.AcceleratorError(f"CUDA error: {words}")

    gpus(monkeypatch, 4)
    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    with pytest.raises(Failure) as caught:
        device.choose_device("cuda", 2)
    assert f"GPU 2 of {socket.gethostname()}" in str(caught.value)
    assert (caught.value.code, fix in caught.value.fix) == (code, True)


@pytest.mark.parametrize(
    ("precision", "where", "bf16", "effective"),
    [
        ("auto", CPU, True, "fp32"),
        ("auto", GPU, True, "bf16"),
        ("auto", GPU, False, "fp32"),
        ("bf16", CPU, False, "bf16"),
        ("fp16", GPU, False, "fp16"),
        ("fp32", GPU, True, "fp32"),
    ],
)
def test_the_precision_in_effect(
    monkeypatch: pytest.MonkeyPatch, precision: str, where: torch.device, bf16: bool, effective: str
) -> None:
    gpus(monkeypatch, 1, bf16=bf16)
    assert device.choose_precision(precision, where) == effective


@pytest.mark.parametrize(
    ("precision", "where", "tf32", "text"),
    [
        ("fp32", CPU, True, "fp32"),
        ("fp32", GPU, False, "fp32 (TF32 off)"),
        ("fp32", GPU, True, "fp32 (TF32 on: train.tf32)"),
        ("bf16", CPU, False, "bf16 (autocast; weights in fp32)"),
        ("fp16", GPU, True, "fp16 (autocast, loss scaling; weights in fp32)"),
    ],
)
def test_the_banner_says_what_a_precision_means(precision: str, where: torch.device, tf32: bool, text: str) -> None:
    assert device.describe_precision(precision, where, tf32=tf32) == text


@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_what_the_config_says_in_old_and_new_words_and_never_on_the_cpu(allowed: bool) -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    device.allow_tf32(allowed)
    backends = torch.backends
    assert (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32) == (allowed, allowed)
    new = (backends.cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision, backends.cudnn.rnn.fp32_precision)
    assert [word == "tf32" for word in new] == [allowed] * 3
    assert backends.mkldnn.matmul.fp32_precision == before


@pytest.mark.parametrize("repeatable", [True, False])
def test_cudnn_takes_repeatable_kernels_or_the_fastest(monkeypatch: pytest.MonkeyPatch, repeatable: bool) -> None:
    for name in ("deterministic", "benchmark"):
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    device.set_up_cudnn(GPU, repeatable=repeatable)
    assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (repeatable, not repeatable)


@pytest.mark.parametrize(("precision", "where"), [("fp16", CPU), ("bf16", GPU)], ids=["fp16-on-cpu", "bf16-emulated"])
def test_a_precision_that_the_device_lacks_is_refused_not_ignored(
    monkeypatch: pytest.MonkeyPatch, precision: str, where: torch.device
) -> None:
    gpus(monkeypatch, 1, bf16=False)
    with pytest.raises(Failure, match=precision) as caught:
        device.choose_precision(precision, where)
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.fix.endswith("(in a new run: another run.name)")  # one that is there keeps its precision


FULL: tuple[Exception, ...] = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    torch.AcceleratorError(f"CUDA error: out of memory{BELOW}"),
    torch.cuda.DeferredCudaCallError("CUDA call failed lazily at initialization with error: CUDA error: out of memory"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
)
BUGS: tuple[Exception, ...] = (
    torch.AcceleratorError(f"CUDA error: invalid argument{BELOW}"),
    torch.AcceleratorError(f"CUDA error: operation not permitted when stream is capturing{BELOW}"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
    RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
    RuntimeError("of the user's own. Last error:\nNo space left on device"),
    ValueError("an unknown error of the user's own, out of memory of the last meeting"),
)


def older(kind: str, reason: str = "") -> Exception:
    """As NCCLUtils.hpp writes it: torch 2.11, and torch 2.15 with TORCH_DIST_USE_NCCL2=0."""
    location = "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77"
    detail = f"{BELOW_KIND[kind]}\nLast error:\n{reason}"
    return dist.DistBackendError(f"NCCL error in: {location}, {kind}, NCCL version 2.28.9\n{detail}")


def newer(kind: str, reason: str = "") -> Exception:
    """As nccl2/ProcessGroupNCCL.cpp writes it: torch 2.15."""
    return RuntimeError(f"NCCL AllReduce failed: {kind} \nNCCL Last Error: {reason}")


def starting(kind: str, reason: str = "") -> Exception:
    """As nccl2/NCCLBootstrap.cpp writes it, with what NCCL itself has written into its file."""
    written = f"NCCL version 2.30.7+cuda13.2\n\n[2026-11-23 09:04] node01:7:7 [0] x.cc:126 (f) NCCL WARN {reason}\n"
    return device.add_nccl_warning(RuntimeError(f"Failed to initialize NCCL communicator: {kind}"), written)


BACKENDS = pytest.mark.parametrize("backend", [older, newer, starting], ids=lambda backend: backend.__name__)


def understood(error: Exception) -> Failure:
    failure = device.failure_from_error(error)
    assert failure is not None
    return failure


@pytest.mark.parametrize(("words", "fix"), NODE.items(), ids=[re.sub(r"\W+", "-", words) for words in NODE])
def test_a_fault_of_the_gpu_names_gpu_and_host_and_leaves_the_node(words: str, fix: str) -> None:
    failure = understood(torch.AcceleratorError(f"CUDA error: {words}{BELOW}"))
    assert (failure.code, failure.what.startswith(f"GPU of {HOST}: ")) == (78, True)
    assert str(failure.found).startswith(f"CUDA error: {words}")
    assert "\n" not in str(failure.found)
    assert fix in failure.fix


@pytest.mark.parametrize(("text", "fix"), IMAGE.items())
def test_an_image_that_does_not_fit_driver_or_gpu_is_not_the_node_s_fault(text: str, fix: str) -> None:
    failure = understood(RuntimeError(f"{text}{BELOW}"))
    assert (failure.code, failure.what.startswith(f"GPU of {HOST}: ")) == (72, True)
    assert fix in failure.fix


@pytest.mark.parametrize("error", FULL, ids=lambda error: str(error)[:40])
def test_a_lack_of_memory_is_a_resource_whoever_says_it(error: Exception) -> None:
    assert device.is_out_of_memory(error)
    failure = understood(error)
    assert (failure.code, failure.what) == (71, "out of GPU memory")
    assert HOST in str(failure.found)


@pytest.mark.parametrize("error", BUGS, ids=lambda error: str(error)[:40])
def test_anything_else_is_not_taken_for_one(error: Exception) -> None:
    assert device.failure_from_error(error) is None


def test_an_index_out_of_range_is_the_datas_or_the_models_and_not_the_nodes() -> None:
    failure = understood(torch.AcceleratorError(f"CUDA error: device-side assert triggered{BELOW}"))
    assert failure.code == 65
    assert "train data check" in failure.fix
    assert "exclude" not in failure.fix


def test_where_the_program_may_be_the_reason_its_line_is_named_and_not_torchs() -> None:
    def refuse(gradient: torch.Tensor) -> None:
        raise torch.AcceleratorError(f"CUDA error: an illegal memory access was encountered{BELOW}")

    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(refuse)
    with pytest.raises(torch.AcceleratorError) as caught:
        weight.sum().backward()
    line = refuse.__code__.co_firstlineno + 1
    assert f"noticed at {__file__}, line {line}" in str(understood(caught.value).found)


def test_a_gpu_that_cuda_still_knows_has_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = SimpleNamespace(name="made-up GPU", uuid="1234")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: facts)
    assert device.describe_gpu() == f"GPU 3 (made-up GPU, GPU-1234) of {HOST}"


def test_a_gpu_that_answers_nothing_any_more_has_its_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", refuse)
    assert (device.describe_gpu(), device.describe_gpu(2)) == (f"GPU of {HOST}", f"GPU 2 of {HOST}")


@BACKENDS
@pytest.mark.parametrize("kind", [SYSTEM, REMOTE, INTERNAL], ids=["system", "remote", "internal"])
@pytest.mark.parametrize("reason", [GONE, "Call to bind failed: Address already in use", ""])
def test_what_nccl_reports_of_the_network_or_of_others_is_a_lost_peer(
    backend: Callable[[str, str], Exception], kind: str, reason: str
) -> None:
    failure = understood(backend(kind, reason))
    assert (failure.code, HOST in failure.what) == (69, True)
    assert (f"NCCL: {reason}" if reason else kind) in str(failure.found)
    assert "the same command again" in failure.fix


@BACKENDS
@pytest.mark.parametrize("reason", ["Cuda failure 'invalid argument'", ""])
def test_what_cuda_refused_to_nccl_leaves_the_node(backend: Callable[[str, str], Exception], reason: str) -> None:
    failure = understood(backend(CUDAS, reason))
    assert (failure.code, failure.what) == (78, f"GPU of {HOST}: CUDA failed in NCCL")
    assert "srun --exclude" in failure.fix


@pytest.mark.parametrize(
    "text",
    [
        "NCCL Async Error: remote process exited or there was a network error \nNCCL Last Error: ",
        "NCCL operation timed out",
        "NCCL communicator was aborted after a previous error",
        "NCCL communicator was aborted on rank 0.  Original reason for failure was: watchdog",
        "Failed to get NCCL unique ID: invalid usage (run with NCCL_DEBUG=WARN for details)",
        "NCCL timeout in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77",
    ],
)
def test_each_way_in_which_torch_hands_on_an_error_of_nccls_is_known(text: str) -> None:
    assert understood(RuntimeError(text)).code == 69


@pytest.mark.parametrize("backend", [older, newer], ids=["older", "newer"])
def test_of_nccls_lines_the_reason_is_told(backend: Callable[[str, str], Exception]) -> None:
    below = f"{GONE}\nException raised from x (most recent call first):"
    assert device.summarize_error(backend(SYSTEM, GONE)) == f"NCCL: {GONE}"
    assert device.summarize_error(backend(SYSTEM, below)) == f"NCCL: {GONE}"


def test_without_a_reason_nccls_kind_is_told_without_the_place_in_its_source() -> None:
    assert device.summarize_error(older(SYSTEM)) == f"NCCL error: {SYSTEM}, NCCL version 2.28.9"
    assert device.summarize_error(newer(SYSTEM)) == f"NCCL AllReduce failed: {SYSTEM}"


def test_a_reason_that_torch_has_told_is_kept() -> None:
    error = newer(SYSTEM, GONE)
    assert device.add_nccl_warning(error, f"x NCCL WARN {SHM}\n") is error


def test_nccls_warnings_are_no_reason_of_an_error_that_is_not_nccls() -> None:
    error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    assert device.add_nccl_warning(error, f"x NCCL WARN {SHM}\n") is error


@BACKENDS
@pytest.mark.parametrize(
    "reason",
    [
        SHM,
        "Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left on device (28)",
        "Error while attaching to shared memory segment /dev/shm/nccl- (size 192814336), error: No such file (2)",
    ],
)
def test_nccl_without_shared_memory_is_a_resource_with_the_containers_option(
    backend: Callable[[str, str], Exception], reason: str
) -> None:
    failure = understood(backend(SYSTEM, reason))
    assert (failure.code, failure.found) == (71, f"NCCL: {reason}")
    assert "--shm-size=8g (or --ipc=host)" in failure.fix
    assert HOST in failure.what


@BACKENDS
def test_what_cuda_told_nccl_counts_as_if_it_had_told_us(backend: Callable[[str, str], Exception]) -> None:
    assert understood(backend(CUDAS, "Cuda failure 2 'out of memory'")).code == 71
    broken = understood(backend(CUDAS, "Cuda failure 214 'uncorrectable ECC error encountered'"))
    assert (broken.code, "its hardware" in broken.what) == (78, True)
