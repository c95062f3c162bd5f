"""`train data profile`: the stages of a training, each timed alone on this machine."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, Pulse
from train import keyed, plugin
from train.data import augment, cached, catalog, distribution, inmemory, loader, stock
from train.data.broken import Tolerant
from train.data.folder import Files
from train.data.onehost import ALONE
from train.data.pools import on_device
from train.data.sets import Sets
from train.inspection.bottleneck import Profile, Stage
from train.models import networks
from train.optim import criterion, optimizers
from train.ranks import devicefaults
from train.ranks.device import allow_tf32, choose_device, choose_precision, make_repeatable
from train.settings import bitwise
from train.settings.config import RunConfig

SECONDS: Final = 1.0  # for each stage
LEAST: Final = 3  # times, after one that does not count
TYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}


def measure(
    config: RunConfig,
    *,
    beside: str | None,
    device: str,
    ranks: int,
    micro: int,
    world_size: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Time what one of `ranks` ranks of this machine does, with micro batches of `micro`.

    Args:
        beside: the config file, beside which a module of the user's own may lie.
        device: cpu or cuda. world_size: ranks in all, on all machines.

    Raises:
        Failure: what opening the data or the model raises; RESOURCE where a step does not fit into the GPU.
    """
    plugin.look_beside(beside, config.data.name, config.model.name)
    sets, place = catalog.open_sets(config.data), choose_device(device, 0)
    allow_tf32(config.train.tf32)
    make_repeatable(place)
    cacheable = isinstance(sets.training, Files)
    sets, notes = _cached(sets, config)
    cores = max(1, ALONE.cores() // ranks)
    kind, workers = loader.chosen(sets, config.data, cores)
    with _threads(1):
        pixels, read = _read(config, sets, micro, clock)
    there, copy = _copied(pixels, place, clock, stays=kind == "memory" and _fits(sets, pixels, place))
    images, augmented = _augmented(config, sets, there, clock)
    step = _stepped(config, sets, images, clock)
    unsought = tuple(_unsought(config, place, micro))
    return Profile(
        title=f"{config.data.name}, {sets.shape}, micro batch {micro}{' (not searched for)' * len(unsought)}",
        device="CPU" if device == "cpu" else torch.cuda.get_device_name(place),
        cores=cores,
        workers=None if kind == "memory" else workers,
        read=read,
        augment=augmented,
        copy=copy,
        step=step,
        images=len(sets.training.labels) + len(sets.held_out.labels),
        bytes_=sets.bytes_,
        fits=sets.bytes_ <= loader.LARGEST_IN_MEMORY,
        cacheable=cacheable and config.data.cache is None,
        quicker=tuple(_quicker(config, place, micro * world_size)),
        notes=(*notes, *unsought),
    )


def _cached(sets: Sets, config: RunConfig) -> tuple[Sets, Sequence[str]]:
    """Read from data.cache where it is whole: to fill one takes as long as an epoch, and is not asked for here."""
    folder, training, held_out = config.data.cache, sets.training, sets.held_out
    if folder is None or not (isinstance(training, Files) and isinstance(held_out, Files)):
        return sets, ()
    files, _ = cached.everything(training, held_out)
    path = Path(folder) / f"{cached.key(files, config.data, Pulse())}.pixels"
    if stock.opened(path, len(files.paths), files.size) is None:
        return sets, ("read is from the image files: data.cache does not hold them yet; the first training fills it",)
    return cached.use(sets, config.data, ALONE, Pulse()), ()


def _fits(sets: Sets, pixels: Tensor, device: torch.device) -> bool:
    """Whether the training images of data.loader=memory would lie on the GPU, where nothing is copied."""
    whole = len(sets.training.labels) * pixels[0].nbytes
    return device.type == "cuda" and whole <= inmemory.SHARE * torch.cuda.mem_get_info(device)[0]


def _quicker(config: RunConfig, device: torch.device, at_once: int) -> Iterator[str]:
    """Settings that are not in use, may shorten a step here and would not be refused. at_once: images of all ranks."""
    if device.type == "cuda" and choose_precision(config.train.precision, device) == "fp32":
        yield "train.precision=bf16"
    if config.train.compile is False and config.train.parallel != "dp" and not bitwise.asked_for(config.train):
        yield "train.compile=default"
    if at_once < config.train.global_batch_size:
        yield "a larger train.micro_batch_size"


def _unsought(config: RunConfig, device: torch.device, micro: int) -> Iterator[str]:
    if device.type == "cuda" and config.train.micro_batch_size == "auto":
        yield f"a micro batch of {micro} was timed: a training looks for the largest that fits into the GPU"


def timed(
    action: Callable[[], object], batch: int, clock: Callable[[], float], wait: Callable[[], None] = lambda: None
) -> Stage:
    """How long `action` takes, until SECONDS are over. wait: for what it has only begun."""
    action()
    seconds: list[float] = []
    while len(seconds) < LEAST or sum(seconds) < SECONDS:
        wait()
        began = clock()
        action()
        wait()
        seconds.append(clock() - began)
    return Stage(batch=batch, seconds=seconds)


def _read(config: RunConfig, sets: Sets, micro: int, clock: Callable[[], float]) -> tuple[Tensor, Stage]:
    """In the order of training: each batch other images, as long as there are any."""
    count, data = len(sets.training.labels), config.data
    tolerant = Tolerant(sets.training.read, count, most=data.max_bad_images, replace=True)
    order = keyed.permutation(count, keyed.ORDER, config.run.seed, 0)
    size = min(micro, count)
    batches = itertools.cycle(order[at : at + size] for at in range(0, count - size + 1, size))
    stage = timed(lambda: tolerant.read(next(batches)), size, clock)
    _, whole, _ = tolerant.read(np.resize(order, micro))
    return sets.training.read(whole), stage


def _copied(
    pixels: Tensor, device: torch.device, clock: Callable[[], float], *, stays: bool
) -> tuple[Tensor, Stage | None]:
    """stays: all images are on the device before the first step."""
    if device.type == "cpu" or stays:
        return pixels.to(device), None
    pinned = pixels.pin_memory()
    return pixels.to(device), timed(
        lambda: pinned.to(device, non_blocking=True), len(pixels), clock, torch.cuda.synchronize
    )


def _augmented(config: RunConfig, sets: Sets, pixels: Tensor, clock: Callable[[], float]) -> tuple[Tensor, Stage]:
    rows, epoch = torch.arange(len(pixels), device=pixels.device), itertools.count()

    def act() -> Tensor:
        moves = augment.moves(
            config.data.augment,
            np.arange(len(pixels)),
            shape=sets.shape,
            seed=config.run.seed,
            epoch=next(epoch),
            mirror=sets.mirror,
        )
        return augment.apply(pixels, rows, on_device(moves.packed(), pixels.device), gray=moves.gray)

    return act(), timed(act, len(pixels), clock, _waiting(pixels.device))


def _stepped(config: RunConfig, sets: Sets, images: Tensor, clock: Callable[[], float]) -> Stage:
    """Forward, backward and the optimizer's update, as torch does them alone."""
    device, classes = images.device, len(sets.classes)
    precision = choose_precision(config.train.precision, device)
    net = networks.build(config.model, classes=classes, shape=sets.shape, seed=config.run.seed).to(device)
    optimizer = optimizers.build(config.optim, net, device)
    counts = distribution.counts(sets.training.labels, classes).tolist()
    aimed = criterion.criterion(config.optim, counts).to(device)
    labels = sets.training.labels[np.resize(np.arange(len(sets.training.labels)), len(images))].to(device)

    def act() -> None:
        with torch.autocast(device.type, TYPES.get(precision), enabled=precision in TYPES):
            loss = aimed(net(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    try:
        return timed(act, len(images), clock, _waiting(device))
    except RuntimeError as error:
        if not devicefaults.is_full(error):
            raise
        fix = f"set train.micro_batch_size below {len(images)}"
        raise Failure("a step does not fit into the GPU's memory", fix=fix, code=ExitCode.RESOURCE) from error


def _waiting(device: torch.device) -> Callable[[], None]:
    return torch.cuda.synchronize if device.type == "cuda" else lambda: None


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
