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
from typing import Any, Final, Protocol

import torch

from entrypoint import ExitCode, Failure, Heartbeat
from train import files
from train.config.batches import MAX_AUTO_MICRO_BATCH, BatchSizes, compute_batch_sizes
from train.config.schema import RunConfig
from train.data.shape import Shape
from train.distributed.device import is_out_of_memory
from train.distributed.runtime import Runtime
from train.models import registry
from train.optim import optimizer as optimizers
from train.optim.ema import EMA
from train.optim.loss import Criterion

# In a trial cuDNN's word for having found no way, mostly for want of memory; elsewhere it may mean what it says.
CUDNN_NOT_SUPPORTED: Final = "CUDNN_STATUS_NOT_SUPPORTED"


class DeviceMemory(Protocol):
    """The memory of one device."""

    @property
    def name(self) -> str:
        """The device's, and how much it has in all: what a trial's result holds for."""

    def free(self) -> int:
        """Bytes that this process may still take."""

    def taken(self, attempt: Callable[[], None]) -> int | None:
        """Bytes that `attempt` held at most, and gave back; None where there were not as many."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A GPU's, as torch and the driver count it."""

    device: torch.device

    @property
    def name(self) -> str:
        """NVIDIA H200, 139.8 GiB."""
        facts = torch.cuda.get_device_properties(self.device)
        return f"{facts.name}, {facts.total_memory / 2**30:.1f} GiB"

    def free(self) -> int:
        """What nobody has: neither another process nor a tensor of this one."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def taken(self, attempt: Callable[[], None]) -> int | None:
        """What torch asked the driver for: more than its tensors have, and what counts."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_reserved(self.device)
        fits = fits_in_memory(attempt)
        most = torch.cuda.max_memory_reserved(self.device)
        gc.collect()  # a network may hold itself
        torch.cuda.empty_cache()
        return most - before if fits else None


def get_device_memory(device: torch.device) -> DeviceMemory | None:
    """A GPU's memory. None for the CPU: the host pages and kills, it does not refuse."""
    return GpuMemory(device) if device.type == "cuda" else None


def fits_in_memory(attempt: Callable[[], None]) -> bool:
    """Whether `attempt` came to its end. The error, which holds on to all its tensors, is gone by then.

    Raises:
        Exception: whatever is no lack of memory.
    """
    try:
        attempt()
    except RuntimeError as error:
        if not is_out_of_memory(error) and CUDNN_NOT_SUPPORTED not in str(error):
            raise
        return False
    return True


# Of the memory that is free: fragments, DDP's second set of buckets, NCCL's buffers and other batches need the rest.
SHARE: Final = 0.9
STEPS: Final = 2  # the optimizer has all its state from the second on
MORE: Final = 1.1  # so many times the memory that a search had, and it is worth another
GIB: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What trials found. key: of device, configuration and world; needed, free: GiB on the rank with the least room."""

    micro: int
    key: str
    needed: float
    free: float

    def __str__(self) -> str:
        return f"auto: the largest that fits, {self.needed:.2f} of {self.free:.2f} GiB"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notebook:
    """Where what was found is kept: in the run's record, so that it goes on with the same, and in the caches.

    caches: None where no folder lasts.
    """

    caches: Path | None
    record: Mapping[str, Any]

    def recall(self, key: str, free: float) -> int | None:
        """The size that was found for `key`: by this run, or by another that had as much of the memory as is `free`
        now (GiB). Where another process held most of it, a larger one may fit today."""
        kept = self._kept(key)
        room = kept.get("free")
        similar = isinstance(room, float) and free <= MORE * room
        for known in (self.record, kept if similar else {}):
            if known.get("key") == key and isinstance(known.get("micro"), int):
                return int(known["micro"])
        return None

    def note(self, fit: Fit) -> None:
        """Never fails: without it the next start tries again."""
        if self.caches is not None:
            with suppress(OSError, Failure):
                self._place(fit.key).parent.mkdir(parents=True, exist_ok=True)
                files.write_json(self._place(fit.key), asdict(fit))

    def _kept(self, key: str) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found = json.loads(self._place(key).read_bytes()) if self.caches else {}
            return found if isinstance(found, dict) else {}
        return {}

    def _place(self, key: str) -> Path:
        assert self.caches is not None
        return self.caches / "micro-batches" / f"{key}.json"


NOWHERE: Final = Notebook(caches=None, record={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is tried: as the training has it, but for the samples."""

    config: RunConfig
    classes: int
    shape: Shape
    criterion: Criterion


def fitted(
    model: Model, runtime: Runtime, batch: BatchSizes, notes: Notebook, pulse: Heartbeat
) -> tuple[BatchSizes, Fit | None]:
    """`batch` with the largest micro batch that fits on every rank, where that is to be found out; all ranks agree.

    Raises:
        Failure: RESOURCE, where one sample does not fit.
    """
    memory = get_device_memory(runtime.device)
    if memory is None or model.config.train.micro_batch_size != "auto" or runtime.parallel == "dp":
        return batch, None
    runtime.total(torch.zeros(1, device=runtime.device))  # what the ranks' first exchange takes is taken before
    key = _key(model, runtime, batch, memory)
    least = min(runtime.gathered(memory.free()))
    known = runtime.shared(lambda: notes.recall(key, least / GIB))
    with torch.random.fork_rng([runtime.device.index] if runtime.device.type == "cuda" else []):
        fit = _agreed(model, runtime, batch, memory, key, known, pulse)
    runtime.shared(lambda: notes.note(fit))
    found = compute_batch_sizes(batch.global_, fit.micro, batch.world)
    runtime.accelerator.gradient_accumulation_steps = found.accumulation
    return replace(found, why=str(fit)), fit


