"""With --profile-lines, rank 0 measures the time of each line of a step."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure, pip_command
from train import files, plugin
from train.config import schema
from train.config.schema import RunConfig

OPTION: Final = "--profile-lines"
FILE: Final = Path("profile", "rank-0000-lines.txt")
UNIT_S: Final = 1e-3
TITLE: Final = (
    "Milliseconds of each line on rank 0, the costliest function last.\n"
    "A line that hands work to a GPU is done before the GPU is: who waits for it has its time.\n"
    "Watching costs time itself, most in lines that take little.\n\n"
)
# The project's functions that run in each step, and between steps.
OWN: Final[Mapping[str, Sequence[str]]] = {
    "train.trainer": tuple(
        f"Trainer.{name}"
        for name in (
            "_train",
            "train_step",
            "_compute_loss",
            "log_step",
            "evaluate",
            "save",
        )
    ),
    "train.parallel.base": ("Parallel.accumulate", "Parallel._add_gradients", "Parallel.update"),
    "train.parallel.bitwise": ("Bitwise.accumulate",),
    "train.checkpoint.checkpointer": ("Checkpointer.save", "Checkpointer.wait"),
    "train.distributed.vote": ("StopVote.result", "StopVote.propose"),
    "train.data.loader": ("BatchLoader.train", "BatchLoader._draw_ahead", "BatchLoader._plain"),
    "train.data.in_memory": ("DeviceDataset.read", "HostDataset.read"),
    "train.data.workers": ("WorkerLoader.read",),
    "train.tasks.base": ("Task.loss",),
    "train.tasks.classification": ("Classification.mean_loss",),
    "train.evaluation.validator": ("Validator.measure",),
}


def load() -> Any:
    """Import the class LineProfiler, which takes 0.5 s.

    Raises:
        Failure: USAGE, if it cannot be imported.
    """
    try:
        return importlib.import_module("line_profiler").LineProfiler
    except Exception as error:  # also: built for another Python
        raise Failure(
            f"{OPTION} needs the package line_profiler, which cannot be loaded",
            found=f"{type(error).__name__}: {error}",
            fix=f"use the image, which has it; or {pip_command('line_profiler')}; or leave {OPTION} out",
            code=ExitCode.USAGE,
        ) from error


@contextmanager
def timed(config: RunConfig, folder: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Time the lines that run inside the block, and write the times into the run's folder when it ends.

    Raises:
        Failure: as `load`, and as `plugin.load_factory` for the user's own modules.
    """
    profiler = load()()
    for module, functions in OWN.items():
        for name in functions:
            profiler.add_callable(attrgetter(name)(importlib.import_module(module)))
    for module in own_modules(config):
        profiler.add_module(sys.modules[module], scoping_policy="children")
    profiler.enable_by_count()
    try:
        yield
    finally:
        profiler.disable_by_count()
        _keep(profiler, folder / FILE, tell)


def own_modules(config: RunConfig) -> list[str]:
    """Import the user's modules that compute a step; returns their names."""
    names = {
        "data.name": config.data.name,
        "model.name": config.model.name,
        "optim.name": config.optim.name,
        "optim.loss": config.optim.loss,
    }
    factories = {key: name for key, name in names.items() if schema.is_factory(name)}
    for key, name in factories.items():
        plugin.load_factory(name, key)
    return sorted({name.partition(":")[0] for name in factories.values()})


def _keep(profiler: Any, path: Path, tell: Callable[[str], None]) -> None:
    text = io.StringIO(TITLE)
    text.seek(0, io.SEEK_END)
    try:
        profiler.print_stats(text, output_unit=UNIT_S, stripzeros=True, sort=True, summarize=True)
        path.parent.mkdir(exist_ok=True)
        files.write_atomic(path, text.getvalue().encode())
        tell(f"lines          {path}: how long each took on rank 0")
    except Exception as error:  # profiling must never end a run
        tell(f"warning: {path} was not written: {f'{type(error).__name__}: {error}'.splitlines()[0]}")
