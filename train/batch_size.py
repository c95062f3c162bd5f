"""With `train.micro_batch_size: auto`, trials on the device find the largest micro batch that fits.

What was found is kept in the run and in the user's cache, so that the next start uses the same.
"""

from __future__ import annotations

import gc
import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from entrypoint import ExitCode, Failure, Heartbeat
from train import files
from train.components import adapt_for_training, build_components, take_plain_step
from train.config.batches import MAX_AUTO_MICRO_BATCH, BatchSizes, compute_batch_sizes
from train.config.resolved import ResolvedConfig
from train.config.schema import is_factory
from train.data.splits import DataSplits
from train.distributed.device import is_out_of_memory
from train.distributed.runtime import Runtime
from train.optim import ema

# In a trial this mostly means that cuDNN found no algorithm for want of memory.
CUDNN_NOT_SUPPORTED: Final = "CUDNN_STATUS_NOT_SUPPORTED"
# torch's BatchNorm, of one sample with 1 x 1 features. Two samples fit less than one does.
SINGLE_VALUE: Final = "Expected more than 1 value per channel"


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """The memory of a GPU, in bytes, as torch and the driver count it."""

    device: torch.device

    @property
    def name(self) -> str:
        """NVIDIA H200, 139.8 GiB: a trial's result is valid for both."""
        facts = torch.cuda.get_device_properties(self.device)
        return f"{facts.name}, {facts.total_memory / 2**30:.1f} GiB"

    def free(self) -> int:
        """Memory that neither another process nor a tensor of this one holds."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def taken(self, attempt: Callable[[], None]) -> int | None:
        """What `attempt` made torch reserve from the driver, which is more than its tensors take; None: too much."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_reserved(self.device)
        fits = fits_in_memory(attempt)
        peak = torch.cuda.max_memory_reserved(self.device)
        gc.collect()  # a model may refer to itself
        torch.cuda.empty_cache()
        return peak - before if fits else None


def get_device_memory(device: torch.device) -> GpuMemory | None:
    """A GPU's memory. None for the CPU: the host pages and kills, it does not refuse."""
    return GpuMemory(device) if device.type == "cuda" else None


def fits_in_memory(attempt: Callable[[], None]) -> bool:
    """Whether `attempt` came to its end. The error, which holds on to all its tensors, is gone by then.

    Raises:
        Exception: whatever is no lack of memory.
    """
    try:
        attempt()
    except (RuntimeError, ValueError) as error:
        is_too_small = CUDNN_NOT_SUPPORTED in str(error) or SINGLE_VALUE in str(error)
        if not is_out_of_memory(error) and not is_too_small:
            raise
        return False
    return True


# Of the free memory: fragments, DDP's second set of buckets, NCCL's buffers and other batches need the rest.
USABLE_FRACTION: Final = 0.9
TRIAL_STEPS: Final = 2  # the optimizer has all its state from the second on
# A cached result is not used if this GPU has so many times the memory that the earlier search had.
MORE_MEMORY: Final = 1.1
GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchFit:
    """What trials found; run.json holds these fields.

    key: of device, configuration and world. needed, free: GiB on the rank with the least room.
    """

    micro: int
    key: str
    needed: float
    free: float

    def __str__(self) -> str:
        return f"auto: the largest that fits, {self.needed:.2f} of {self.free:.2f} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchCache:
    """Where results are kept: in the run's record, so that it continues with the same, and in the user's cache.

    folder: of the cache; None if no folder lasts. record: what the run's record says.
    """

    folder: Path | None
    record: Mapping[str, Any]

    def look_up(self, key: str, free: float) -> int | None:
        """The size that this run, or another one with as much free memory (GiB), has found for `key`.

        If another process held most of the memory then, a larger one may fit today.
        """
        cached = self._read(key)
        free_then = cached.get("free")
        is_similar = isinstance(free_then, float) and free <= MORE_MEMORY * free_then
        for entry in (self.record, cached if is_similar else {}):
            if entry.get("key") == key and isinstance(entry.get("micro"), int):
                return int(entry["micro"])
        return None

    def store(self, fit: MicroBatchFit) -> None:
        """Never fails: without it the next start searches again."""
        path = self._path(fit.key)
        if path is not None:
            with suppress(OSError, Failure):
                path.parent.mkdir(parents=True, exist_ok=True)
                files.write_json(path, asdict(fit))

    def _read(self, key: str) -> dict[str, Any]:
        path = self._path(key)
        return files.read_json_object(path) if path else {}

    def _path(self, key: str) -> Path | None:
        return self.folder / "micro-batches" / f"{key}.json" if self.folder else None


