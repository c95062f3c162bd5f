"""train.compile: a network whose steps and evaluations run as compiled code, made before the first step, kept on disk.

Compiled in place (nn.Module.compile), below DDP and above autocast: its state keeps its names, DDP's hooks see each
portion of gradients as soon as it is there, and what Accelerate makes of forward is compiled too (accelerate#3991 and
#4188 are about other ways).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train.data.shape import Shape
from train.distributed.device import failure_from_error
from train.distributed.runtime import Runtime
from train.evaluation import evaluate

BACKEND: Final = "inductor"
GRAPHS: Final = "reduce-overhead"
TIMES: Final = 3  # a CUDA graph is replayed from the third run on: one to warm up, one to record
Mode = Literal["default", "reduce-overhead"] | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """What the network computes before the first step: a micro batch, and a batch of the evaluation if there is one."""

    training: Tensor
    held_out: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What was compiled before the first step. breaks: where Python runs between two of the graphs. kept: of `pieces`
    of code, how many an earlier start had left in the folder `place`. replayed: by CUDA graphs, so that what a run
    gives lies where the next one writes; stable: gradients too would, and are added up in memory of their own."""

    mode: str
    replayed: bool
    stable: bool
    place: str
    graphs: int
    breaks: int
    pieces: int
    kept: int
    seconds: float

    def __str__(self) -> str:
        broken = f", {self.breaks} breaks between them" if self.breaks else ""
        return (
            f"{self.mode}: graphs: {self.graphs}{broken}, in {self.seconds:.1f} s; "
            f"{self.kept} of {self.pieces} pieces of code were in {self.place}"
        )


def compiled(
    mode: Mode, runtime: Runtime, model: nn.Module, network: nn.Module, *, rehearsed: Rehearsed, accumulation: int
) -> Compiled:
    """Compile `network`, on which `model` is built, by letting it compute as it will.

    Raises:
        Failure: USAGE for a model that torch cannot compile, or where it has no compiler.
    """
    torch._dynamo.reset()  # or a network that is built alike would be taken for compiled
    began, before = time.monotonic(), counts()
    replayed = mode == GRAPHS and runtime.device.type == "cuda"
    _compile(network, str(mode), runtime)
    for _ in range(TIMES if replayed else 1):
        _told(partial(runtime.rehearse, model, rehearsed.training, always=True))
        if rehearsed.held_out is not None:
            _told(partial(_evaluate, runtime, network, rehearsed.held_out))
    _dismiss_helpers()
    made = {name: number - before[name] for name, number in counts().items()}
    if not made["graphs"]:
        raise _idle()
    if stable := replayed and accumulation > 1:
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
    seconds = time.monotonic() - began
    return Compiled(mode=str(mode), replayed=replayed, stable=stable, place=_place(), seconds=seconds, **made)


def images(count: int, shape: Shape, device: torch.device) -> Tensor:
    """Black images, laid out in memory as the loader does: code is compiled for that."""
    channels, *size = shape.input
    return torch.zeros((count, *size, channels), device=device).movedim(-1, 1)


def counts() -> dict[str, int]:
    """Of this process so far: graphs, breaks between them, pieces of code, and those that came from the cache."""
    from torch._dynamo.utils import counters

    made: Mapping[str, Any] = counters
    hits, misses = (made["inductor"][f"fxgraph_cache_{kind}"] for kind in ("hit", "miss"))
    return {
        "graphs": made["stats"]["unique_graphs"],
        "breaks": sum(made["graph_break"].values()),
        "pieces": hits + misses,
        "kept": hits,
    }


def _compile(network: nn.Module, mode: str, runtime: Runtime) -> None:
    from torch._inductor import config

    # Helpers are processes with a torch of their own; by default there are as many for each rank as the node has cores.
    config.compile_threads = runtime.cores
    config.deterministic = True  # no kernels chosen by a stopwatch: the same run again has the same bits
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # warns that there is no GPU
    # Shows a traceback of whatever is raised below it, a signal's stop too; what it means is said by `_told`.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    options = {"mode": mode} if BACKEND == "inductor" else {}
    network.compile(backend=BACKEND, dynamic=False, **options)


def _place() -> str:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return cache_dir()


def _evaluate(runtime: Runtime, network: nn.Module, images: Tensor) -> None:
    with runtime.accelerator.autocast(), evaluate.explain_out_of_memory(len(images)):
        evaluate.warm_up(network, images)


def _dismiss_helpers() -> None:
    from torch._inductor.async_compile import shutdown_compile_workers

    shutdown_compile_workers()


def _told(action: Callable[[], None]) -> None:
    """Do it; what the compiler raises is said in our words."""
    try:
        action()
    except Exception as error:
        if ours := _ours(error):
            raise ours from None
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        inner = getattr(error, "inner_exception", error.__cause__)  # of a backend; torch names no cause then
        if inner is not None and failure_from_error(inner):
            raise inner from None
        raise _unfit(error) from error


def _ours(error: BaseException) -> Failure | None:
    """What we raised ourselves while torch compiled, as a signal's stop: torch wraps it in an error of its own."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Failure):
            return found
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            waiting += [found.__context__, found.__cause__]
    return None


def _unfit(error: Exception) -> Failure:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return Failure(
        "train.compile: torch cannot compile this model here",
        found=" ".join(lines[:2])[:300] or type(error).__name__,
        expected="a model without what torch.compile cannot follow, and a C++ compiler (g++)",
        fix="set train.compile=false",
        code=ExitCode.USAGE,
    )


def _idle() -> Failure:
    return Failure(
        "train.compile: no part of the model was compiled",
        found="0 graphs; its forward is marked torch.compiler.disable, or has nothing that torch could take over",
        fix="set train.compile=false, or take the mark away",
        code=ExitCode.USAGE,
    )
