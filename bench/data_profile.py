"""The profiler of `train data profile` times each stage of training alone on this machine, and names the limiting one.

The stages are reading, augmenting, copying to the GPU, and the optimizer step.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, Heartbeat, join_lines
from train import plugin, rng
from train.components import build_components, take_plain_step
from train.config import checks
from train.config.precisions import PRECISIONS
from train.config.resolved import ResolvedConfig, resolve
from train.config.schema import RunConfig
from train.data import augment, decoded_cache, in_memory, loader, registry
from train.data.augmenter import Augmenter, build_augmenter, needs_whole_images, refuse_stored_images
from train.data.batch import to_device
from train.data.gpu_decoding import GpuDecoder, decoder_for, find_obstacle, for_reading
from train.data.splits import DataSplits
from train.data.workers import SkipUnreadable, read_to_augment
from train.distributed.device import (
    allow_tf32,
    choose_device,
    choose_precision,
    is_out_of_memory,
    set_up_cudnn,
)
from train.distributed.shared_memory import SINGLE_RANK
from train.models.weights import fit_to_weights

NOTABLE_SHARE: Final = 0.2  # of the time; a larger share is reported
BYTES_PER_MB: Final = 1e6
UNSTEADY_RATIO: Final = 1.5  # of the 90th to the 10th percentile; a larger one is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTiming:
    """Seconds that one stage took for a batch of `batch` images, at each repeat."""

    batch: int
    seconds: Sequence[float]

    @property
    def images_per_s(self) -> float:
        """Images per second, from the median."""
        return self.batch / self.at(0.5)

    def at(self, share: float) -> float:
        """A quantile of the seconds."""
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(share * len(self.seconds)))]

    def as_json(self) -> dict[str, float]:
        """Images per second, and milliseconds per batch with their spread."""
        return {
            "images_per_s": self.images_per_s,
            "ms_per_batch": 1e3 * self.at(0.5),
            "ms_10_percent": 1e3 * self.at(0.1),
            "ms_90_percent": 1e3 * self.at(0.9),
            "times": len(self.seconds),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineProfile:
    """The timings of all stages of one rank."""

    title: str
    device: str
    cores: int
    workers: int | None  # None: all images are read at the start
    read: StageTiming  # on one core
    augment: StageTiming
    copy: StageTiming | None  # to the GPU; None on the CPU, and for images that are on the GPU already
    step: StageTiming
    images: int  # of the data set, as bytes_
    bytes_: int
    fits: bool  # into memory
    cacheable: bool  # data.cache could help
    decodable: bool = False  # data.decode=gpu could help
    gpu_decodes: bool = False  # and `copy` contains that
    faster_settings: Sequence[str] = ()  # may shorten a step
    notes: Sequence[str] = ()  # where the timing differs from a training

    @property
    def consumed_per_s(self) -> float:
        """Images/s that the device can process: it augments, and then computes the step."""
        return 1 / (1 / self.augment.images_per_s + 1 / self.step.images_per_s)

    @property
    def delivered_per_s(self) -> float:
        """Images/s that reach the device."""
        copied = self.copy.images_per_s if self.copy else math.inf
        if self.workers is None:
            return copied
        return min(copied, self.read.images_per_s * min(max(1, self.workers), self.cores))

    @property
    def images_per_s(self) -> float:
        """Expected images/s of a rank.

        Workers and copies overlap with the step, except with 0 workers.
        """
        if self.workers == 0:
            return 1 / (1 / self.delivered_per_s + 1 / self.consumed_per_s)
        return min(self.delivered_per_s, self.consumed_per_s)

    @property
    def limit(self) -> str:
        """The slowest stage, for which the others wait."""
        stages = {name: stage.images_per_s for name, stage in self.stages.items() if name != "read"}
        slowest = min(stages, key=stages.__getitem__)
        device_waits = self.delivered_per_s < (stages["step"] if self.workers == 0 else self.consumed_per_s)
        return "read" if device_waits and self.delivered_per_s < stages.get("copy", math.inf) else slowest

    def advice(self) -> Iterator[str]:
        """Advice on settings, the most helpful first."""
        if self.limit == "read":
            yield from self._read_faster()
        elif self.workers is None:
            yield "nothing about how data is read: all of it is read at the start"
        else:
            ratio = self.delivered_per_s / self.consumed_per_s
            yield f"nothing about how data is read: it arrives {ratio:.1f} times as fast as the step uses it"
            if self.workers > (needed := self._needed) and ratio > 2:
                yield f"data.workers={needed} is enough, and leaves cores to others"
        if self.limit == "step" and self.faster_settings:
            yield f"the step is the limit: what may shorten it is {', '.join(self.faster_settings)}"
        if self.limit == "copy":
            yield "copying is the limit: a smaller data.image_size, or data.loader=memory where the images fit"
        share = self.consumed_per_s / self.augment.images_per_s
        if share > NOTABLE_SHARE:
            yield f"augmenting takes {share:.0%} of the device's time: data.augment=none shows what it costs"

    @property
    def _needed(self) -> int:
        return math.ceil(self.consumed_per_s / self.read.images_per_s)

    def _read_faster(self) -> Iterator[str]:
        read_per_s, size = self.read.images_per_s, f"{self.bytes_ / BYTES_PER_MB:,.0f} MB"
        if self.fits:
            seconds = self.images / (read_per_s * self.cores)
            yield f"data.loader=memory: {self.images:,} images, {size}, read once in about {seconds:.0f} s"
        elif self.cacheable:
            yield f"data.cache=FOLDER: each image is decoded once, for all epochs and starts ({size} there)"
        if self.workers is not None and self.workers < self._needed < self.cores:
            yield f"data.workers={self._needed}: they read {self._needed * read_per_s:,.0f} images/s"
        elif self._needed >= self.cores:
            if self.decodable:
                yield "data.decode=gpu: the GPU decodes JPEGs, and data workers only read them"
            yield f"more processors for a rank: {self._needed + 1} instead of {self.cores}"

    @property
    def stages(self) -> dict[str, StageTiming]:
        """The stages that were timed."""
        stages = {"read": self.read, "augment": self.augment, "copy": self.copy, "step": self.step}
        return {name: stage for name, stage in stages.items() if stage is not None}

    def all_notes(self) -> Iterator[str]:
        """The notes, and which timings vary too much to rely on."""
        yield from self.notes
        for name, stage in self.stages.items():
            low, high = stage.at(0.1), stage.at(0.9)
            if high > UNSTEADY_RATIO * low:
                yield f"{name} was unsteady: {1e3 * low:,.2f} to {1e3 * high:,.2f} ms a batch (10 to 90 % of the times)"

    def as_json(self) -> str:
        """The profile as a JSON object."""
        return json.dumps(
            {
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
                "notes": list(self.all_notes()),
            }
        )

    def as_text(self) -> str:
        """A table, the limit, and the advice."""
        workers_text = (
            " (all at the start)" if self.workers is None else f", {self.workers} worker{'s' * (self.workers != 1)}"
        )
        copied = "to the GPU, which decodes it, beside the step" if self.gpu_decodes else "to the GPU, beside the step"
        location = {"read": f"one processor of {self.cores}{workers_text}", "copy": copied}
        lines = [f"{self.title}, on {self.device}", f"{'stage':<10}{'images/s':>12}{'ms a batch':>13}   on"]
        for name, stage in self.stages.items():
            numbers = f"{stage.images_per_s:>12,.0f}{1e3 * stage.at(0.5):>13,.2f}"
            lines.append(f"{name:<10}{numbers}   {location.get(name, self.device)}")
        lines.append(f"limit: {self.limit}; a rank trains about {self.images_per_s:,.0f} images/s")
        return join_lines(
            [*lines, *(f"change: {line}" for line in self.advice()), *(f"note: {line}" for line in self.all_notes())]
        )


SECONDS_PER_STAGE: Final = 1.0
MIN_REPEATS: Final = 3  # after a warm-up


def measure_stages(
    config: RunConfig,
    *,
    config_file: str | None,
    device: str,
    ranks: int,
    micro: int,
    world_size: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> PipelineProfile:
    """Time the stages of one of `ranks` ranks on this machine, with micro batches of `micro`.

    Args:
        config_file: its folder may hold the user's own modules.
        device: cpu or cuda.
        world_size: the ranks on all machines.

    Raises:
        Failure: as opening the data or the model; RESOURCE if a step does not fit into the GPU's
            memory.
    """
    plugin.add_config_folder_to_path(config_file, *plugin.names_of_training(config))
    fitted = fit_to_weights(config)
    splits, torch_device = registry.open_splits(fitted.data), choose_device(device, 0)
    resolved = resolve(config, fitted, splits.task)
    config = resolved.used
    allow_tf32(config.train.tf32)
    set_up_cudnn(torch_device, repeatable=checks.is_repeatable(config.train))
    cacheable = splits.training.image_files() is not None and not needs_whole_images(splits, config.data)
    refuse_stored_images(splits, config.data)
    augmenter = build_augmenter(splits, config.data, config.run.seed)
    splits, notes = _use_complete_cache(splits, config)
    cores = max(1, SINGLE_RANK.cores() // ranks)
    loader_name, workers = loader.choose_loader(splits, config.data, cores)
    decoder = decoder_for(splits, config.data, augmenter, torch_device, print)
    in_workers = loader_name == "workers" and decoder is None
    if in_workers and augmenter.stored:
        notes = (*notes, "read contains the operations of data.augment that data workers do")
    reading = augmenter if decoder is None else for_reading(augmenter, splits.training)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a data worker
    try:
        pixels, read = _time_read(config, splits, reading, micro, clock, in_workers=in_workers)
    finally:
        torch.set_num_threads(threads)
    stays = loader_name == "memory" and _fits_on_gpu(splits, pixels, torch_device)
    on_device, copy = _time_copy(pixels, torch_device, clock, stays=stays or decoder is not None)
    if decoder is not None:
        copy = _time_decoding(decoder, splits, reading, micro, clock)
    images, augmented = _time_augment(splits, augmenter, on_device, clock, in_workers=in_workers)
    step = _time_step(resolved, splits, images, clock)
    batch_notes = tuple(_batch_size_notes(config, torch_device, micro))
    return PipelineProfile(
        title=f"{config.data.name}, {splits.shape}, micro batch {micro}{' (not searched for)' * len(batch_notes)}",
        device="CPU" if device == "cpu" else torch.cuda.get_device_name(torch_device),
        cores=cores,
        workers=None if loader_name == "memory" else workers,
        read=read,
        augment=augmented,
        copy=copy,
        step=step,
        images=len(splits.training.labels) + len(splits.validation.labels),
        bytes_=splits.bytes_,
        fits=splits.bytes_ <= loader.MAX_IN_MEMORY_BYTES,
        cacheable=cacheable and config.data.cache is None,
        decodable=decoder is None and find_obstacle(config.data, splits, augmenter, torch_device) is None,
        gpu_decodes=decoder is not None,
        faster_settings=tuple(_faster_settings(config, torch_device, micro * world_size)),
        notes=(*notes, *batch_notes),
    )


def _use_complete_cache(sets: DataSplits, config: RunConfig) -> tuple[DataSplits, Sequence[str]]:
    """Read from data.cache if it is complete.

    Filling it takes as long as an epoch, so that is not done here.
    """
    folder, training, validation = config.data.cache, sets.training.image_files(), sets.validation.image_files()
    if folder is None or training is None or validation is None:
        return sets, ()
    files, _ = decoded_cache.combine_files(training, validation)
    path = Path(folder) / f"{decoded_cache.cache_key(files, config.data, Heartbeat())}.pixels"
    if decoded_cache.open_cache(path, len(files.paths), files.stored) is None:
        return sets, ("read is from the image files: data.cache does not hold them yet; the first training fills it",)
    return decoded_cache.use_cache(sets, config.data, SINGLE_RANK, Heartbeat()), ()


def _fits_on_gpu(splits: DataSplits, pixels: Tensor, device: torch.device) -> bool:
    """Whether data.loader=memory would keep the training images on the GPU."""
    total_bytes = len(splits.training.labels) * pixels[0].nbytes
    return (
        device.type == "cuda" and total_bytes <= in_memory.FREE_GPU_MEMORY_FRACTION * torch.cuda.mem_get_info(device)[0]
    )


def _faster_settings(config: RunConfig, device: torch.device, images_at_once: int) -> Iterator[str]:
    """Unused, allowed settings that may shorten a step. images_at_once: of all ranks."""
    if device.type == "cuda" and choose_precision(config.train.precision, device) == "fp32":
        yield "train.precision=bf16"
    if config.train.compile is False and config.train.parallel != "dp" and not checks.is_bitwise(config.train):
        yield "train.compile=default"
    if images_at_once < config.train.global_batch_size:
        yield "a larger train.micro_batch_size"


def _batch_size_notes(config: RunConfig, device: torch.device, micro: int) -> Iterator[str]:
    if device.type == "cuda" and config.train.micro_batch_size == "auto":
        yield f"a micro batch of {micro} was timed: a training searches for the largest that fits into the GPU"


def time_stage(
    action: Callable[[], object], batch: int, clock: Callable[[], float], wait: Callable[[], None] = lambda: None
) -> StageTiming:
    """Time `action` repeatedly for SECONDS_PER_STAGE.

    wait: waits for work that it started asynchronously.
    """
    action()
    seconds: list[float] = []
    while len(seconds) < MIN_REPEATS or sum(seconds) < SECONDS_PER_STAGE:
        wait()
        start = clock()
        action()
        wait()
        seconds.append(clock() - start)
    return StageTiming(batch=batch, seconds=seconds)


def _time_read(
    config: RunConfig,
    splits: DataSplits,
    augmenter: Augmenter,
    micro: int,
    clock: Callable[[], float],
    *,
    in_workers: bool,
) -> tuple[Tensor, StageTiming]:
    """Time reading in the order of training, and with `in_workers` what workers do to the samples.

    Each batch has other images, as long as there are some.
    """
    count, data = len(splits.training.labels), config.data
    reader = SkipUnreadable(splits.training.read, count, most=data.max_bad_images, replace=True)
    order = rng.permutation(count, rng.ORDER, config.run.seed, 0)
    size = min(micro, count)
    batches = itertools.cycle(order[start : start + size] for start in range(0, count - size + 1, size))

    def act() -> None:
        samples = next(batches)
        pixels, _, _ = read_to_augment(reader, augmenter, samples, samples, 0)
        if in_workers and pixels is not None:
            augmenter.augment_stored(pixels, samples, 0)

    stage = time_stage(act, size, clock)
    _, readable, _ = reader.read(np.resize(order, micro))
    return splits.training.read(readable), stage


def _time_copy(
    pixels: Tensor, device: torch.device, clock: Callable[[], float], *, stays: bool
) -> tuple[Tensor, StageTiming | None]:
    """Time copying to the GPU. stays: all images are on the GPU before the first step."""
    if device.type == "cpu" or stays:
        return pixels.to(device), None
    pinned = pixels.pin_memory()
    return pixels.to(device), time_stage(
        lambda: pinned.to(device, non_blocking=True), len(pixels), clock, torch.cuda.synchronize
    )


def _time_decoding(
    decoder: GpuDecoder, splits: DataSplits, reading: Augmenter, micro: int, clock: Callable[[], float]
) -> StageTiming:
    """Time what the GPU does with one batch of files."""
    samples = np.resize(np.arange(len(splits.training.labels)), micro)
    draws = reading.crop_draws(samples, 0)
    assert reading.read_cropped is not None
    assert draws is not None
    encoded = reading.read_cropped(samples, draws)
    return time_stage(lambda: decoder.decode(encoded), micro, clock)


def _time_augment(
    splits: DataSplits, augmenter: Augmenter, pixels: Tensor, clock: Callable[[], float], *, in_workers: bool
) -> tuple[Tensor, StageTiming]:
    rows, epochs, samples = torch.arange(len(pixels), device=pixels.device), itertools.count(), np.arange(len(pixels))

    def act() -> Tensor:
        epoch = next(epochs)
        parameters = augment.draw_parameters(
            augmenter.moves,
            samples,
            shape=splits.shape,
            seed=augmenter.seed,
            epoch=epoch,
            mirror=splits.mirror,
            shift=augmenter.shift,
        )
        stored = pixels if in_workers else augmenter.augment_stored(pixels, samples, epoch)
        images = augment.apply(stored, rows, to_device(parameters.packed(), pixels.device), gray=parameters.gray)
        return augmenter.augment_values(images, samples, epoch)

    return act(), time_stage(act, len(pixels), clock, _device_synchronizer(pixels.device))


def _time_step(resolved: ResolvedConfig, splits: DataSplits, images: Tensor, clock: Callable[[], float]) -> StageTiming:
    """Time forward, backward and the optimizer's update, with torch alone."""
    device = images.device
    dtype_name = PRECISIONS[choose_precision(resolved.used.train.precision, device)].autocast_dtype
    dtype = None if dtype_name is None else getattr(torch, dtype_name)
    components = build_components(resolved, splits, device=device, fused=True, move=lambda network: network.to(device))
    labels = splits.training.labels[np.resize(np.arange(len(splits.training.labels)), len(images))].to(device)
    batch = components.task.collate(images, labels)
    autocast = partial(torch.autocast, device.type, dtype, enabled=dtype is not None)
    act = partial(take_plain_step, components, components.network, batch, autocast)
    try:
        return time_stage(act, len(images), clock, _device_synchronizer(device))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        fix = f"set train.micro_batch_size below {len(images)}"
        raise Failure("a step does not fit into the GPU's memory", fix=fix, code=ExitCode.RESOURCE) from error


def _device_synchronizer(device: torch.device) -> Callable[[], None]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None
