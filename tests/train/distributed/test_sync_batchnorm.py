"""With several ranks each BatchNorm becomes torch's SyncBatchNorm, or the network is refused."""

from __future__ import annotations

import pytest
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train.distributed import sync_batchnorm


def test_one_rank_keeps_torchs_own() -> None:
    net = nn.Sequential(nn.BatchNorm2d(2))
    assert sync_batchnorm.convert_sync_batchnorm(net, world_size=1) is net
    assert type(net[0]) is nn.BatchNorm2d


class NormAct(nn.BatchNorm2d):
    """BatchNorm and an activation in one, as timm has it."""

    def forward(self, x: Tensor) -> Tensor:
        """As its parent, without what is below 0."""
        return super().forward(x).relu()


def test_a_norm_that_computes_more_is_refused_and_left_alone() -> None:
    net = nn.Sequential(nn.BatchNorm2d(3), NormAct(3))
    with pytest.raises(Failure, match="1 is a NormAct, which has a forward of its own") as caught:
        sync_batchnorm.convert_sync_batchnorm(net, world_size=2)
    assert caught.value.code == ExitCode.USAGE
    assert [type(module) for module in net] == [nn.BatchNorm2d, NormAct]


class ByAnotherName(nn.BatchNorm2d):
    """It computes nothing else."""


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.BatchNorm3d(3), nn.SyncBatchNorm(3), ByAnotherName(3)], ids=str
)
def test_a_norm_that_computes_what_torchs_does_is_converted(norm: nn.Module) -> None:
    net: nn.Module = nn.Sequential(norm)
    names = net.state_dict().keys()
    for _ in range(2):  # once more is no error
        net = sync_batchnorm.convert_sync_batchnorm(net, world_size=2)
    assert [type(module) for module in net.children()] == [nn.SyncBatchNorm]
    assert net.state_dict().keys() == names
