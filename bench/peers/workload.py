"""What all peers share: the networks, the images, the arguments, and how a run is timed and told.

Nothing here knows the project: each script beside this one runs alone, and may be tuned by anyone.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, relu

MIDDLE, SPREAD = 127.5, 63.75  # bytes to about -2..2
RANK, RANKS = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Block(nn.Module):
    """Of the published Wide-ResNet: conv-norm-relu-dropout-conv-norm, and a skip."""

    def __init__(self, inside: int, outside: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.dropout(relu(self.norm1(self.conv1(x)), inplace=True))
        return relu(self.norm2(self.conv2(inner)) + self.skip(x), inplace=True)


class WideResNet(nn.Module):
    """For 32 pixels and 100 classes, depth 2, width 10: 17,175,444 parameters, 14.47 GFLOP an image, both ways."""

    def __init__(self, classes: int = 100, depth: int = 2, width: int = 10, dropout: float = 0.01) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        widths = [16, 16 * width, 32 * width, 64 * width]
        self.groups = nn.ModuleList(
            nn.Sequential(*(Block(inside if first == 0 else outside, outside, dropout) for first in range(depth)))
            for inside, outside in pairwise(widths)
        )
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, group in enumerate(self.groups):
            x = group(x)
            x = self.pool(x) if number < 2 else x
        return self.head(avg_pool2d(x, 7).flatten(1))


def tiny(*, classes: int, **ignored: object) -> nn.Module:
    """A network whose step takes less than a millisecond, so that a loop's own time shows."""
    layers = [nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8, classes))


def arguments(about: str) -> argparse.ArgumentParser:
    """What every peer takes; each adds its own."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", choices=("wide_resnet", "tiny"), default="wide_resnet")
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--width", type=int, default=10)
    parser.add_argument("--size", type=int, default=32, help="pixels; the Wide-ResNet wants 32")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--samples", type=int, default=50_000, help="random images in the training set")
    parser.add_argument("--batch", type=int, default=256, help="images of one step of one process")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--log-every", type=int, default=10, help="steps between two looks at the loss")
    parser.add_argument("--warm-up", type=int, default=10, help="steps before the first that is timed")
    parser.add_argument("--steps", type=int, default=50, help="steps of a block")
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--pace", help="PORT:TOKEN of who says when to do a block; without it all follow each other")
    return parser


def network(wanted: argparse.Namespace) -> nn.Module:
    """A fresh one, the same on every rank."""
    torch.manual_seed(0)
    if wanted.model == "tiny":
        return tiny(classes=wanted.classes)
    return WideResNet(wanted.classes, wanted.depth, wanted.width)


def images(wanted: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Random bytes [samples, size, size, 3] and labels [samples], in host memory."""
    draw = torch.Generator().manual_seed(1)
    shape = (wanted.samples, wanted.size, wanted.size, 3)
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=draw)
    return pixels, torch.randint(0, wanted.classes, (wanted.samples,), generator=draw)


def orders(wanted: argparse.Namespace, device: torch.device) -> Iterator[Tensor]:
    """Rows of each of this rank's batches, epoch after epoch, the last partial one left out."""
    draw, number = torch.Generator().manual_seed(2), wanted.batch * RANKS
    while True:
        order = torch.randperm(wanted.samples, generator=draw).to(device)
        for start in range(RANK * wanted.batch, wanted.samples - wanted.samples % number, number):
            yield order[start : start + wanted.batch]


def in_a_group(device: str) -> torch.device:
    """Join the others where there are some (torchrun's variables), and take this rank's device."""
    here = torch.device("cpu") if device == "cpu" else torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if device == "cuda":
        torch.cuda.set_device(here)
    if RANKS > 1:
        torch.distributed.init_process_group("gloo" if device == "cpu" else "nccl")
    return here


def timed(step: Callable[[], object], wanted: argparse.Namespace, device: torch.device, **facts: object) -> None:
    """Warm up; then blocks of steps, when told to (--pace) or one after the other; rank 0 tells how long they took."""

    def block(steps: int) -> dict[str, float]:
        """Seconds by the clock, and of processors."""
        synchronize(device)
        began, used = time.perf_counter(), time.process_time()
        for _ in range(steps):
            step()
        synchronize(device)
        return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}

    first = block(1)["seconds"]
    block(max(0, wanted.warm_up - 1))
    facts = {"device": name(device), "ranks": RANKS, "batch": wanted.batch, "first_step_s": first, **facts}
    if wanted.pace:
        paced(block, wanted.pace, facts)
        return
    seconds = [block(wanted.steps)["seconds"] / wanted.steps for _ in range(wanted.blocks)]
    if RANK == 0:
        speed = wanted.batch * RANKS / sorted(seconds)[len(seconds) // 2]
        print(json.dumps({**facts, "step_s": seconds, "images_per_s": speed}), flush=True)


def paced(block: Callable[..., dict[str, float]], place: str, facts: dict[str, object]) -> None:
    """Rank 0 does each block that it is told to, as it is told to (steps=20, save=True); the others are led by the
    gradients that they share."""
    while RANK:
        block(1000)
    port, _, token = place.partition(":")
    with socket.create_connection(("127.0.0.1", int(port))) as line, line.makefile("rw") as talk:
        print(json.dumps({"token": token, **facts}), file=talk, flush=True)
        for asked in talk:
            print(json.dumps(block(**json.loads(asked))), file=talk, flush=True)


def synchronize(device: torch.device) -> None:
    """Wait for what the device was given to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def name(device: torch.device) -> str:
    """A GPU's name, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