NO_CACHE: Final = MicroBatchCache(folder=None, record={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Trials of the run on this rank's device: with its network, optimizer, loss and average of the weights.

    free: bytes before the first trial. taken: bytes by micro batch; None if they did not fit.
    """

    resolved: ResolvedConfig
    splits: DataSplits
    runtime: Runtime
    memory: GpuMemory
    heartbeat: Heartbeat
    free: int
    taken: dict[int, int | None]

    def fits(self, micro: int) -> bool:
        """Whether two steps leave the margin."""
        self.heartbeat.beat("data")
        taken = self.taken[micro] = self.memory.taken(lambda: self.train(micro))
        return taken is not None and taken <= USABLE_FRACTION * self.free

    def train(self, micro: int) -> None:
        """Two optimizer steps of one made-up micro batch, with a new model and optimizer."""
        runtime, train = self.runtime, self.resolved.used.train
        device, fused = runtime.device, runtime.accelerator.scaler is None
        components = build_components(self.resolved, self.splits, device=device, fused=fused, move=runtime.to_device)
        # As on a single rank: SyncBatchNorm would wait for the trials of the other ranks, which may be fewer.
        network = adapt_for_training(self.resolved.used, components.network, world_size=1)
        average = ema.build_average(train, network)
        batch = components.task.example(micro, self.splits.shape, device)
        for _ in range(TRIAL_STEPS):
            take_plain_step(components, network, batch, runtime.accelerator.autocast)
        del average


def find_micro_batch(
    resolved: ResolvedConfig,
    splits: DataSplits,
    runtime: Runtime,
    batches: BatchSizes,
    cache: MicroBatchCache,
    heartbeat: Heartbeat,
) -> tuple[BatchSizes, MicroBatchFit | None]:
    """With train.micro_batch_size=auto on GPUs: the largest micro batch that fits on every rank. All ranks agree.

    Raises:
        Failure: RESOURCE if one sample does not fit.
    """
    memory = get_device_memory(runtime.device)
    if memory is None or resolved.used.train.micro_batch_size != "auto" or runtime.parallel == "dp":
        return batches, None
    runtime.all_reduce_sum(torch.zeros(1, device=runtime.device))  # allocates what NCCL's first all-reduce needs
    trials = Trials(
        resolved=resolved,
        splits=splits,
        runtime=runtime,
        memory=memory,
        heartbeat=heartbeat,
        free=memory.free(),
        taken={},
    )
    key = _cache_key(trials, batches)
    least_free = min(runtime.all_gather(trials.free))
    cached = runtime.run_on_rank_zero(lambda: cache.look_up(key, least_free / GIB))
    with torch.random.fork_rng([runtime.device.index] if runtime.device.type == "cuda" else []):
        fit = _agree_on_fit(trials, batches, key, cached)
    runtime.run_on_rank_zero(lambda: cache.store(fit))
    sizes = compute_batch_sizes(batches.global_, fit.micro, batches.world)
    return replace(sizes, why=str(fit)), fit


def find_largest(sizes: Sequence[int], fits: Callable[[int], bool], first: int) -> int | None:
    """The largest of the rising `sizes` that fits: doubling from about `first` on, then bisection."""
    good, bad = -1, len(sizes)
    index = max(0, bisect_left(sizes, first + 1) - 1)
    while bad - good > 1:
        if fits(sizes[index]):
            good = index
        else:
            bad = index
        doubled = min(bisect_left(sizes, 2 * sizes[good]), len(sizes) - 1)
        index = doubled if bad == len(sizes) else (good + bad) // 2
    return sizes[good] if good >= 0 else None


def divisors(number: int) -> list[int]:
    """All divisors, rising."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)})


def _agree_on_fit(trials: Trials, batches: BatchSizes, key: str, cached: int | None) -> MicroBatchFit:
    """What the rank with the least room can hold. A cached size is tried alone; all others only if it fails."""
    runtime, free = trials.runtime, trials.free
    sizes = divisors(batches.global_ // batches.world)
    if cached in sizes and all(runtime.all_gather(trials.fits(cached))):
        micro = cached
    else:
        largest = runtime.all_gather(find_largest(sizes, trials.fits, MAX_AUTO_MICRO_BATCH) or 0)
        _refuse_too_small(largest, runtime, trials.taken.get(1), free)
        micro = min(largest)
    if micro not in trials.taken:  # another rank had less room
        trials.fits(micro)
    usage = runtime.all_gather((trials.taken[micro] or 0, free))
    needed, free = max(usage, key=lambda rank: rank[0] / rank[1])
    return MicroBatchFit(micro=micro, key=key, needed=needed / GIB, free=free / GIB)


def _refuse_too_small(largest: Sequence[int], runtime: Runtime, needed: int | None, free: int) -> None:
    if all(largest):
        return
    rank = largest.index(0)
    rank_needed, rank_free = runtime.all_gather((needed, free))[rank]
    takes = "more" if rank_needed is None else f"{rank_needed / GIB:.2f} GiB"
    raise Failure(
        "out of GPU memory: two steps of one sample do not fit",
        found=f"rank {rank} has {rank_free / GIB:.2f} GiB free, and they take {takes}",
        expected=f"at most {USABLE_FRACTION:.0%} of what is free",
        fix="take GPUs with more memory, a smaller model or smaller images; see who else uses the GPU: nvidia-smi",
        code=ExitCode.RESOURCE,
    )


def _cache_key(trials: Trials, batches: BatchSizes) -> str:
    """A hash of everything that decides how much fits, as far as it has a name."""
    config, train, runtime = trials.resolved.used, trials.resolved.used.train, trials.runtime
    parts: list[Any] = [config.model.name, config.model.args]
    parts += [config.optim.name, config.optim.args, config.optim.momentum]
    parts += [config.optim.loss] if is_factory(config.optim.loss) else []
    parts += ["activation_checkpointing"] if train.activation_checkpointing else []
    parts += [ema.memory_key(train), train.sync_batchnorm, str(train.compile), runtime.precision, runtime.parallel]
    parts += [len(trials.splits.classes), trials.splits.shape.input, batches.global_, batches.world, torch.__version__]
    parts.append(sorted(set(runtime.all_gather(trials.memory.name))))
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]
