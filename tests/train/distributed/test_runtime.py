"""A rank's device, precision and Accelerator come from the config and the World, and several nodes keep one folder."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from jobs import ALONE, forget_accelerate
from processes import python
from runs import TEN_STEPS

from entrypoint import ExitCode, Failure, World
from entrypoint.hang import MAX_STEP_TIMEOUT_S, PEER_ANSWER_TIMEOUT_S, START_SLACK_S
from train.config import environment, load
from train.config.schema import Timeouts
from train.distributed import runtime
from train.distributed.runtime import Runtime

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
    ready = runtime.start(load.load_config(None), ALONE, {})
    yield ready
    ready.close()
    forget_accelerate()


STRANGE = {
    "ACCELERATE_MIXED_PRECISION": "fp16",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "7",
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_OFFLOAD_PARAMS": "true",
    "HOME": "/home/me",
}


def test_accelerate_is_told_the_ranks_place() -> None:
    environ = {"HOME": "/home/me"}
    runtime.set_accelerate_environment(environ, PAIR, CPU)
    assert environ == {"HOME": "/home/me", "LOCAL_RANK": "1"}


def test_a_world_of_one_shows_no_sign_of_more() -> None:
    environ = {"LOCAL_RANK": "0", "WORLD_SIZE": "1", "OMPI_COMM_WORLD_SIZE": "4", "RANK": "0"}
    runtime.set_accelerate_environment(environ, ALONE, CPU)
    assert environ == {"RANK": "0"}


def test_accelerate_is_told_the_gpus_index_as_its_local_rank() -> None:
    environ = {"LOCAL_RANK": "1"}
    runtime.set_accelerate_environment(environ, PAIR, GPU)
    assert environ["LOCAL_RANK"] == "0"


def test_the_environment_does_not_change_what_accelerate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_accelerate()
    for name, value in STRANGE.items():
        monkeypatch.setenv(name, value)
    environment.remove_conflicting_variables(os.environ, download=False)
    accelerator = runtime.start(load.load_config(None), ALONE, os.environ).accelerator
    in_effect = (accelerator.mixed_precision, accelerator.gradient_accumulation_steps, accelerator.num_processes)
    forget_accelerate()
    assert in_effect == ("no", 1, 1)


def test_ddp_is_told_what_to_send_and_in_which_portions() -> None:
    forget_accelerate()
    config = load.load_config(None, ["train.gradient_exchange=bf16", "train.bucket_cap_mb=7"])
    handler = runtime.start(config, ALONE, {}).accelerator.ddp_handler
    forget_accelerate()
    assert handler is not None
    assert (handler.comm_hook.value, handler.bucket_cap_mb, handler.gradient_as_bucket_view) == ("bf16", 7, True)


def test_one_rank_trains_without_a_process_group(alone: runtime.Runtime) -> None:
    assert alone.cpu_group is None
    assert alone.is_main
    assert not torch.distributed.is_initialized()
    alone.barrier()


COMPARE = """
import os, sys, torch
from entrypoint import Failure, world_from_environ
from train.config import load
from train.distributed import replica_check, runtime
world = world_from_environ(os.environ)
ready = runtime.start(load.load_config(None), world, os.environ)
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
torch.nn.init.ones_(net[0].weight); torch.nn.init.zeros_(net[0].bias)
if world.rank == 1 and sys.argv[1] != "same":
    tensor = dict(net.state_dict())[sys.argv[1]]
    tensor.view(-1)[0] = tensor.view(-1)[0] + 1e-7 if tensor.is_floating_point() else 7
try:
    replica_check.refuse_different_weights(ready, net)
    print("all the same")
except Failure as failure:
    print(int(failure.code), failure.found)
