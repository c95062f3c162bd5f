"""A trained network and image files become one prediction for each image, computed as the evaluation does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, World, processors
from train.data.shape import Shape
from train.evaluation.evaluation import largest, within
from train.measuring import measuring
from train.measuring.chosen import Chosen
from train.oneline import one_line
from train.ranks import runtime
from train.ranks.device import allow_tf32, choose_device
from train.settings.config import RunConfig
from train.using import exported, pixels, takes
from train.using.lines import Prediction

NOBODY: Final = "127.0.0.1"
ALONE: Final = World(
    rank=0,
    local_rank=0,
    world_size=1,
    local_world_size=1,
    node_rank=0,
    num_nodes=1,
    master_addr=NOBODY,
    master_port=0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A network on its device, in evaluation mode, and what it takes. size: images in one batch. doubt: what
    the user should know of its answers. draft: as `decode.decode`."""

    network: nn.Module
    classes: tuple[str, ...]
    shape: Shape
    doubt: str | None
    draft: bool
    device: torch.device
    size: int


def kind(device: str) -> str:
    """cpu or cuda, of auto, cpu or cuda."""
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def prepare(config: RunConfig, chosen: Chosen, environ: MutableMapping[str, str], images: int) -> Ready:
    """The network as `train eval` measures it: averaged weights where there are, the run's precision.

    Changes `environ`, as `runtime.start`.

    Raises:
        Failure: DATA for a damaged checkpoint, USAGE for a network that takes no image files, NODE without the GPU.
    """
    taken = takes.of(config, takes.state(chosen))
    takes.refuse_files(taken)
    weights = measuring.read(chosen)
    ready = runtime.start(config, ALONE, environ, accumulation=1)
    network = measuring.prepared(config, taken.sets, weights, ready)
    return Ready(
        network=network.eval(),
        classes=taken.classes,
        shape=taken.shape,
        doubt=takes.doubt(taken),
        draft=taken.made != "pictures",
        device=ready.device,
        size=largest(images, config.eval.batch_size),
    )


def prepare_exported(folder: Path, device: str, images: int, factory: Callable[..., nn.Module] | None = None) -> Ready:
    """A network that was handed on, in fp32. factory, Raises: as `exported.load`, and as `prepare`."""
    model, place = exported.load(folder, factory), choose_device(device, 0)
    takes.refuse_files(model.takes)
    allow_tf32(False)
    return Ready(
        network=model.network.to(place),
        classes=model.classes,
        shape=model.shape,
        doubt=takes.doubt(model.takes),
        draft=model.takes.made != "pictures",
        device=place,
        size=largest(images, "auto"),
    )


def predict(ready: Ready, paths: Sequence[Path], top: int, bad: Callable[[str], None]) -> Iterator[Prediction]:
    """What the network says of each image, in their order; `bad` is told of those that it cannot be asked about.

    Raises:
        Failure: DATA at the end, where there were such; RESOURCE where a batch does not fit the GPU.
    """
    failed = 0
    with ThreadPoolExecutor(processors()) as threads:
        for first in range(0, len(paths), ready.size):
            part = paths[first : first + ready.size]
            batch, reasons = pixels.batch(part, ready.shape, threads, draft=ready.draft)
            told = iter(_likeliest(_scores(ready, batch), top))
            for path, reason in zip(part, reasons, strict=True):
                found = next(told) if reason is None else reason
                if isinstance(found, Failure):
                    failed += 1
                    bad(f"{one_line(found.found or str(path))}")
                elif not found:
                    failed += 1
                    bad(f"{one_line(str(path))}: the network's scores are not finite numbers")
                else:
                    yield _prediction(path, found, ready.classes)
    if failed:
        raise _incomplete(failed, len(paths))


def _scores(ready: Ready, batch: Tensor) -> Tensor:
    """float32 [n, classes] on the CPU."""
    if not len(batch):
        return torch.empty((0, len(ready.classes)))
    with torch.no_grad(), within(len(batch)):
        scores: Tensor = ready.network(batch.to(ready.device))
        return scores.float().cpu()


def _likeliest(scores: Tensor, top: int) -> list[list[tuple[int, float]]]:
    """For each row the first `top` classes and their probabilities; nothing where the scores are not numbers.

    Of equal scores the first class is taken, as the evaluation does.
    """
    shares = scores.double().softmax(dim=1)
    order = scores.sort(dim=1, descending=True, stable=True).indices[:, :top]
    fine = shares.isfinite().all(dim=1).tolist()
    rows = zip(order.tolist(), shares.gather(1, order).tolist(), fine, strict=True)
    return [list(zip(places, values, strict=True)) if good else [] for places, values, good in rows]


def _prediction(path: Path, found: list[tuple[int, float]], classes: tuple[str, ...]) -> Prediction:
    names, shares = tuple(classes[place] for place, _ in found), tuple(share for _, share in found)
    return Prediction(path=path, classes=names, probabilities=shares)


def _incomplete(failed: int, count: int) -> Failure:
    have, named, them = ("has", "it is", "it") if failed == 1 else ("have", "they are", "them")
    return Failure(
        f"{failed} of {count} image{'s' * (count != 1)} {have} no answer: {named} named above",
        fix=f"replace {them} or leave {them} out; the lines of the others are complete",
        code=ExitCode.DATA,
    )