def largest(sizes: Sequence[int], fits: Callable[[int], bool], first: int) -> int | None:
    """The largest of `sizes`, which rise, that fits. From about `first` on in doubles, then between the last two."""
    good, bad = -1, len(sizes)
    at = max(0, bisect_left(sizes, first + 1) - 1)
    while bad - good > 1:
        if fits(sizes[at]):
            good = at
        else:
            bad = at
        doubled = min(bisect_left(sizes, 2 * sizes[good]), len(sizes) - 1)
        at = doubled if bad == len(sizes) else (good + bad) // 2
    return sizes[good] if good >= 0 else None


def divisors(number: int) -> list[int]:
    """All of them, rising."""
    below = [part for part in range(1, int(number**0.5) + 1) if number % part == 0]
    return sorted({*below, *(number // part for part in below)})


def rehearsed(model: Model, runtime: Runtime, micro: int) -> None:
    """Two optimizer steps of one micro batch, with a network and an optimizer of their own."""
    config, device = model.config, runtime.device
    net = registry.build_model(config.model, classes=model.classes, shape=model.shape, seed=config.run.seed).to(device)
    optimizer = optimizers.build_optimizer(config.optim, net, device, fused=runtime.accelerator.scaler is None)
    average = EMA(net, config.train.ema_decay) if config.train.ema_decay is not None else None
    images = registry.to_channels_last(torch.rand((micro, *model.shape.input), device=device))
    labels = torch.zeros(micro, dtype=torch.int64, device=device)
    aimed = model.criterion.to(device)
    for _ in range(STEPS):
        with runtime.accelerator.autocast():
            loss = aimed(net(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    del average, loss


def _agreed(
    model: Model,
    runtime: Runtime,
    batch: BatchSizes,
    memory: DeviceMemory,
    key: str,
    known: int | None,
    pulse: Heartbeat,
) -> Fit:
    """What the rank with the least room can hold. A size that is known is tried alone, and all others if it fails."""
    free = memory.free()
    trials = _Trials(model=model, runtime=runtime, memory=memory, free=free, pulse=pulse, taken={})
    sizes = divisors(batch.global_ // batch.world)
    if known in sizes and all(runtime.gathered(trials.fits(known))):
        micro = known
    else:
        found = runtime.gathered(largest(sizes, trials.fits, MAX_AUTO_MICRO_BATCH) or 0)
        _refuse_none(found, runtime, trials.taken.get(1), free)
        micro = min(found)
    if micro not in trials.taken:  # another rank had less room
        trials.fits(micro)
    told = runtime.gathered((trials.taken[micro] or 0, free))
    needed, free = max(told, key=lambda one: one[0] / one[1])
    return Fit(micro=micro, key=key, needed=needed / GIB, free=free / GIB)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trials:
    """taken: bytes by micro batch; None where they were too many."""

    model: Model
    runtime: Runtime
    memory: DeviceMemory
    free: int
    pulse: Heartbeat
    taken: dict[int, int | None]

    def fits(self, micro: int) -> bool:
        """Whether two steps leave the margin."""
        self.pulse.beat("data")
        found = self.taken[micro] = self.memory.taken(lambda: rehearsed(self.model, self.runtime, micro))
        return found is not None and found <= SHARE * self.free


def _refuse_none(found: Sequence[int], runtime: Runtime, needed: int | None, free: int) -> None:
    if all(found):
        return
    least = runtime.gathered((needed, free))[found.index(0)]
    takes = "more" if least[0] is None else f"{least[0] / GIB:.2f} GiB"
    raise Failure(
        "out of GPU memory: two steps of one sample do not fit",
        found=f"rank {found.index(0)} has {least[1] / GIB:.2f} GiB free, and they take {takes}",
        expected=f"at most {SHARE:.0%} of what is free",
        fix="take GPUs with more memory, a smaller model or smaller images; see who else uses the GPU: nvidia-smi",
        code=ExitCode.RESOURCE,
    )


def _key(model: Model, runtime: Runtime, batch: BatchSizes, memory: DeviceMemory) -> str:
    """Of all that decides how much fits, as far as it has a name."""
    config, train = model.config, model.config.train
    parts: list[Any] = [config.model.name, config.model.args]
    parts += [config.optim.name, config.optim.args, config.optim.momentum]
    parts += [train.ema_decay, train.sync_batchnorm, str(train.compile), runtime.precision, runtime.parallel]
    parts += [model.classes, model.shape.input, batch.global_, batch.world, torch.__version__]
    parts.append(sorted(set(runtime.gathered(memory.name))))
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]
