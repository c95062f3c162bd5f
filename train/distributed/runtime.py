"""The runtime gives a rank its device, precision, process group and Accelerator.

`start` takes a World and the config, meets the other ranks, and returns a `Runtime`.
"""

from __future__ import annotations

import hashlib
import re
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.nested._internal.nested_tensor  # or the first backward pass loads it: after a signal it may be too late
from accelerate import Accelerator
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs, GradientAccumulationPlugin
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from entrypoint import ExitCode, Failure, World
from train.config import checks
from train.config.schema import RunConfig, Timeouts, TrainConfig
from train.distributed import rendezvous
from train.distributed.device import (
    allow_tf32,
    choose_device,
    choose_precision,
    use_bitwise_arithmetic,
    use_deterministic_cudnn,
)

T = TypeVar("T")
ACCELERATE_PRECISIONS: Final = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
# What ranks send each other instead of the gradients: half as many bytes, and the sum rounded once more.
COMM_HOOKS: Final = {"fp32": DDPCommunicationHookType.NO, "bf16": DDPCommunicationHookType.BF16}
# Accelerate takes any of these for a sign of several processes.
MULTI_PROCESS_VARIABLES: Final = ("LOCAL_RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
MAX_AUTO_STEP_TIMEOUT_S: Final = 1800.0  # launch.timeouts.step auto finds out no longer one
PROCESS_GROUP_TIMEOUT_MARGIN_S: Final = 120.0  # torch's time-outs come after the hang watch's, which says more


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """One rank, ready. `control` is a gloo group for small decisions on the CPU; None where there is one rank."""

    world: World
    device: torch.device
    precision: str
    cores: int
    accelerator: Accelerator
    parallel: str
    control: dist.ProcessGroup | None

    @property
    def is_main(self) -> bool:
        """Whether this is world rank 0, which writes the run's files."""
        return self.world.rank == 0

    def prepare(self, net: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Both as Accelerate wraps them, on the device; several ranks get DDP around the model.

        DataParallel goes below Accelerate: it copies the network to each GPU, and a copy of a network whose forward
        Accelerate has replaced (autocast) would compute with the first GPU's weights.
        """
        if self.parallel == "dp" and (self.device.type == "cuda" or not torch.cuda.is_available()):
            net = DataParallel(net.to(self.device))  # over all visible GPUs; without any it passes through
        # Moved here: before Accelerate moves it, it looks for a kind of tensor that takes 0.5 s to load.
        net, placed = net.to(self.device), False
        if self.parallel == "none":  # several ranks too, where a tree adds up their gradients
            alone = self.accelerator.prepare_model(net, device_placement=placed, evaluation_mode=True)
            return alone, self.accelerator.prepare_optimizer(optimizer)
        model, wrapped = self.accelerator.prepare(net, optimizer, device_placement=[placed, None])
        if isinstance(model, DistributedDataParallel):
            # Rank 0's buffers alone count (`evaluate.broadcast_buffers`). Set here: torch 2.15 warns of the argument.
            model.broadcast_buffers = False
        return model, wrapped

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The network itself. Accelerate's `unwrap_model` loads torch's compiler on the way: 1.2 s."""
        return model.module if isinstance(model, DataParallel | DistributedDataParallel) else model

    def warm_up(self, model: nn.Module, images: Tensor, *, always: bool = False) -> None:
        """Compute and exchange gradients once, and forget them. Without DDP only where `always` says so.

        After its first exchange DDP lays its buckets out in another order, and a number's place in its bucket decides
        in which order three ranks or more add it up. Without this, the first step after a resume would differ from
        the same step of an uninterrupted run in its last bits.
        """
        if not (always or isinstance(model, DistributedDataParallel)):
            return
        before = [buffer.clone() for buffer in model.buffers()]
        model(images).sum().backward()
        refuse_unused_parameters(model)
        model.zero_grad(set_to_none=True)
        for buffer, old in zip(model.buffers(), before, strict=True):
            buffer.copy_(old)

    def backward(self, loss: Tensor) -> None:
        """Gradients of this micro batch's share of the global batch. Accelerate divides by 1 too: two kernels."""
        if self.accelerator.scaler is None and self.accelerator.gradient_accumulation_steps == 1:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.accelerator.backward(loss)

    def seed(self, number: int) -> None:
        """Set the generators that a step draws from: the CPU's, and those of the GPUs that this rank computes on.

        torch.manual_seed does the same, but where CUDA has not started it also writes down who called, for later: it
        looks for the source files of the whole stack, in each step.
        """
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            every, own = torch.cuda.default_generators, self.device.index or 0
            for generator in every if self.parallel == "dp" else every[own : own + 1]:
                generator.manual_seed(number)

    def check_initial_weights(self, net: nn.Module) -> None:
        """Compare all ranks' parameters and buffers by hash. To be called before DDP, which hides a difference: it
        copies rank 0's weights to all.

        Raises:
            Failure: NODE, naming the ranks that differ from rank 0.
        """
        if self.control is None:
            return
        prints = self.all_gather((socket.gethostname(), hash_weights(net)))
        others = [f"rank {rank} on {host}" for rank, (host, found) in enumerate(prints) if found != prints[0][1]]
        if others:
            raise Failure(
                "the ranks begin with different weights",
                found=f"{', '.join(others)} differ from rank 0 on {prints[0][0]}",
                expected="the same initial weights on all ranks, bit by bit",
                fix="if the model is your own, let it draw from torch's generator only; else leave these nodes out",
                code=ExitCode.NODE,
            )

    def all_reduce_sum(self, sums: Tensor) -> Tensor:
        """The sum over all ranks, in place, on the device that `sums` is on."""
        if self.control is not None:
            dist.all_reduce(sums)
        return sums

    def run_on_rank_zero(self, action: Callable[[], T]) -> T:
        """What `action` returns on rank 0, on every rank; also a Failure, so that all end for the same reason."""
        answer: list[Any] = [_value_or_failure(action)] if self.is_main else [None]
        if self.control is not None:
            dist.broadcast_object_list(answer, src=0, group=self.control)
        value, failure = answer[0]
        if failure is not None:
            raise Failure(**failure)
        return value  # type: ignore[no-any-return]

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of the ranks, on every rank."""
        values = [value] * self.world.world_size
        if self.control is not None:
            dist.all_gather_object(values, value, group=self.control)
        return values

    def clock_skew_notes(self, clock: Callable[[], float] = time.time) -> tuple[str, ...]:
        """What is to be said of the nodes' clocks. To be called by all ranks: they look after they have met."""
        self.barrier()
        told = self.all_gather((self.world.node_rank, socket.gethostname(), clock()))
        return rendezvous.clock_skew_warnings(
            [rendezvous.ClockReading(node=node, host=host, seconds=s) for node, host, s in told]
        )

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.control is not None:
            dist.barrier(group=self.control)

    def close(self) -> None:
        """Leave the process group, where there is one."""
        if dist.is_initialized():
            dist.destroy_process_group()


def refuse_unused_parameters(model: nn.Module) -> None:
    """After a backward pass with the exchange of gradients: whether each weight had a part in it, on this rank.

    DDP looks at its next forward pass. By then a rank that has left a weight out may wait for the others at their next
    meeting, while they wait in their backward pass for that weight's gradient.

    Raises:
        Failure: USAGE, naming the weights.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    try:
        model._check_reducer_finalized()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        trained = [name for name, weight in model.module.named_parameters() if weight.requires_grad]
        numbers = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        idle = [trained[int(number)] for number in numbers[1].split()] if numbers else [str(error).split(". ")[0]]
        raise Failure(
            "a weight took no part in the training of a rank, and the other ranks wait for its gradient",
            found=f"no gradient for {', '.join(idle[:3])}{', ...' if len(idle) > 3 else ''}",
            expected="each weight that is trained has a part in each forward pass, on every rank",
            fix="in the model's forward add 0 * p.sum() of each weight p that it leaves out, or freeze it "
            "(requires_grad=False)",
            code=ExitCode.USAGE,
        ) from error


def hash_weights(net: nn.Module) -> str:
    """sha256 over the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def start(config: RunConfig, world: World, environ: MutableMapping[str, str], *, accumulation: int) -> Runtime:
    """Meet the other ranks and set this one up.

    Changes `environ`, which Accelerate reads: see `set_accelerate_environment`.

    Raises:
        Failure: NODE without the GPU, USAGE for a precision that the device does not have, PEER and
            LAUNCH_CONFLICT where the ranks do not meet.
    """
    kind, exact = environ.get("ENTRYPOINT_DEVICE", "cpu"), checks.is_bitwise(config.train)
    if exact:
        use_bitwise_arithmetic(kind, environ)
    device = choose_device(kind, world.local_rank)
    precision = choose_precision(config.train.precision, device)
    allow_tf32(config.train.tf32)
    use_deterministic_cudnn(device)
    control = _init_process_group(config, world, environ, device)
    set_accelerate_environment(environ, world, device)
    return Runtime(
        world=world,
        device=device,
        precision=precision,
        cores=torch.get_num_threads(),  # OMP_NUM_THREADS, which our parent sets to cores per rank
        accelerator=_build_accelerator(device, precision, 1 if exact else accumulation, config.train),
        parallel="none" if exact else config.train.parallel,
        control=control,
    )


def set_accelerate_environment(environ: MutableMapping[str, str], world: World, device: torch.device) -> None:
    """Leave in `environ` what makes Accelerate do as it is told.

    It takes LOCAL_RANK for the GPU's index (accelerate#3775: wrong where each rank sees one GPU). A world of one must
    not show any sign of more. Its own variables are gone by now: see `environment.remove_conflicting_variables`.
    """
    for name in MULTI_PROCESS_VARIABLES if world.world_size == 1 else ():
        environ.pop(name, None)
    if world.world_size > 1:
        environ["LOCAL_RANK"] = str(device.index or 0) if device.type == "cuda" else str(world.local_rank)


def _init_process_group(
    config: RunConfig, world: World, environ: Mapping[str, str], device: torch.device
) -> dist.ProcessGroup | None:
    """Meet the others. Gloo on the CPU, NCCL on GPUs, and one gloo group for decisions in both cases."""
    if world.world_size == 1:
        return None
    timeouts = config.launch.timeouts
    gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
    store = rendezvous.connect(world, environ, timeouts.start, gpu)
    silence = process_group_timeout(timeouts)
    backend = "nccl" if device.type == "cuda" else "gloo"
    own = device if device.type == "cuda" else None
    dist.init_process_group(
        backend, store=store, rank=world.rank, world_size=world.world_size, timeout=silence, device_id=own
    )
    return dist.new_group(backend="gloo", timeout=silence)  # type: ignore[return-value]  # we are in it


def process_group_timeout(timeouts: Timeouts) -> timedelta:
    """How long torch waits for another rank: longer than any silence that the hang watch allows."""
    step = MAX_AUTO_STEP_TIMEOUT_S if timeouts.step == "auto" else timeouts.step
    longest = max(step, timeouts.start, timeouts.save, timeouts.evaluation, timeouts.data)
    return timedelta(seconds=longest + PROCESS_GROUP_TIMEOUT_MARGIN_S)


def _build_accelerator(device: torch.device, precision: str, accumulation: int, train: TrainConfig) -> Accelerator:
    """Not with DDP's static_graph: it spares the search for parameters that were not used, which is off here anyway."""
    ddp = DistributedDataParallelKwargs(
        gradient_as_bucket_view=True, bucket_cap_mb=train.bucket_cap_mb, comm_hook=COMM_HOOKS[train.gradient_exchange]
    )
    plugin = GradientAccumulationPlugin(num_steps=accumulation, adjust_scheduler=False, sync_with_dataloader=False)
    return Accelerator(
        mixed_precision=ACCELERATE_PRECISIONS[precision],
        cpu=device.type == "cpu",
        gradient_accumulation_plugin=plugin,
        kwargs_handlers=[ddp],
    )


def _value_or_failure(action: Callable[[], Any]) -> tuple[Any, dict[str, Any] | None]:
    try:
        return action(), None
    except Failure as failure:
        return None, failure.arguments()
