"""The runtime gives a rank its device, precision, process group and Accelerator.

`start` takes a World and the config, meets the other ranks, and returns a `Runtime`. Two questions to a running group
are here too: whether all ranks see the same folder, and which of NCCL's operations have not ended.
"""

from __future__ import annotations

import json
import math
import os
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
from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs
from torch import Tensor, nn
from torch import distributed as dist

from entrypoint import DEVICE_VARIABLE, ExitCode, Failure, World, file_writer
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

    def to_device(self, network: nn.Module) -> nn.Module:
        """The network on this rank's device, in its precision.

        Accelerate could move it too, but would first import a tensor class, which takes 0.5 s.
        """
        return PRECISIONS[self.precision].convert(network.to(self.device))  # type: ignore[no-any-return]

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


def start(config: RunConfig, world: World, environ: MutableMapping[str, str]) -> Runtime:
    """Meet the other ranks and return this rank's Runtime.

    Changes `environ`, which Accelerate reads: see `set_accelerate_environment`.

    Raises:
        Failure: NODE if the GPU is missing, USAGE for a precision that the device does not have, PEER and
            LAUNCH_CONFLICT if the ranks do not meet.
    """
    device_type = environ.get(DEVICE_VARIABLE, "cpu")
    if checks.is_bitwise(config.train):
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
        accelerator=_build_accelerator(device, precision, config.train),
        parallel=config.train.parallel,
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


def _build_accelerator(device: torch.device, precision: str, train: TrainConfig) -> Accelerator:
    """The Accelerator. DDP's static_graph would only spare the search for unused parameters, which is off."""
    ddp = DistributedDataParallelKwargs(
        gradient_as_bucket_view=True, bucket_cap_mb=train.bucket_cap_mb, comm_hook=COMM_HOOKS[train.gradient_exchange]
    )
    # Accelerate would run `nvidia-smi` without a time limit, which a lost GPU hangs. The doctor asks NVML the same.
    accelerate.state.check_cuda_p2p_ib_support = lambda: True
    name = PRECISIONS[precision].accelerate_name
    return Accelerator(mixed_precision=name, cpu=device.type == "cpu", kwargs_handlers=[ddp])


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
