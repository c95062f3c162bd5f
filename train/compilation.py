"""`train.compile`: torch compiles the model before the first step, and keeps the code on disk.

The model is compiled in place (nn.Module.compile), below DDP and above autocast: its state keeps its names, DDP's
hooks still get each bucket of gradients early, and Accelerate's forward is compiled too (accelerate#3991 and #4188 are
about other ways).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from entrypoint import ExitCode, Failure, Heartbeat, ProcessMeter, start_daemon_thread
from train.config import checks
from train.config.schema import TrainConfig
from train.distributed.device import failure_from_error
from train.parallel.base import Parallel

BACKEND: Final = "inductor"
CUDA_GRAPHS_MODE: Final = "reduce-overhead"
CUDA_GRAPH_RUNS: Final = 3  # a CUDA graph is replayed from the third run on: one to warm up, one to record
# A large network takes minutes on a busy node: densenet121 took 281 s on two cores, and launch.timeouts.start is 600 s.
BUSY_CHECK_S: Final = 10.0
MIN_BUSY_S: Final = 1.0  # seconds of CPU time between two checks, of this process and its compile workers
REPORT_EVERY_S: Final = 60.0
MAX_COMPILING_S: Final = 3600.0  # a compiler that loops for ever is busy too


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What was compiled before the first step; run.json holds these fields.

    graphs: compiled graphs; breaks: where Python runs between two of them.
    pieces: of code; kept: how many of them an earlier start had left in the folder `place`.
    replayed: by CUDA graphs, so that each run overwrites the results of the one before.
    stable: the gradients have memory of their own, because CUDA graphs would overwrite them while they add up.
    """

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
        breaks = f", {self.breaks} breaks between them" if self.breaks else ""
        return (
            f"{self.mode}: graphs: {self.graphs}{breaks}, in {self.seconds:.1f} s; "
            f"{self.kept} of {self.pieces} pieces of code were in {self.place}"
        )


def compile_model(
    train: TrainConfig,
    parallel: Parallel,
    rehearse_evaluation: Callable[[], None] | None,
    heartbeat: Heartbeat,
    say: Callable[[str], None],
) -> Compiled:
    """Compile the strategy's network by computing with it once.

    rehearse_evaluation: computes with a batch of the size of an evaluation's, where the run evaluates. heartbeat, say:
    get a sign of life while the compiler works.

    Raises:
        Failure: USAGE for a model that torch cannot compile, or if there is no compiler; IO, OUTPUT or RESOURCE where
            the compiler cannot write, or lacks memory.
    """
    from torch._inductor.async_compile import shutdown_compile_workers
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    torch._dynamo.reset()  # or a second network of the same class would be taken for compiled
    began, before, mode = time.monotonic(), count_compiled(), str(train.compile)
    uses_cuda_graphs = mode == CUDA_GRAPHS_MODE and parallel.runtime.device.type == "cuda"
    _set_up_compiler(parallel.network, mode, parallel.runtime.cores, repeatable=checks.is_repeatable(train))
    with signs_of_life(heartbeat, say):
        for _ in range(CUDA_GRAPH_RUNS if uses_cuda_graphs else 1):
            with _explained_errors():
                parallel.rehearse()
                if rehearse_evaluation is not None:
                    rehearse_evaluation()
    shutdown_compile_workers()
    counts = {name: number - before[name] for name, number in count_compiled().items()}
    if not counts["graphs"]:
        raise _nothing_compiled_failure()
    if keeps_gradients := uses_cuda_graphs and parallel.batches.accumulation > 1:
        parallel.keep_gradients()
    seconds = time.monotonic() - began
    return Compiled(
        mode=mode,
        replayed=uses_cuda_graphs,
        stable=keeps_gradients,
        place=cache_dir(),
        seconds=seconds,
        **counts,
    )


@contextmanager
def signs_of_life(
    heartbeat: Heartbeat, say: Callable[[str], None], cpu_seconds: Callable[[], float] | None = None
) -> Iterator[None]:
    """Beat while the compiler uses the CPU, and say once a minute that it still works.

    A compiler that hangs uses none: then the parent ends the run after launch.timeouts.start.

    cpu_seconds: what this process and its compile workers have used so far.
    """
    ended, meter = threading.Event(), ProcessMeter(os.getpid())
    read = cpu_seconds or (lambda: meter.measure(time.monotonic())[1])

    def report() -> None:
        began = reported = time.monotonic()
        before = read()
        while not ended.wait(BUSY_CHECK_S):
            time_s, used = time.monotonic(), read()
            if used - before >= MIN_BUSY_S and time_s - began < MAX_COMPILING_S:
                heartbeat.beat("start")
            before = used
            if time_s - reported >= REPORT_EVERY_S:
                say(f"train.compile: still compiling after {(time_s - began) / 60:.0f} min")
                reported = time_s

    start_daemon_thread(report)
    try:
        yield
    finally:
        ended.set()


