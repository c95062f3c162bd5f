"""The runtime gives a rank its device, precision, process group and Accelerator.

`start` takes a World and the config, meets the other ranks, and returns a `Runtime`. Two questions to a running group
are here too: whether all ranks see the same folder, and which of NCCL's operations have not ended.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import socket
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import accelerate.state
import torch
import torch.nested._internal.nested_tensor  # else the first backward pass loads it, perhaps after a signal
from accelerate import Accelerator
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs, GradientAccumulationPlugin
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from entrypoint import ExitCode, Failure, World, file_writer, list_some
from train import files
from train.config import checks
from train.config.precisions import PRECISIONS
from train.config.schema import RunConfig, Timeouts, TrainConfig
from train.distributed import rendezvous
from train.distributed.device import (
    allow_tf32,
    choose_device,
    choose_precision,
    gpu_uuid,
    set_up_cudnn,
    use_bitwise_arithmetic,
)

T = TypeVar("T")
# bf16: ranks exchange half as many bytes, and the sum is rounded once more.
COMM_HOOKS: Final = {"fp32": DDPCommunicationHookType.NO, "bf16": DDPCommunicationHookType.BF16}
# If one of these is set, Accelerate expects several processes.
MULTI_PROCESS_VARIABLES: Final = ("LOCAL_RANK", "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
MAX_AUTO_STEP_TIMEOUT_S: Final = 1800.0  # launch.timeouts.step=auto chooses no longer one
PROCESS_GROUP_TIMEOUT_MARGIN_S: Final = 120.0  # torch's timeouts come after the hang watch's, which says more


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What a rank computes with. cpu_group: a gloo group for small decisions on the CPU; None for a single rank."""

    world: World
    device: torch.device
    precision: str
    cores: int
    accelerator: Accelerator
    parallel: str
    cpu_group: dist.ProcessGroup | None

    @property
    def is_main(self) -> bool:
        """Whether this is world rank 0, which writes the run's files."""
        return self.world.rank == 0

    def prepare(self, net: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """Move the network to the device and let Accelerate wrap both. Several ranks get DDP.

        DataParallel is applied before Accelerate. It copies the network to each GPU, and Accelerate replaces the
        network's forward (autocast): a copy of that forward would compute with the first GPU's weights.
        """
        if self.parallel == "dp" and (self.device.type == "cuda" or not torch.cuda.is_available()):
            net = DataParallel(net.to(self.device))  # over all visible GPUs; without any it passes through
        # Moved by us: Accelerate would first import a tensor class, which takes 0.5 s.
        net, placed = net.to(self.device), False
        if self.parallel == "none":  # also for several ranks, whose gradients a tree sums (train.distributed.bitwise)
            alone = self.accelerator.prepare_model(net, device_placement=placed, evaluation_mode=True)
            return alone, self.accelerator.prepare_optimizer(optimizer)
        model, wrapped = self.accelerator.prepare(net, optimizer, device_placement=[placed, None])
        if isinstance(model, DistributedDataParallel):
            # Rank 0's buffers alone count (`validator.broadcast_buffers`). Set here: torch 2.15 warns of the argument.
            model.broadcast_buffers = False
        return model, wrapped

    def wrap_again(self, network: nn.Module, optimizer: Optimizer) -> nn.Module:
        """Wrap the network in a new DDP, after other parameters of it require gradients: the old one has noted which.

        No reference to the old one may be left but Accelerate's: its hooks on the parameters end with it.
        """
        self.accelerator.free_memory()
        self.accelerator.prepare_optimizer(optimizer)
        model = self.accelerator.prepare_model(network, device_placement=False)
        if isinstance(model, DistributedDataParallel):
            model.broadcast_buffers = False
        return model  # type: ignore[no-any-return]

    def unwrap(self, model: nn.Module) -> nn.Module:
        """The network without its wrapper. Accelerate's `unwrap_model` would load torch's compiler: 1.2 s."""
        return model.module if isinstance(model, DataParallel | DistributedDataParallel) else model

    def warm_up(self, model: nn.Module, images: Tensor, *, always: bool = False) -> None:
        """Compute and exchange gradients once, and discard them. Without DDP only if `always` is set.

        After its first exchange DDP reorders its buckets, and the position in a bucket decides in which order
        three or more ranks sum a number. Without this, the first step after a resume would differ in its last
        bits from the same step of an uninterrupted run.
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
        """Compute the gradients of a micro batch. Accelerate would divide even by 1, with two kernels."""
        if self.accelerator.scaler is None and self.accelerator.gradient_accumulation_steps == 1:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.accelerator.backward(loss)

    def seed(self, number: int) -> None:
        """Seed the random generators that a step uses: the CPU's, and those of this rank's GPUs.

        torch.manual_seed does the same. But before CUDA has started, it also records its caller for later, and
        reads the source files of the complete stack in each step.
        """
        torch.default_generator.manual_seed(number)
        if self.device.type == "cuda":
            every, own = torch.cuda.default_generators, self.device.index or 0
            for generator in every if self.parallel == "dp" else every[own : own + 1]:
                generator.manual_seed(number)

    def check_initial_weights(self, net: nn.Module) -> None:
        """Compare the hashes of all ranks' parameters and buffers.

        Call it before DDP, which would hide a difference: it copies rank 0's weights to all ranks.

        Raises:
            Failure: NODE, naming the ranks that differ from rank 0.
        """
        if self.cpu_group is None:
            return
        weights = self.all_gather((socket.gethostname(), hash_weights(net)))
        others = [f"rank {rank} on {host}" for rank, (host, digest) in enumerate(weights) if digest != weights[0][1]]
        if others:
            raise Failure(
                "the ranks begin with different weights",
                found=f"{', '.join(others)} differ from rank 0 on {weights[0][0]}",
                expected="the same initial weights on all ranks, bit by bit",
                fix="if the model is your own, let it draw from torch's generator only; else leave these nodes out",
                code=ExitCode.NODE,
            )

    def all_reduce_sum(self, sums: Tensor) -> Tensor:
        """Sum over all ranks, in place, on the device of `sums`."""
        if self.cpu_group is not None:
            dist.all_reduce(sums)
        return sums

    def run_on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run `action` on rank 0; return its result, or raise its Failure, on every rank."""
        answer: list[Any] = [_value_or_failure(action)] if self.is_main else [None]
        if self.cpu_group is not None:
            dist.broadcast_object_list(answer, src=0, group=self.cpu_group)
        value, failure = answer[0]
        if failure is not None:
            raise Failure(**failure)
        return value  # type: ignore[no-any-return]

    def all_gather(self, value: T) -> list[T]:
        """Every rank's value, in the order of the ranks, on every rank."""
        values = [value] * self.world.world_size
        if self.cpu_group is not None:
            dist.all_gather_object(values, value, group=self.cpu_group)
        return values

    def clock_skew_notes(self, clock: Callable[[], float] = time.time) -> tuple[str, ...]:
        """Warnings about clocks that differ between nodes. All ranks call it, and read their clocks together."""
        self.barrier()
        readings = self.all_gather((self.world.node_rank, socket.gethostname(), clock()))
        return rendezvous.clock_skew_warnings(
            [rendezvous.ClockReading(node=node, host=host, seconds=s) for node, host, s in readings]
        )

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.cpu_group is not None:
            dist.barrier(group=self.cpu_group)

    def close(self) -> None:
        """Leave the process group, if there is one."""
        if dist.is_initialized():
            dist.destroy_process_group()


def refuse_unused_parameters(model: nn.Module) -> None:
    """Check after a backward pass with DDP that each parameter of this rank received a gradient.

    DDP itself checks this only in its next forward pass. That is too late: the rank that left a parameter out may
    wait in the next collective operation, while the other ranks still wait for that parameter's gradient.

    Raises:
        Failure: USAGE, naming the parameters.
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
            "a parameter received no gradient; DDP requires every trainable parameter to be used in every forward pass",
            found=f"no gradient for {list_some(idle, 3)} on rank {dist.get_rank()}",
            expected="a gradient for every trainable parameter, on every rank",
            fix="in the model's forward add 0 * p.sum() for each parameter p that it leaves out, or freeze it "
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
    """Meet the other ranks and return this rank's Runtime.

    Changes `environ`, which Accelerate reads: see `set_accelerate_environment`.

    Raises:
        Failure: NODE if the GPU is missing, USAGE for a precision that the device does not have, PEER and
            LAUNCH_CONFLICT if the ranks do not meet.
    """
    device_type, bitwise = environ.get("ENTRYPOINT_DEVICE", "cpu"), checks.is_bitwise(config.train)
    if bitwise:
        use_bitwise_arithmetic(device_type, environ)
    device = choose_device(device_type, world.local_rank)
    precision = choose_precision(config.train.precision, device)
    allow_tf32(config.train.tf32)
    set_up_cudnn(device, repeatable=checks.is_repeatable(config.train))
    cpu_group = _init_process_group(config, world, environ, device)
    set_accelerate_environment(environ, world, device)
    return Runtime(
        world=world,
        device=device,
        precision=precision,
        cores=torch.get_num_threads(),  # OMP_NUM_THREADS, which the parent process sets to the cores per rank
        accelerator=_build_accelerator(device, precision, 1 if bitwise else accumulation, config.train),
        parallel="none" if bitwise else config.train.parallel,
        cpu_group=cpu_group,
    )


def set_accelerate_environment(environ: MutableMapping[str, str], world: World, device: torch.device) -> None:
    """Set the variables in `environ` from which Accelerate derives the device and the number of processes.

    Accelerate uses LOCAL_RANK as the GPU's index, which is wrong if each rank sees one GPU (accelerate#3775). A
    single rank must not have variables of several processes. Accelerate's own variables were removed before: see
    `environment.remove_conflicting_variables`.
    """
    for name in MULTI_PROCESS_VARIABLES if world.world_size == 1 else ():
        environ.pop(name, None)
    if world.world_size > 1:
        environ["LOCAL_RANK"] = str(device.index or 0) if device.type == "cuda" else str(world.local_rank)


def _init_process_group(
    config: RunConfig, world: World, environ: MutableMapping[str, str], device: torch.device
) -> dist.ProcessGroup | None:
    """Meet the other ranks: with gloo on the CPU and NCCL on GPUs. Returns a gloo group for decisions."""
    if world.world_size == 1:
        return None
    timeouts = config.launch.timeouts
    store = rendezvous.connect(world, environ, timeouts.start, gpu_uuid(device))
    silence = process_group_timeout(timeouts)
    backend = "nccl" if device.type == "cuda" else "gloo"
    own = device if device.type == "cuda" else None
    dist.init_process_group(
        backend, store=store, rank=world.rank, world_size=world.world_size, timeout=silence, device_id=own
    )
    return dist.new_group(backend="gloo", timeout=silence)  # type: ignore[return-value]  # we are in it


def process_group_timeout(timeouts: Timeouts) -> timedelta:
    """How long torch waits for another rank: longer than the hang watch lets any rank be silent."""
    step = MAX_AUTO_STEP_TIMEOUT_S if timeouts.step == "auto" else timeouts.step
    longest = max(step, timeouts.start, timeouts.save, timeouts.evaluation, timeouts.data)
    return timedelta(seconds=longest + PROCESS_GROUP_TIMEOUT_MARGIN_S)


def _build_accelerator(device: torch.device, precision: str, accumulation: int, train: TrainConfig) -> Accelerator:
    """The Accelerator. DDP's static_graph would only spare the search for unused parameters, which is off."""
    ddp = DistributedDataParallelKwargs(
        gradient_as_bucket_view=True, bucket_cap_mb=train.bucket_cap_mb, comm_hook=COMM_HOOKS[train.gradient_exchange]
    )
    # Accelerate would run `nvidia-smi` without a time limit, which a lost GPU hangs. The doctor asks NVML the same.
    accelerate.state.check_cuda_p2p_ib_support = lambda: True
    plugin = GradientAccumulationPlugin(num_steps=accumulation, adjust_scheduler=False, sync_with_dataloader=False)
    return Accelerator(
        mixed_precision=PRECISIONS[precision].accelerate_name,
        cpu=device.type == "cpu",
        gradient_accumulation_plugin=plugin,
        kwargs_handlers=[ddp],
    )


def _value_or_failure(action: Callable[[], Any]) -> tuple[Any, dict[str, Any] | None]:
    try:
        return action(), None
    except Failure as failure:
        return None, failure.arguments()


FLIGHT_RECORDER_VARIABLE: Final = "TORCH_FR_DUMP_TEMP_FILE"  # the path of its file, without the rank
NOT_BEGUN: Final = ", not begun"
NEW_BACKEND: Final = "nccl2"  # torch 2.15's own; its recorder is another one


def save_and_describe(rank: int, environ: Mapping[str, str]) -> str:
    """Write the flight recorder's file of this rank (for torch's `torchfrtrace`), and tell its oldest unfinished entry.

    `all_reduce 42 of 80 numbers`, with `, not begun` if this rank's GPU has not reached it. Empty if all have ended. It
    asks neither the GPU nor another rank.
    """
    recorder: Any = torch._C._distributed_c10d
    trace, pickled = json.loads(recorder._dump_nccl_trace_json()), recorder._dump_nccl_trace
    if not trace.get("entries"):
        with suppress(TypeError, AttributeError):  # torch 2.10 has one recorder
            trace = json.loads(recorder._dump_fr_trace_json(backend=NEW_BACKEND))
            pickled = lambda: recorder._dump_fr_trace(backend=NEW_BACKEND)  # noqa: E731
    if path := environ.get(FLIGHT_RECORDER_VARIABLE):
        with suppress(OSError, RuntimeError), file_writer.replace_file(Path(f"{path}{rank}"), durable=False) as file:
            file.write(pickled())
    unfinished = [entry for entry in trace.get("entries", []) if entry["state"] != "completed"]
    return _describe(unfinished[0]) if unfinished else ""


def _describe(entry: Mapping[str, Any]) -> str:
    name, numbers = entry["profiling_name"].rpartition(":")[2], sum(map(math.prod, entry["input_sizes"]))
    begun = "" if entry["state"] == "started" else NOT_BEGUN
    return f"{name} {entry['collective_seq_id']} of {numbers:,} numbers{begun}"


# NFS may answer for 30 s from its cache of a folder (acdirmin), unless the folder is listed; many ranks may ask.
VISIBILITY_TIMEOUT_S, VISIBILITY_POLL_S = 35.0, 0.5


def refuse_unshared_folder(runtime: Runtime, folder: Path) -> None:
    """Refuse a run's folder in which some rank does not see a file that rank 0 has created.

    Raises:
        Failure: OUTPUT on all ranks, naming the nodes that do not see it; as in `files.ERRNO_MEANINGS` if rank 0
            cannot create it.
    """
    if runtime.cpu_group is None:
        return
    mark = folder / runtime.run_on_rank_zero(lambda: _write_marker(folder))
    seen = runtime.all_gather((socket.gethostname(), _wait_for_marker(mark)))
    if runtime.is_main:
        files.remove(mark)
    if apart := sorted({host for host, sees in seen if not sees}):
        raise Failure(
            "the run's folder is not the same one on all nodes: its checkpoints would stay on one of them",
            found=f"what {seen[0][0]} writes in {folder.absolute()} is not there on {', '.join(apart)}",
            expected="a folder on a file system that all nodes of the job share",
            fix="set run.output_dir to such a folder (/tmp and a node's own disk are none)",
            code=ExitCode.OUTPUT,
        )


def _write_marker(folder: Path) -> str:
    mark = file_writer.temporary_path(folder / "seen")
    with files.translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        files.create_file(mark, b"")
    return mark.name


def _wait_for_marker(mark: Path) -> bool:
    end = time.monotonic() + VISIBILITY_TIMEOUT_S
    while not os.path.exists(mark):  # Path.exists() of Python 3.11 raises NFS's error of a stale handle
        if time.monotonic() > end:
            return False
        for folder in (mark.parent.parent, mark.parent):
            with suppress(OSError):
                os.listdir(folder)
        time.sleep(VISIBILITY_POLL_S)
    return True
