"""Step the smallest member of each family of torchvision and timm once: `python all_families.py [NAME...] > table`.

Each model is built as `train` builds it, and makes one step forward and backward on the CPU, in a process of its own
with one thread. Not in CI: it takes an hour, and some models need gigabytes. The table has a row for each model that
fails, and the number of those that do not.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

from train.config.models import SMALLEST_TIMM_MODELS, SMALLEST_TORCHVISION_MODELS, TIMM_PREFIX, TORCHVISION_MODELS

# Seconds of processor time, which other work on the machine does not use up, and gigabytes of memory.
CPU_LIMIT_S, MEMORY_LIMIT_GIB = 200, 19
SIZE = 64  # pixels; a model that does not take them is stepped at its own size
TORCHVISION_SIZE = 224
CLASSES = 5
ONE = "--one"


def names() -> list[str]:
    """The smallest member of each family."""
    torchvision = {*SMALLEST_TORCHVISION_MODELS.values(), *("alexnet", "googlenet")} & set(TORCHVISION_MODELS)
    return [*sorted(torchvision), *(TIMM_PREFIX + name for name in SMALLEST_TIMM_MODELS)]


def own_size(name: str) -> int:
    """The size in pixels that the model was published with."""
    if not name.startswith(TIMM_PREFIX):
        return TORCHVISION_SIZE
    from timm.models import get_pretrained_cfg

    config = get_pretrained_cfg(name.removeprefix(TIMM_PREFIX))
    return TORCHVISION_SIZE if config is None else max(config.input_size[1:])


def step(name: str) -> tuple[int, str]:
    """Train `name` for one step; returns the size of its images, and why it failed, in one line, or nothing."""
    from entrypoint import Failure

    size, problem = SIZE, ""
    for size in (SIZE, own_size(name)):
        try:
            return size, _step(name, size)
        except Failure as failure:
            problem = f"{failure.what}: {failure.found}"
            if "does not take samples" not in failure.what:
                break
        except Exception as error:
            return size, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return size, problem


def _step(name: str, size: int) -> str:
    import torch
    from torch import nn

    from train.config.schema import ModelConfig, OptimConfig
    from train.data.shape import Shape
    from train.models import registry
    from train.optim.optimizer import build_optimizer

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
    return f"trains on one rank; on several DDP refuses it: no gradient for {', '.join(unused[:3])}" if unused else ""


def step_in_process(name: str) -> tuple[int, str]:
    """As `step`, in a new process with limits on its time and memory."""
    with subprocess.Popen(
        [sys.executable, __file__, ONE, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        while process.poll() is None:
            if _resident_gib(process.pid) > MEMORY_LIMIT_GIB:
                process.kill()
                return SIZE, f"needs more than {MEMORY_LIMIT_GIB} GiB of memory"
            time.sleep(0.2)
        output = process.stdout.read() if process.stdout else ""
    size, _, problem = output.strip().rpartition("\n")[2].partition(" ")
    if process.returncode in (-signal.SIGSEGV, -signal.SIGABRT):
        return SIZE, f"the process ended with {signal.Signals(-process.returncode).name}"
    if process.returncode or not size.isdigit():
        return SIZE, f"no step within {CPU_LIMIT_S} s of one core (exit code {process.returncode})"
    return int(size), problem


def _resident_gib(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 2**30
    except (OSError, IndexError):  # it has just ended
        return 0.0


def main(chosen: list[str]) -> None:
    if chosen[:1] == [ONE]:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S))
        print(*step(chosen[1]))
        return
    rows = []
    models = chosen or names()
    for name in models:
        began = time.monotonic()
        size, problem = step_in_process(name)
        seconds = time.monotonic() - began
        print(f"{name}, {size} pixels: {problem or 'trains'} ({seconds:.0f} s)", file=sys.stderr, flush=True)
        rows += [f"| `{name}` | {size} | {problem} |"] if problem else []
    print(f"{len(models) - len(rows)} of {len(models)} train.\n\n| model | pixels | why not |\n|---|---|---|")
    print("\n".join(rows))


if __name__ == "__main__":
    main(sys.argv[1:])
