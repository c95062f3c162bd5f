"""Run by each rank: ten steps with synchronized BatchNorm on this rank's part of every batch; the state is kept.

In float64: in float32 the last bit decides now and then whether a ReLU lets a number through, and ten steps make that
visible (a change of all first weights by 1e-7 does the same).
"""

from __future__ import annotations

import copy
from pathlib import Path

import ranks
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.distributed import sync_batchnorm
from train.models import registry

STEPS, BATCH = 10, 16
CPU = torch.device("cpu")


def network(kind: str) -> nn.Module:
    """small_cnn, cnn3d, or a network of flat features."""
    if kind == "flat":
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Flatten(), nn.Linear(192, 8), nn.BatchNorm1d(8, momentum=None), nn.ReLU(), nn.Linear(8, 3)
        )
    shape = Shape(channels=3, size=(2, 8, 8) if kind == "cnn3d" else (8, 8))
    return registry.build_model(
        ModelConfig(name=kind, args={"width": 8, "norm": "batch"}), classes=3, shape=shape, seed=0
    )


def samples(kind: str, step: int) -> tuple[Tensor, Tensor]:
    """The global batch of `step`."""
    source = torch.Generator().manual_seed(step)
    size = (2, 8, 8) if kind == "cnn3d" else (8, 8)
    return torch.randn(BATCH, 3, *size, generator=source).double() + 1, torch.randint(3, (BATCH,), generator=source)


def train(model: nn.Module, kind: str, rank: int, world: int) -> None:
    """Ten steps on every `world`th sample from `rank` on."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(STEPS):
        inputs, labels = samples(kind, step)
        nn.functional.cross_entropy(model(inputs[rank::world]), labels[rank::world]).backward()
        optimizer.step()
        optimizer.zero_grad()


def rehearse(model: nn.Module, kind: str) -> None:
    """As a run does before its first step: zeros forward and backward, then the buffers as before."""
    before = [buffer.clone() for buffer in model.buffers()]
    model(torch.zeros_like(samples(kind, 0)[0])).sum().backward()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), before, strict=True):
            buffer.copy_(old)


def run(folder: Path, rank: int, world: int, kind: str) -> None:
    """Convert, train under DDP, and write this rank's state."""
    net = sync_batchnorm.convert_sync_batchnorm(network(kind).double(), CPU, dist.group.WORLD if world > 1 else None)
    model: nn.Module = net
    if world > 1:
        model = DistributedDataParallel(net, broadcast_buffers=False)
        rehearse(model, kind)
    train(model, kind, rank, world)
    copy.deepcopy(net)
    save_file({name: tensor.contiguous() for name, tensor in net.state_dict().items()}, folder / f"{rank}.safetensors")


if __name__ == "__main__":
    ranks.main(run)
