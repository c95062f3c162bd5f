"""BatchNorm over all ranks: what one process with the whole batch computes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import norm_ranks
import pytest
import torch
from processes import python
from ranks import together
from runs import TEN_STEPS, Run
from safetensors.torch import load_file
from torch import Tensor, nn
from torch import distributed as dist

from entrypoint import ExitCode, Failure
from train.distributed import sync_batchnorm

Trained = Callable[[str, int], list[dict[str, Tensor]]]
SCRIPT = norm_ranks.__file__


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The state of every rank after ten steps; each pair of network and ranks is trained once."""
    root = tmp_path_factory.mktemp("norms")

    def states(kind: str, ranks: int) -> list[dict[str, Tensor]]:
        folder = root / f"{kind}-{ranks}"
        if not folder.exists():
            together(SCRIPT, ranks, folder, kind)
        return [load_file(folder / f"{rank}.safetensors") for rank in range(ranks)]

    return states


@pytest.mark.parametrize(("kind", "ranks"), [("small_cnn", 2), ("small_cnn", 4), ("cnn3d", 2), ("flat", 2)])
def test_several_ranks_learn_what_one_with_the_whole_batch_learns(trained: Trained, kind: str, ranks: int) -> None:
    alone, first = trained(kind, 1)[0], trained(kind, ranks)[0]
    assert alone.keys() == first.keys()
    for name, tensor in alone.items():
        assert (abs(tensor - first[name]) <= 1e-12 + 1e-10 * abs(tensor)).all(), name


@pytest.mark.parametrize(("kind", "ranks"), [("small_cnn", 2), ("small_cnn", 4)])
def test_all_ranks_hold_the_same_running_statistics(trained: Trained, kind: str, ranks: int) -> None:
    first, *others = trained(kind, ranks)
    assert any("running_var" in name for name in first)
    assert all(torch.equal(first[name], other[name]) for other in others for name in first)


def test_one_rank_keeps_torchs_own() -> None:
    net = nn.Sequential(nn.BatchNorm2d(2))
    assert sync_batchnorm.convert_sync_batchnorm(net, torch.device("cpu"), None) is net
    assert type(net[0]) is nn.BatchNorm2d


class NormAct(nn.BatchNorm2d):
    """BatchNorm and an activation in one, as timm has it."""

    def forward(self, x: Tensor) -> Tensor:
        """As its parent, without what is below 0."""
        return super().forward(x).relu()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_norm_that_computes_more_is_refused_and_left_alone(device: str) -> None:
    net = nn.Sequential(nn.BatchNorm2d(3), NormAct(3))
    with pytest.raises(Failure, match="1 is a NormAct, which has a forward of its own") as caught:
        sync_batchnorm.convert_sync_batchnorm(net, torch.device(device), Several())
    assert caught.value.code == ExitCode.USAGE
    assert [type(module) for module in net] == [nn.BatchNorm2d, NormAct]


class ByAnotherName(nn.BatchNorm2d):
    """It computes nothing else."""


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.BatchNorm3d(3), nn.SyncBatchNorm(3), ByAnotherName(3)], ids=str
)
def test_a_norm_that_computes_what_torchs_does_is_converted(norm: nn.Module) -> None:
    net = nn.Sequential(copy.deepcopy(norm))
    for _ in range(2):  # once more is no error
        sync_batchnorm.convert_sync_batchnorm(net, torch.device("cpu"), Several())
    assert type(net[0]) is sync_batchnorm.CpuSyncBatchNorm


class Several(dist.ProcessGroup):
    """Ranks that are only named."""

    def __init__(self) -> None:
        super().__init__(0, 2)


class Alone(sync_batchnorm.SharedProcessGroup):
    """A group of one rank, or of so many equal ones."""

    def __init__(self, equal: int = 1) -> None:
        self.equal = equal

    def sum(self, values: Tensor) -> Tensor:
        return values.detach() * self.equal


def pair(norm: nn.Module, equal: int = 1) -> tuple[nn.Module, nn.Module]:
    """torch's norm, and a copy of it that is ours."""
    ours = copy.deepcopy(norm)
    ours.__class__ = sync_batchnorm.CpuSyncBatchNorm
    ours.group = Alone(equal)  # type: ignore[assignment]
    return norm, ours


NORMS = {
    "flat": (nn.BatchNorm1d(4), (8, 4)),
    "sequences": (nn.BatchNorm1d(4), (3, 4, 5)),
    "images": (nn.BatchNorm2d(4), (3, 4, 5, 6)),
    "clips": (nn.BatchNorm3d(4), (2, 4, 3, 5, 6)),
    "without weights": (nn.BatchNorm2d(4, affine=False), (3, 4, 5, 6)),
    "cumulative": (nn.BatchNorm2d(4, momentum=None), (3, 4, 5, 6)),
    "without statistics": (nn.BatchNorm2d(4, track_running_stats=False), (3, 4, 5, 6)),
}


@pytest.mark.parametrize("kind", NORMS)
def test_alone_it_is_torchs_batch_norm(kind: str) -> None:
    torch.manual_seed(0)
    norm, size = NORMS[kind]
    theirs, ours = pair(copy.deepcopy(norm))
    for x in (torch.randn(size) * 2 + 5, torch.randn(size)):
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        outputs = [one(at) for one, at in zip((theirs, ours), inputs, strict=True)]
        weights = torch.randn(size)
        gradients = [torch.autograd.grad((o * weights).sum(), at)[0] for o, at in zip(outputs, inputs, strict=True)]
        torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_equal_ranks_count_as_one_larger_batch() -> None:
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    theirs, ours = pair(nn.BatchNorm2d(3), equal=2)
    torch.testing.assert_close(ours(x), theirs(torch.cat([x, x]))[:4], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict())


def test_halves_are_given_back_as_halves() -> None:
    theirs, ours = pair(nn.BatchNorm2d(3))
    x = torch.randn(4, 3, 5, 5).bfloat16()
    assert ours(x).dtype == torch.bfloat16
    torch.testing.assert_close(ours(x), theirs(x), rtol=0.02, atol=0.02)


def test_one_number_per_channel_on_all_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one number per channel"):
        pair(nn.BatchNorm2d(3))[1](torch.zeros(1, 3, 1, 1))


def test_a_copy_belongs_to_the_same_group() -> None:
    ours = pair(nn.BatchNorm2d(3))[1]
    assert copy.deepcopy(ours).group is ours.group


# BatchNorm, and nothing that bends: what rounding does to it stays small.
SMOOTH = """
from torch import nn
def make(classes, shape):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.GELU(), nn.Conv2d(8, 8, 3, stride=2), nn.BatchNorm2d(8),
        nn.GELU(), nn.Flatten(), nn.LazyLinear(classes),
    )
"""


def test_a_run_on_two_ranks_is_the_run_on_one_with_the_whole_batch(tmp_path: Path) -> None:
    (tmp_path / "smooth_norms.py").write_text(SMOOTH)
    (tmp_path / "ten.yaml").write_text(TEN_STEPS)
    runs = {}
    for ranks, micro in ((1, 48), (2, 24)):
        settings = ["model.name=smooth_norms:make", f"train.micro_batch_size={micro}", "train.sync_batchnorm=true"]
        command = ["-m", "train", "--config", "ten.yaml", "--procs-per-node", str(ranks), f"run.name={ranks}"]
        ended = python(*command, *settings, cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        runs[ranks] = Run(folder=tmp_path / "runs" / str(ranks)).weights(10)
    for name, tensor in runs[1].items():
        assert (abs(tensor - runs[2][name]) <= 1e-6 + 1e-5 * abs(tensor)).all(), name
