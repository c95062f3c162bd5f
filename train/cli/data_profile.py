"""The profiler times each stage of training alone on this machine, and names the limiting one.

The stages are reading, augmenting, copying to the GPU, and the optimizer step.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, Heartbeat
from train import plugin, rng
from train.config import checks
from train.config.schema import RunConfig
from train.data import augment, decoded_cache, in_memory, loader, registry, statistics
from train.data.image_folder import ImageFileSource
from train.data.splits import DataSplits
from train.data.workers import SkipUnreadable, to_device
from train.distributed.device import (
    allow_tf32,
    choose_device,
    choose_precision,
    is_out_of_memory,
    use_deterministic_cudnn,
)
from train.distributed.shared_memory import SINGLE_RANK
from train.models.registry import build_model
from train.optim import optimizer as optimizers
from train.optim.loss import build_criterion

NOTABLE_SHARE: Final = 0.2  # of the time, from which on something is worth a word
BYTES_PER_MB: Final = 1e6
UNSTEADY_RATIO: Final = 1.5  # times as long as the shortest tenth: from which on the longest tenth is worth a word


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTiming:
    """Seconds that one batch of `batch` images took, each time: reading and augmenting one, copying it, one step."""

    batch: int
    seconds: Sequence[float]

    @property
    def images_per_s(self) -> float:
        """By the median."""
        return self.batch / self.at(0.5)

    def at(self, share: float) -> float:
        """The quantile of the seconds."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    def as_json(self) -> dict[str, float]:
        """Rates, and milliseconds of a batch with their spread."""
        told = {"images_per_s": self.images_per_s, "ms_per_batch": 1e3 * self.at(0.5)}
        return told | {
            "ms_10_percent": 1e3 * self.at(0.1),
            "ms_90_percent": 1e3 * self.at(0.9),
            "times": len(self.seconds),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProfile:
    """read: on one processor. copy: to the GPU; None on the CPU, and where all images lie on the GPU.

    workers: None where all is read at the start. images, bytes_: of the whole data set. cores: that one rank may use.
    cacheable: whether data.cache could help. quicker: settings that may shorten a step. notes: what was timed otherwise
    than a training does it.
    """

    title: str
    device: str
    cores: int
    workers: int | None
    read: StageTiming
    augment: StageTiming
    copy: StageTiming | None
    step: StageTiming
    images: int
    bytes_: int
    fits: bool
    cacheable: bool
    quicker: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def taken(self) -> float:
        """Images/s that the device can take: it augments, then it steps."""
        return 1 / (1 / self.augment.images_per_s + 1 / self.step.images_per_s)

    @property
    def given(self) -> float:
        """Images/s that come to it."""
        sent = self.copy.images_per_s if self.copy else math.inf
        if self.workers is None:
            return sent
        return min(sent, self.read.images_per_s * min(max(1, self.workers), self.cores))

    @property
    def images_per_s(self) -> float:
        """What a rank can be expected to train. Workers and copies work beside the step; 0 workers do not."""
        if self.workers == 0:
            return 1 / (1 / self.given + 1 / self.taken)
        return min(self.given, self.taken)

    @property
    def limit(self) -> str:
        """The stage that all others wait for."""
        stages = {"augment": self.augment.images_per_s, "step": self.step.images_per_s}
        if self.copy is not None:
            stages["copy"] = self.copy.images_per_s
        slowest = min(stages, key=stages.__getitem__)
        waits = self.given < (stages["step"] if self.workers == 0 else self.taken)
        return "read" if waits and self.given < stages.get("copy", math.inf) else slowest

    def advice(self) -> Iterator[str]:
        """What to change, the most helpful first."""
        if self.limit == "read":
            yield from self._read_faster()
        elif self.workers is None:
            yield "nothing about how data is read: all of it is read at the start"
        else:
            ratio = self.given / self.taken
            yield f"nothing about how data is read: it comes {ratio:.1f} times as fast as the step takes it"
            if self.workers > (enough := self._needed) and ratio > 2:
                yield f"data.workers={enough} would do, which leaves processors to others"
        if self.limit == "step" and self.quicker:
            yield f"the step is the limit: what may shorten it is {', '.join(self.quicker)}"
        if self.limit == "copy":
            yield "copying is the limit: a smaller data.image_size, or data.loader=memory where the images fit"
        share = self.taken / self.augment.images_per_s
        if share > NOTABLE_SHARE:
            yield f"augmenting takes {share:.0%} of the device's time: data.augment=none shows what it costs"

    @property
    def _needed(self) -> int:
        return math.ceil(self.taken / self.read.images_per_s)

    def _read_faster(self) -> Iterator[str]:
        one, size = self.read.images_per_s, f"{self.bytes_ / BYTES_PER_MB:,.0f} MB"
        if self.fits:
            once = self.images / (one * self.cores)
            yield f"data.loader=memory: {self.images:,} images, {size}, read once in about {once:.0f} s"
        elif self.cacheable:
            yield f"data.cache=FOLDER: each image is decoded once, for all epochs and starts ({size} there)"
        if self.workers is not None and self.workers < self._needed < self.cores:
            yield f"data.workers={self._needed}: they read {self._needed * one:,.0f} images/s"
        elif self._needed >= self.cores:
            yield f"more processors for a rank: {self._needed + 1} instead of {self.cores}"

    @property
    def stages(self) -> dict[str, StageTiming]:
        """Those that were timed."""
        stages = {"read": self.read, "augment": self.augment, "copy": self.copy, "step": self.step}
        return {name: stage for name, stage in stages.items() if stage is not None}

    def told(self) -> Iterator[str]:
        """What was timed otherwise than in a training, and which times were too unlike to rely on."""
        yield from self.notes
        for name, stage in self.stages.items():
            low, high = stage.at(0.1), stage.at(0.9)
            if high > UNSTEADY_RATIO * low:
                yield f"{name} was unsteady: {1e3 * low:,.2f} to {1e3 * high:,.2f} ms a batch (10 to 90 % of the times)"

    def as_json(self) -> str:
        """One object."""
        facts: dict[str, Any] = {
            "data": self.title,
            "device": self.device,
            "cores": self.cores,
            "workers": self.workers,
            "images": self.images,
            "bytes": self.bytes_,
            "stages": {name: stage.as_json() for name, stage in self.stages.items()},
            "limit": self.limit,
            "images_per_s": self.images_per_s,
            "advice": list(self.advice()),
            "notes": list(self.told()),
        }
        return json.dumps(facts)

    def as_text(self) -> str:
        """A table, the limit, and what to change."""
        whole = " (all at the start)" if self.workers is None else f", {self.workers} worker{'s' * (self.workers != 1)}"
        where = {"read": f"one processor of {self.cores}{whole}", "copy": "to the GPU, beside the step"}
        lines = [f"{self.title}, on {self.device}", f"{'stage':<10}{'images/s':>12}{'ms a batch':>13}   on"]
        for name, stage in self.stages.items():
            told = f"{stage.images_per_s:>12,.0f}{1e3 * stage.at(0.5):>13,.2f}"
            lines.append(f"{name:<10}{told}   {where.get(name, self.device)}")
        lines.append(f"limit: {self.limit}; a rank trains about {self.images_per_s:,.0f} images/s")
        return "\n".join(
            [*lines, *(f"change: {line}" for line in self.advice()), *(f"note: {line}" for line in self.told())]
        )


SECONDS_PER_STAGE: Final = 1.0  # for each stage
MIN_REPEATS: Final = 3  # times, after one that does not count
AUTOCAST_DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def measure_stages(
    config: RunConfig,
    *,
    beside: str | None,
    device: str,
    ranks: int,
    micro: int,
    world_size: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> PipelineProfile:
    """Time what one of `ranks` ranks of this machine does, with micro batches of `micro`.

    Args:
        beside: the config file, beside which a module of the user's own may lie.
        device: cpu or cuda. world_size: ranks in all, on all machines.

    Raises:
        Failure: what opening the data or the model raises; RESOURCE where a step does not fit into the GPU.
    """
    plugin.add_config_folder_to_path(beside, config.data.name, config.model.name, config.optim.name)
    sets, place = registry.open_splits(config.data), choose_device(device, 0)
    allow_tf32(config.train.tf32)
    use_deterministic_cudnn(place)
    cacheable = isinstance(sets.training, ImageFileSource)
    sets, notes = _use_complete_cache(sets, config)
    cores = max(1, SINGLE_RANK.cores() // ranks)
    kind, workers = loader.choose_loader(sets, config.data, cores)
    with _torch_threads(1):
        pixels, read = _time_read(config, sets, micro, clock)
    there, copy = _time_copy(pixels, place, clock, stays=kind == "memory" and _fits_on_gpu(sets, pixels, place))
    images, augmented = _time_augment(config, sets, there, clock)
    step = _time_step(config, sets, images, clock)
    unsought = tuple(_batch_size_notes(config, place, micro))
    return PipelineProfile(
        title=f"{config.data.name}, {sets.shape}, micro batch {micro}{' (not searched for)' * len(unsought)}",
        device="CPU" if device == "cpu" else torch.cuda.get_device_name(place),
        cores=cores,
        workers=None if kind == "memory" else workers,
        read=read,
        augment=augmented,
        copy=copy,
        step=step,
        images=len(sets.training.labels) + len(sets.validation.labels),
        bytes_=sets.bytes_,
        fits=sets.bytes_ <= loader.MAX_IN_MEMORY_BYTES,
        cacheable=cacheable and config.data.cache is None,
        quicker=tuple(_faster_settings(config, place, micro * world_size)),
        notes=(*notes, *unsought),
    )


def _use_complete_cache(sets: DataSplits, config: RunConfig) -> tuple[DataSplits, Sequence[str]]:
    """Read from data.cache where it is whole: to fill one takes as long as an epoch, and is not asked for here."""
    folder, training, validation = config.data.cache, sets.training, sets.validation
    if folder is None or not (isinstance(training, ImageFileSource) and isinstance(validation, ImageFileSource)):
        return sets, ()
    files, _ = decoded_cache.combine_files(training, validation)
    path = Path(folder) / f"{decoded_cache.cache_key(files, config.data, Heartbeat())}.pixels"
    if decoded_cache.open_cache(path, len(files.paths), files.size) is None:
        return sets, ("read is from the image files: data.cache does not hold them yet; the first training fills it",)
    return decoded_cache.use_cache(sets, config.data, SINGLE_RANK, Heartbeat()), ()


def _fits_on_gpu(sets: DataSplits, pixels: Tensor, device: torch.device) -> bool:
    """Whether the training images of data.loader=memory would lie on the GPU, where nothing is copied."""
    whole = len(sets.training.labels) * pixels[0].nbytes
    return device.type == "cuda" and whole <= in_memory.FREE_GPU_MEMORY_FRACTION * torch.cuda.mem_get_info(device)[0]


def _faster_settings(config: RunConfig, device: torch.device, at_once: int) -> Iterator[str]:
    """Settings that are not in use, may shorten a step here and would not be refused. at_once: images of all ranks."""
    if device.type == "cuda" and choose_precision(config.train.precision, device) == "fp32":
        yield "train.precision=bf16"
    if config.train.compile is False and config.train.parallel != "dp" and not checks.is_bitwise(config.train):
        yield "train.compile=default"
    if at_once < config.train.global_batch_size:
        yield "a larger train.micro_batch_size"


def _batch_size_notes(config: RunConfig, device: torch.device, micro: int) -> Iterator[str]:
    if device.type == "cuda" and config.train.micro_batch_size == "auto":
        yield f"a micro batch of {micro} was timed: a training looks for the largest that fits into the GPU"


def time_stage(
    action: Callable[[], object], batch: int, clock: Callable[[], float], wait: Callable[[], None] = lambda: None
) -> StageTiming:
    """How long `action` takes, until SECONDS_PER_STAGE are over. wait: for what it has only begun."""
    action()
    seconds: list[float] = []
    while len(seconds) < MIN_REPEATS or sum(seconds) < SECONDS_PER_STAGE:
        wait()
        began = clock()
        action()
        wait()
        seconds.append(clock() - began)
    return StageTiming(batch=batch, seconds=seconds)


def _time_read(
    config: RunConfig, sets: DataSplits, micro: int, clock: Callable[[], float]
) -> tuple[Tensor, StageTiming]:
    """In the order of training: each batch other images, as long as there are any."""
    count, data = len(sets.training.labels), config.data
    tolerant = SkipUnreadable(sets.training.read, count, most=data.max_bad_images, replace=True)
    order = rng.permutation(count, rng.ORDER, config.run.seed, 0)
    size = min(micro, count)
    batches = itertools.cycle(order[at : at + size] for at in range(0, count - size + 1, size))
    stage = time_stage(lambda: tolerant.read(next(batches)), size, clock)
    _, whole, _ = tolerant.read(np.resize(order, micro))
    return sets.training.read(whole), stage


def _time_copy(
    pixels: Tensor, device: torch.device, clock: Callable[[], float], *, stays: bool
) -> tuple[Tensor, StageTiming | None]:
    """stays: all images are on the device before the first step."""
    if device.type == "cpu" or stays:
        return pixels.to(device), None
    pinned = pixels.pin_memory()
    return pixels.to(device), time_stage(
        lambda: pinned.to(device, non_blocking=True), len(pixels), clock, torch.cuda.synchronize
    )


def _time_augment(
    config: RunConfig, sets: DataSplits, pixels: Tensor, clock: Callable[[], float]
) -> tuple[Tensor, StageTiming]:
    rows, epoch = torch.arange(len(pixels), device=pixels.device), itertools.count()

    def act() -> Tensor:
        moves = augment.draw_parameters(
            config.data.augment,
            np.arange(len(pixels)),
            shape=sets.shape,
            seed=config.run.seed,
            epoch=next(epoch),
            mirror=sets.mirror,
        )
        return augment.apply(pixels, rows, to_device(moves.packed(), pixels.device), gray=moves.gray)

    return act(), time_stage(act, len(pixels), clock, _device_synchronizer(pixels.device))


def _time_step(config: RunConfig, sets: DataSplits, images: Tensor, clock: Callable[[], float]) -> StageTiming:
    """Forward, backward and the optimizer's update, as torch does them alone."""
    device, classes = images.device, len(sets.classes)
    precision = choose_precision(config.train.precision, device)
    net = build_model(config.model, classes=classes, shape=sets.shape, seed=config.run.seed).to(device)
    optimizer = optimizers.build_optimizer(config.optim, net, device)
    counts = statistics.class_counts(sets.training.labels, classes).tolist()
    aimed = build_criterion(config.optim, counts).to(device)
    labels = sets.training.labels[np.resize(np.arange(len(sets.training.labels)), len(images))].to(device)

    def act() -> None:
        with torch.autocast(device.type, AUTOCAST_DTYPES.get(precision), enabled=precision in AUTOCAST_DTYPES):
            loss = aimed(net(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    try:
        return time_stage(act, len(images), clock, _device_synchronizer(device))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        fix = f"set train.micro_batch_size below {len(images)}"
        raise Failure("a step does not fit into the GPU's memory", fix=fix, code=ExitCode.RESOURCE) from error


def _device_synchronizer(device: torch.device) -> Callable[[], None]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


@contextmanager
def _torch_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
