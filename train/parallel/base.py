"""`Parallel` computes the optimizer steps of one rank; a subclass overrides what differs with several of them.

It owns the wrapped model and the optimizer. The trainer gives it a function that computes the loss of a micro batch,
and does not know how many ranks share a step, nor how their gradients meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from train.checkpoint import format
from train.checkpoint.store import MODEL_GROUP, OPTIMIZER_GROUP
from train.config.batches import BatchSizes
from train.distributed.runtime import Runtime
from train.optim.ema import EMA
from train.optim.optimizer import restore_optimizer
from train.tasks.base import StepLoss

TensorGroups = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What became of an optimizer step."""

    applied: bool  # False: fp16's scaler skipped it, since a gradient was infinite
    norm: Tensor | None  # [], of all gradients before they were clipped; None where nothing clips them


class Parallel:
    """The base of all strategies, and the strategy of one rank (`train.parallel: none`, or ddp with one rank).

    `wrap` sets `model`, `network` and `optimizer`. Nobody else keeps a reference to `model`: after freezing it is
    wrapped again, and the hooks of an old DDP live as long as it does. `network` is the same without a wrapper;
    checkpoints hold its state. `losses_per_step` is the number of losses that `accumulate` returns.
    """

    fixes_micro_batch: ClassVar[bool] = False  # whether a run that goes on must keep its micro batch

    def __init__(self, runtime: Runtime, batches: BatchSizes, example_loss: Callable[[nn.Module], StepLoss]) -> None:
        """example_loss: computes the loss of a made-up micro batch, with which the model is warmed up."""
        self.runtime, self.batches, self.example_loss = runtime, batches, example_loss
        self._accelerator, self._keeps_gradients = runtime.accelerator, False
        self._accelerator.gradient_accumulation_steps = batches.accumulation  # it divides each loss by this number
        self.losses_per_step = batches.accumulation

    @staticmethod
    def refuse_unfit_network(network: nn.Module, example_loss: Callable[[nn.Module], StepLoss]) -> None:
        """Raises Failure (USAGE) for a network that cannot be trained so; `train check` asks without ranks."""

    def wrap(self, network: nn.Module, optimizer: Optimizer) -> None:
        """Move the network to the device, and let Accelerate prepare both."""
        self.network, self.optimizer = self.runtime.to_device(network), optimizer
        self.model = self._wrap(self.network)
        self._prepared = self._accelerator.prepare(optimizer)  # moves its state too

    def _wrap(self, network: nn.Module) -> nn.Module:
        """With autocast, and without DDP: also for one of several ranks."""
        return self._accelerator.prepare_model(network, device_placement=False, evaluation_mode=True)  # type: ignore[no-any-return]

    def warm_up(self) -> None:
        """Do before the first step what would make it differ from later ones."""

    def rehearse(self) -> None:
        """Compute and exchange the gradients of the example once, and discard them."""
        before = [buffer.clone() for buffer in self.model.buffers()]
        self.example_loss(self.model).loss.backward()  # type: ignore[no-untyped-call]
        self._check_gradients()
        self.model.zero_grad(set_to_none=True)
        for buffer, old in zip(self.model.buffers(), before, strict=True):
            buffer.copy_(old)

    def keep_gradients(self) -> None:
        """Let gradients keep their memory from step to step: CUDA graphs would overwrite them while they add up."""
        self._keeps_gradients = True
        for parameter in self.network.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def seed(self, number: int) -> None:
        """Seed the random generators that a step uses: the CPU's, and that of this rank's GPU.

        torch.manual_seed does the same. But before CUDA has started, it also records its caller for later, and
        reads the source files of the complete stack in each step.
        """
        torch.default_generator.manual_seed(number)
        if self.runtime.device.type == "cuda":
            torch.cuda.default_generators[self.runtime.device.index or 0].manual_seed(number)

    def accumulate(self, compute: Callable[[], StepLoss]) -> list[StepLoss]:
        """Leave the mean gradient of the global batch in `.grad`; returns what is to be logged, detached.

        compute: computes the loss of this rank's next micro batch. Gradients add up in `.grad`, and are exchanged
        during the backward pass of the last micro batch.
        """
        logged, last = [], self.batches.accumulation - 1
        for number in range(self.batches.accumulation):
            with nullcontext() if number == last else self._accelerator.no_sync(self.model):
                logged.append(self._add_gradients(compute))
        self._check_gradients()
        return logged

    def _add_gradients(self, compute: Callable[[], StepLoss]) -> StepLoss:
        """The backward pass of one micro batch. Accelerate would divide even by 1, with two kernels."""
        result = compute()
        if self._accelerator.scaler is None and self._accelerator.gradient_accumulation_steps == 1:
            result.loss.backward()  # type: ignore[no-untyped-call]
        else:
            self._accelerator.backward(result.loss)
        result.loss = result.loss.detach()
        return result

    def _check_gradients(self) -> None:
        """Check after the backward passes of a step that all gradients have come."""

    def update(self, max_norm: float | None) -> Update:
        """Clip the gradients, step the optimizer, and drop them. max_norm: of all gradients together."""
        norm = None
        if max_norm is not None:
            # Unscaled by Accelerate, clipped by torch: Accelerate's clipping imports sharded tensors first.
            self._accelerator.unscale_gradients()
            norm = nn.utils.clip_grad_norm_(self.network.parameters(), max_norm)
        # In each step Accelerate's wrapper looks on disk for an optimizer that nobody uses (`is_lomo_available`: 8
        # system calls). It is needed only where losses are scaled: it may skip the step.
        (self.optimizer if self._accelerator.scaler is None else self._prepared).step()
        if self._keeps_gradients:
            self.optimizer.zero_grad(set_to_none=False)
        else:  # as zero_grad does, without its two profiler annotations, which cost more than the loop
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        return Update(applied=not self._prepared.step_was_skipped, norm=norm)

    def parameters_changed(self) -> None:
        """Call it after other parameters than before require gradients."""

    # What a checkpoint holds of the model and the optimizer. All ranks call these methods, since a strategy that
    # divides the tensors among the ranks has to gather them, or to take its part of them.

    def snapshot(self, average: EMA | None) -> tuple[TensorGroups, dict[str, Any]]:
        """The live tensors by group, of which rank 0 saves a copy, and the JSON values that complete them."""
        moments, optimizer = format.pack_state(self.optimizer.state_dict())
        groups = {MODEL_GROUP: dict(self.network.state_dict()), OPTIMIZER_GROUP: moments}
        if average is not None:
            groups[average.group] = average.tensors
        scaler = self._accelerator.scaler
        return groups, {"optimizer": optimizer, "scaler": scaler.state_dict() if scaler else None}

    def restore(self, groups: TensorGroups, values: Mapping[str, Any], average: EMA | None) -> None:
        """Load what `snapshot` returned.

        Raises:
            KeyError, RuntimeError, TypeError, ValueError: it belongs to another model or optimizer.
        """
        format.restore_network(self.network, groups[MODEL_GROUP])
        restore_optimizer(self.optimizer, format.unpack_state(groups[OPTIMIZER_GROUP], values["optimizer"]))
        if average is not None:
            average.restore(groups[average.group])
        if self._accelerator.scaler and values["scaler"]:
            self._accelerator.scaler.load_state_dict(values["scaler"])

    @contextmanager
    def replaced_weights(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Inside, the network has these tensors, by the names of its state; afterwards it has its own again."""
        state = self.network.state_dict()
        own = {name: state[name].detach().clone() for name in tensors}
        if tensors:
            format.restore_network(self.network, {**state, **tensors})
        try:
            yield
        finally:
            if own:
                format.restore_network(self.network, {**state, **own})
