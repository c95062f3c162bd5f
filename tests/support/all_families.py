"""Step the smallest member of each family of torchvision and timm once: `python all_families.py [NAME...] > table`.

Each model is built as `train` builds it, and makes one step forward and backward on the CPU. Not in CI: it takes long,
and some models need gigabytes. The table has a row for each model that fails, and the number of those that do not.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from entrypoint import Failure
from train.config.models import SMALLEST_TIMM_MODELS, SMALLEST_TORCHVISION_MODELS, TIMM_PREFIX, TORCHVISION_MODELS
from train.config.schema import ModelConfig, OptimConfig
from train.data.shape import Shape
from train.models import registry
from train.optim.optimizer import build_optimizer

TIMEOUT_S = 150
# Sides in pixels. The first that the model takes is used: many transformers and windows need their own.
SIZES = (64, 96, 128, 224, 240, 256)
CLASSES = 5


def names() -> list[str]:
    """The smallest member of each family."""
    torchvision = {*SMALLEST_TORCHVISION_MODELS.values(), *("alexnet", "googlenet")} & set(TORCHVISION_MODELS)
    return [*sorted(torchvision), *(TIMM_PREFIX + name for name in SMALLEST_TIMM_MODELS)]


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises TimeoutError in the block after so many seconds."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"no step within {seconds} s")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def step(name: str) -> tuple[int, str | None]:
    """Train `name` for one step; returns the size of its images, and why it failed, in one line, or None."""
    problem = None
    for size in SIZES:
        try:
            with time_limit(TIMEOUT_S):
                return size, _step(name, size)
        except Failure as failure:
            problem = f"{failure.what}: {failure.found}"
            if "does not take samples" not in failure.what:
                break
        except Exception as error:
            return size, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return size, problem


def _step(name: str, size: int) -> str | None:
    shape = Shape(channels=3, size=(size, size))
    net = registry.build_model(ModelConfig(name=name), classes=CLASSES, shape=shape, seed=0)
    optimizer = build_optimizer(OptimConfig(lr=0.001), net)
    logits = net(torch.randn(2, *shape.input))
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1]))
    loss.backward()
    unused = [key for key, parameter in net.named_parameters() if parameter.requires_grad and parameter.grad is None]
    optimizer.step()
    if not loss.isfinite():
        return f"the loss is {loss.item()}"
    return f"trains on one rank; on several DDP refuses it: no gradient for {', '.join(unused[:3])}" if unused else None


def main(chosen: list[str]) -> None:
    rows, began = [], time.monotonic()
    models = chosen or names()
    for name in models:
        size, problem = step(name)
        print(
            f"{name}, {size} pixels: {problem or 'trains'} ({time.monotonic() - began:.0f} s)",
            file=sys.stderr,
            flush=True,
        )
        rows += [f"| `{name}` | {size} | {problem} |"] if problem else []
    print(f"{len(models) - len(rows)} of {len(models)} train.\n\n| model | pixels | why not |\n|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