def count_compiled() -> dict[str, int]:
    """Of this process so far: graphs, breaks between them, pieces of code, and those that came from the cache."""
    from torch._dynamo.utils import counters

    counts: Mapping[str, Any] = counters
    hits, misses = (counts["inductor"][f"fxgraph_cache_{outcome}"] for outcome in ("hit", "miss"))
    return {
        "graphs": counts["stats"]["unique_graphs"],
        "breaks": sum(counts["graph_break"].values()),
        "pieces": hits + misses,
        "kept": hits,
    }


def _set_up_compiler(network: nn.Module, mode: str, threads: int, *, repeatable: bool) -> None:
    from torch._inductor import config

    # Compile workers are processes with a torch of their own; torch starts as many per rank as the node has cores.
    config.compile_threads = threads
    config.deterministic = repeatable
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # warns that there is no GPU
    # Shows a traceback of every exception below it, even of a stop signal; `_explained_errors` says what it means.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    options = {"mode": mode} if BACKEND == "inductor" else {}
    network.compile(backend=BACKEND, dynamic=False, **options)


@contextmanager
def _explained_errors() -> Iterator[None]:
    """What the compiler raises inside becomes a Failure."""
    try:
        yield
    except Exception as error:
        if failure := _wrapped_failure(error):
            raise failure from None
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        inner = getattr(error, "inner_exception", error.__cause__)  # of a backend; torch names no cause then
        if inner is not None and failure_from_error(inner):
            raise inner from None
        raise _cannot_compile_failure(error) from error


def _wrapped_failure(error: BaseException) -> Failure | None:
    """A Failure that was raised while torch compiled, for a stop signal, say: torch wraps it in its own error."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if isinstance(current, Failure):
            return current
        if current is not None and id(current) not in seen:
            seen.add(id(current))
            waiting += [current.__context__, current.__cause__]
    return None


NO_COMPILE_FIX: Final = "set train.compile=false"
FOLDERS_FIX: Final = (
    "set TMPDIR and TORCHINDUCTOR_CACHE_DIR to folders on another file system, or make room in theirs (/tmp, and "
    f"train-image/compiled in the user's cache); or {NO_COMPILE_FIX}"
)
# Words in an error of torch.compile, what they mean, a fix and the exit code.
COMPILER_ERRORS: Final = (
    (
        ("No space left on device", "Disk quota exceeded"),
        "the compiler cannot write its files: the disk is full, or a quota used up",
        FOLDERS_FIX,
        ExitCode.IO,
    ),
    (
        ("Read-only file system", "Permission denied", "No usable temporary directory"),
        "the compiler cannot write its files",
        FOLDERS_FIX,
        ExitCode.OUTPUT,
    ),
    (
        ("failed to map segment from shared object",),
        "compiled code cannot be run from its folder (mounted with noexec)",
        FOLDERS_FIX,
        ExitCode.OUTPUT,
    ),
    (
        ("Killed signal", "Cannot allocate memory", "virtual memory exhausted", "out of memory allocating"),
        "the compiler had too little memory",
        f"raise the limit on memory (--mem, docker run -m, ulimit -v), or {NO_COMPILE_FIX}",
        ExitCode.RESOURCE,
    ),
    (
        ("File size limit exceeded", "File too large", "Too many open files"),
        "the compiler met a limit of this shell",
        f"raise the limits on file sizes and open files (ulimit -f, -n), or {NO_COMPILE_FIX}",
        ExitCode.RESOURCE,
    ),
    (
        ("No working C++ compiler found", "Failed to find C compiler"),
        "no compiler works here",
        f"install g++, or set CXX (on a GPU: CC) to one that runs; or {NO_COMPILE_FIX}",
        ExitCode.USAGE,
    ),
)


def _cannot_compile_failure(error: Exception) -> Failure:
    """What stopped the compiler. Its command comes first in torch's error, and the reason last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for words, what, fix, code in COMPILER_ERRORS:
        if reasons := [line for line in lines if any(word in line for word in words)]:
            return Failure(f"train.compile: {what}", found=reasons[0][:300], fix=fix, code=code)
    reasons = [line for line in lines if "error: " in line][:1] or lines[:2]
    return Failure(
        "train.compile: torch cannot compile this model here",
        found=" ".join(reasons)[:300] or type(error).__name__,
        expected="a model without what torch.compile cannot follow, and a C++ compiler (g++)",
        fix=NO_COMPILE_FIX,
        code=ExitCode.USAGE,
    )


def _nothing_compiled_failure() -> Failure:
    return Failure(
        "train.compile: no part of the model was compiled",
        found="0 graphs; its forward is marked torch.compiler.disable, or has nothing that torch could take over",
        fix=f"{NO_COMPILE_FIX}, or take the mark away",
        code=ExitCode.USAGE,
    )
