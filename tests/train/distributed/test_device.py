"""A rank's GPU, and the precision in effect on it."""

from __future__ import annotations

import socket

import pytest
import torch

from entrypoint import ExitCode, Failure
from train.distributed import device

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


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
    ("wanted", "where", "bf16", "effective"),
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
    monkeypatch: pytest.MonkeyPatch, wanted: str, where: torch.device, bf16: bool, effective: str
) -> None:
    gpus(monkeypatch, 1, bf16=bf16)
    assert device.choose_precision(wanted, where) == effective


@pytest.mark.parametrize(
    ("precision", "where", "tf32", "said"),
    [
        ("fp32", CPU, True, "fp32"),
        ("fp32", GPU, False, "fp32 (TF32 off)"),
        ("fp32", GPU, True, "fp32 (TF32 on: train.tf32)"),
        ("bf16", CPU, False, "bf16 (autocast; weights in fp32)"),
        ("fp16", GPU, True, "fp16 (autocast, loss scaling; weights in fp32)"),
    ],
)
def test_the_banner_says_what_a_precision_means(precision: str, where: torch.device, tf32: bool, said: str) -> None:
    assert device.describe_precision(precision, where, tf32=tf32) == said


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


@pytest.mark.parametrize(("wanted", "where"), [("fp16", CPU), ("bf16", GPU)], ids=["fp16-on-cpu", "bf16-emulated"])
def test_a_precision_that_the_device_lacks_is_refused_not_ignored(
    monkeypatch: pytest.MonkeyPatch, wanted: str, where: torch.device
) -> None:
    gpus(monkeypatch, 1, bf16=False)
    with pytest.raises(Failure, match=wanted) as caught:
        device.choose_precision(wanted, where)
    assert caught.value.code == ExitCode.USAGE
    assert caught.value.fix.endswith("(in a new run: another run.name)")  # one that is there keeps its precision