ready.close()
"""
DIFFERENT = {"a-weight": "0.weight", "a-running-mean": "1.running_mean", "a-counter": "1.num_batches_tracked"}


def compared(folder: Path, changed: str) -> str:
    (folder / "compare.py").write_text(COMPARE)
    line = ("-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", "2", "--", sys.executable, "compare.py")
    return python(*line, changed, cwd=folder).stdout


@pytest.mark.parametrize(
    "changed",
    [pytest.param(DIFFERENT[i], id=i, marks=() if i == "a-running-mean" else pytest.mark.slow) for i in DIFFERENT],
)
def test_a_rank_that_begins_with_other_weights_is_named(changed: str, tmp_path: Path) -> None:
    reports = compared(tmp_path, changed)
    assert reports.startswith(f"{ExitCode.NODE.value} rank 1 on ")
    assert "differ from rank 0" in reports


@pytest.mark.slow  # in `make test`, all trainings on two ranks
def test_ranks_that_begin_alike_go_on(tmp_path: Path) -> None:
    assert compared(tmp_path, "same") == "all the same\n"


def test_what_rank_0_found_is_shared_with_its_failures(alone: runtime.Runtime) -> None:
    def fail() -> None:
        raise Failure("no", fix="yes", found="this", code=ExitCode.IO)

    assert alone.run_on_rank_zero(lambda: 7) == 7
    with pytest.raises(Failure, match="no") as caught:
        alone.run_on_rank_zero(fail)
    assert (caught.value.code, caught.value.found) == (ExitCode.IO, "this")


@pytest.mark.parametrize("key", ["start", "step", "save", "evaluation", "data"])
def test_torch_waits_longer_than_the_hang_watch(key: str) -> None:
    assert (
        runtime.process_group_timeout(Timeouts(**{key: 7000.0})).total_seconds()
        > 7000 + START_SLACK_S + PEER_ANSWER_TIMEOUT_S
    )


def test_torch_waits_longer_than_any_limit_that_is_found_out() -> None:
    assert runtime.process_group_timeout(Timeouts()).total_seconds() > MAX_STEP_TIMEOUT_S + PEER_ANSWER_TIMEOUT_S


LEFT_OUT = """
import torch
from torch import distributed as dist, nn

class Drop(nn.Module):
    def __init__(self, classes, after):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(768, 8), nn.Linear(8, 8), nn.Linear(8, classes)
        self.calls, self.after = 0, after
    def forward(self, x):
        x = self.first(x.flatten(1))
        self.calls += self.training
        alone = not dist.is_initialized() or dist.get_rank() == 0
        return self.last(x + self.drop(x) if alone or self.calls <= self.after else x)
"""


@pytest.mark.parametrize(
    "after", [pytest.param(0, id="from-the-start", marks=pytest.mark.slow), pytest.param(3, id="in-a-step")]
)
def test_a_weight_that_one_rank_leaves_out_ends_both_with_its_name(after: int, tmp_path: Path) -> None:
    (tmp_path / "left_out.py").write_text(LEFT_OUT)
    (tmp_path / "ten.yaml").write_text(TEN_STEPS)
    settings = ["model.name=left_out:Drop", f"model.args.after={after}", "train.max_steps=3"]
    command = ["-m", "train", "--config", "ten.yaml", "--procs-per-node", "2", *settings]
    ended = python(*command, cwd=tmp_path)
    assert ended.returncode == ExitCode.USAGE, ended.stderr
    assert "no gradient for drop.weight, drop.bias" in ended.stderr


@dataclass
class Second:
    """A stand-in for what the second of two ranks sees; the first one's folder is `first`."""

    first: Path
    cpu_group: object = "a group"
    is_main: bool = False

    def run_on_rank_zero(self, action: Callable[[], Any]) -> Any:
        return runtime._write_marker(self.first)

    def all_gather(self, value: Any) -> list[Any]:
        return [("node01", True), ("node02", value[1])]


def refuse(first: Path, second: Path) -> None:
    runtime.refuse_unshared_folder(cast(Runtime, Second(first)), second)


def test_one_folder_is_accepted(tmp_path: Path) -> None:
    refuse(tmp_path, tmp_path)


def test_a_folder_of_each_nodes_own_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "VISIBILITY_TIMEOUT_S", 0.0)
    with pytest.raises(Failure, match="not the same one on all nodes") as caught:
        refuse(tmp_path / "a", tmp_path / "b")
    assert caught.value.code == ExitCode.OUTPUT
    assert caught.value.found == f"what node01 writes in {tmp_path / 'b'} is not there on node02"


def test_a_stale_handle_of_nfs_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stale, stat = [OSError(errno.ESTALE, "Stale file handle")], os.stat

    def first_stale(path: Any, **options: Any) -> os.stat_result:
        if stale and "seen-" in str(path):
            raise stale.pop()
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", first_stale)
    refuse(tmp_path, tmp_path)
    assert not stale


def test_one_rank_asks_nothing(tmp_path: Path) -> None:
    alone = Second(tmp_path, cpu_group=None)
    runtime.refuse_unshared_folder(cast(Runtime, alone), tmp_path)
    assert list(tmp_path.iterdir()) == []
