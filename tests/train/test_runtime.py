"""A rank's device, precision and Accelerator come from the config and the World, and from nothing else."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from jobs import ALONE, forget_accelerate
from torch import nn

from entrypoint import ExitCode, Failure, World
from train import runtime, schema

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
PAIR = World(
    rank=1,
    local_rank=1,
    world_size=2,
    local_world_size=2,
    node_rank=0,
    num_nodes=1,
    master_addr="127.0.0.1",
    master_port=29999,
)


@pytest.fixture
def alone() -> Any:
    forget_accelerate()
    ready = runtime.start(schema.load(None), ALONE, {}, accumulation=2)
    yield ready
    ready.close()
    forget_accelerate()


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
    assert runtime.choose_device("cuda", local_rank) == torch.device("cuda", index)


@pytest.mark.parametrize(("count", "local_rank"), [(0, 0), (2, 2)])
def test_a_rank_without_a_gpu_is_refused_with_the_containers_option(
    monkeypatch: pytest.MonkeyPatch, count: int, local_rank: int
) -> None:
    gpus(monkeypatch, count)
    with pytest.raises(Failure, match=f"local rank {local_rank}") as caught:
        runtime.choose_device("cuda", local_rank)
    assert caught.value.code == ExitCode.NODE
    assert "--nv" in caught.value.fix


@pytest.mark.parametrize(
    ("wanted", "device", "bf16", "effective"),
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
    monkeypatch: pytest.MonkeyPatch, wanted: str, device: torch.device, bf16: bool, effective: str
) -> None:
    gpus(monkeypatch, 1, bf16=bf16)
    assert runtime.choose_precision(wanted, device) == effective


@pytest.mark.parametrize(("wanted", "device"), [("fp16", CPU), ("bf16", GPU)], ids=["fp16-on-cpu", "bf16-emulated"])
def test_a_precision_that_the_device_lacks_is_refused_not_ignored(
    monkeypatch: pytest.MonkeyPatch, wanted: str, device: torch.device
) -> None:
    gpus(monkeypatch, 1, bf16=False)
    with pytest.raises(Failure, match=wanted) as caught:
        runtime.choose_precision(wanted, device)
    assert caught.value.code == ExitCode.USAGE


STRANGE = {
    "ACCELERATE_MIXED_PRECISION": "fp16",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "7",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_OFFLOAD_PARAMS": "true",
    "HOME": "/home/me",
}


def test_variables_of_accelerate_are_taken_away() -> None:
    environ = dict(STRANGE)
    runtime.adapt(environ, PAIR, CPU)
    assert environ == {"HOME": "/home/me", "LOCAL_RANK": "1"}


def test_a_world_of_one_shows_no_sign_of_more() -> None:
    environ = {"LOCAL_RANK": "0", "WORLD_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "4", "RANK": "0"}
    runtime.adapt(environ, ALONE, CPU)
    assert environ == {"RANK": "0"}


def test_accelerate_is_told_the_gpus_index_as_its_local_rank() -> None:
    environ = {"LOCAL_RANK": "1"}
    runtime.adapt(environ, PAIR, GPU)
    assert environ["LOCAL_RANK"] == "0"


def test_the_environment_does_not_change_what_accelerate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_accelerate()
    for name, value in STRANGE.items():
        monkeypatch.setenv(name, value)
    accelerator = runtime.start(schema.load(None), ALONE, os.environ, accumulation=3).accelerator
    found = (accelerator.mixed_precision, accelerator.gradient_accumulation_steps, accelerator.num_processes)
    forget_accelerate()
    assert found == ("no", 3, 1)


def test_one_rank_trains_without_a_process_group(alone: runtime.Runtime) -> None:
    assert alone.control is None
    assert alone.is_main
    assert not torch.distributed.is_initialized()
    alone.barrier()


def test_one_rank_is_not_wrapped(alone: runtime.Runtime) -> None:
    net = nn.Linear(2, 2)
    model, _ = alone.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    assert model is net
    alone.rehearse(model, torch.zeros(1, 2))


def test_what_rank_0_found_is_shared_with_its_failures(alone: runtime.Runtime) -> None:
    def fail() -> None:
        raise Failure("no", fix="yes", found="this", code=ExitCode.IO)

    assert alone.shared(lambda: 7) == 7
    with pytest.raises(Failure, match="no") as caught:
        alone.shared(fail)
    assert (caught.value.code, caught.value.found) == (ExitCode.IO, "this")
