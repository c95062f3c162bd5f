"""`train.micro_batch_size: auto` on a GPU: the largest part of the global batch that fits, found by trials."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from entrypoint import ExitCode, Failure, Pulse
from train.data.shape import Shape
from train.files import durable
from train.models import networks
from train.optim import optimizers
from train.optim.criterion import Criterion
from train.optim.ema import Average
from train.ranks import devicememory
from train.ranks.devicememory import Memory
from train.ranks.runtime import Runtime
from train.settings.batches import LARGEST_AUTO, Batches, batches
from train.settings.config import RunConfig

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
                durable.write_json(self._place(fit.key), asdict(fit))

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


def fitted(model: Model, runtime: Runtime, batch: Batches, notes: Notebook, pulse: Pulse) -> tuple[Batches, Fit | None]:
    """`batch` with the largest micro batch that fits on every rank, where that is to be found out; all ranks agree.

    Raises:
        Failure: RESOURCE, where one sample does not fit.
    """
    memory = devicememory.of(runtime.device)
    if memory is None or model.config.train.micro_batch_size != "auto" or runtime.parallel == "dp":
        return batch, None
    runtime.total(torch.zeros(1, device=runtime.device))  # what the ranks' first exchange takes is taken before
    key = _key(model, runtime, batch, memory)
    least = min(runtime.gathered(memory.free()))
    known = runtime.shared(lambda: notes.recall(key, least / GIB))
    with torch.random.fork_rng([runtime.device.index] if runtime.device.type == "cuda" else []):
        fit = _agreed(model, runtime, batch, memory, key, known, pulse)
    runtime.shared(lambda: notes.note(fit))
    found = batches(batch.global_, fit.micro, batch.world)
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
    net = networks.build(config.model, classes=model.classes, shape=model.shape, seed=config.run.seed).to(device)
    optimizer = optimizers.build(config.optim, net, device, fused=runtime.accelerator.scaler is None)
    average = Average(net, config.train.ema_decay) if config.train.ema_decay is not None else None
    images = networks.laid_out(torch.rand((micro, *model.shape.input), device=device))
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
    model: Model, runtime: Runtime, batch: Batches, memory: Memory, key: str, known: int | None, pulse: Pulse
) -> Fit:
    """What the rank with the least room can hold. A size that is known is tried alone, and all others if it fails."""
    free = memory.free()
    trials = _Trials(model=model, runtime=runtime, memory=memory, free=free, pulse=pulse, taken={})
    sizes = divisors(batch.global_ // batch.world)
    if known in sizes and all(runtime.gathered(trials.fits(known))):
        micro = known
    else:
        found = runtime.gathered(largest(sizes, trials.fits, LARGEST_AUTO) or 0)
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
    memory: Memory
    free: int
    pulse: Pulse
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


def _key(model: Model, runtime: Runtime, batch: Batches, memory: Memory) -> str:
    """Of all that decides how much fits, as far as it has a name."""
    config, train = model.config, model.config.train
    parts: list[Any] = [config.model.name, config.model.args]
    parts += [config.optim.name, config.optim.args, config.optim.momentum]
    parts += [train.ema_decay, train.sync_batchnorm, str(train.compile), runtime.precision, runtime.parallel]
    parts += [model.classes, model.shape.input, batch.global_, batch.world, torch.__version__]
    parts.append(sorted(set(runtime.gathered(memory.name))))
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:32]
