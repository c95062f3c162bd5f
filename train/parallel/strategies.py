"""`strategy_class` chooses how the ranks of a run share a step; DDP and DataParallel are here."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel

from entrypoint import ExitCode, Failure, list_some
from train.config import checks
from train.config.schema import TrainConfig
from train.config.strategies import STRATEGIES
from train.parallel.base import Parallel
from train.parallel.bitwise import Bitwise


class DDP(Parallel):
    """Several ranks, whose gradients torch averages while the backward pass still runs."""

    def _wrap(self, network: nn.Module) -> nn.Module:
        model: Any = self._accelerator.prepare_model(network, device_placement=False)
        # Rank 0's buffers alone count (`validator.broadcast_buffers`). Set here: torch 2.15 warns of the argument.
        model.broadcast_buffers = False
        return model  # type: ignore[no-any-return]

    def warm_up(self) -> None:
        """Exchange gradients once.

        After its first exchange DDP reorders its buckets, and the position in a bucket decides in which order
        three or more ranks sum a number. Without this, the first step after a resume would differ in its last
        bits from the same step of an uninterrupted run.
        """
        self.rehearse()

    def parameters_changed(self) -> None:
        """Wrap the network in a new DDP: the old one has noted which parameters require gradients.

        No reference to the old one may be left when the new one is made: its hooks on the parameters end with it.
        """
        self.model = self.network
        self._accelerator.free_memory()
        self._accelerator.prepare_optimizer(self._prepared)  # it has just forgotten this too
        self.model = self._wrap(self.network)
        self.warm_up()

    def _check_gradients(self) -> None:
        """Check that each parameter of this rank received a gradient.

        DDP itself checks this only in its next forward pass. That is too late: the rank that left a parameter out may
        wait in the next collective operation, while the other ranks still wait for that parameter's gradient.

        Raises:
            Failure: USAGE, naming the parameters.
        """
        try:
            self.model._check_reducer_finalized()  # type: ignore[operator]
        except RuntimeError as error:
            trained = [name for name, weight in self.network.named_parameters() if weight.requires_grad]
            numbers = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
            idle = [trained[int(number)] for number in numbers[1].split()] if numbers else [str(error).split(". ")[0]]
            raise Failure(
                "a parameter received no gradient; DDP requires every trainable parameter to be used in every forward "
                "pass",
                found=f"no gradient for {list_some(idle, 3)} on rank {dist.get_rank()}",
                expected="a gradient for every trainable parameter, on every rank",
                fix="in the model's forward add 0 * p.sum() for each parameter p that it leaves out, or freeze it "
                "(requires_grad=False)",
                code=ExitCode.USAGE,
            ) from error


class DP(Parallel):
    """One process that copies the network to all visible GPUs in every step; without any, DataParallel does nothing."""

    def _wrap(self, network: nn.Module) -> nn.Module:
        """DataParallel before Accelerate, which replaces the network's forward (autocast).

        DataParallel copies the network to each GPU: a copy of that forward would compute with the first GPU's weights.
        """
        is_wrapped = self.runtime.device.type == "cuda" or not torch.cuda.is_available()
        return super()._wrap(DataParallel(network) if is_wrapped else network)

    def seed(self, number: int) -> None:
        """Seed the generators of all GPUs."""
        super().seed(number)
        for generator in torch.cuda.default_generators:
            generator.manual_seed(number)


def strategy_class(train: TrainConfig, world_size: int) -> type[Parallel]:
    """The strategy of a run. A single rank of those that may be several has nobody to exchange gradients with."""
    strategy = STRATEGIES[train.parallel]
    if checks.is_bitwise(train):
        return Bitwise
    if world_size == 1 and not strategy.is_single_process:
        return Parallel
    module, name = strategy.class_name.split(":")
    return getattr(import_module(f"train.parallel.{module}"), name)  # type: ignore[no-any-return]
