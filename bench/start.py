"""This module measures the time from a command to its first step next to `accelerate launch`, and the image's size."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from bench import harness, processes, targets
from bench.estimates import estimate_median, exact
from bench.measurements import Measurement, Row
from bench.processes import BenchOptions
from entrypoint import num_usable_cores
from train.logging import metrics_logger

BATCH, SAMPLES, PIXELS, CLASSES = 64, 512, 32, 10
SETTINGS: Final = (
    *("data.name=synthetic", f"data.samples={SAMPLES}", f"data.image_size={PIXELS}", f"data.classes={CLASSES}"),
    *("data.val_fraction=0", "model.name=wide_resnet", "model.args={depth: 1, width: 1}", "train.max_steps=1"),
    *(f"train.global_batch_size={BATCH}", f"train.micro_batch_size={BATCH}", "train.precision=fp32"),
    # The peer keeps no curves.
    *("optim.warmup_epochs=0", "log.every_steps=1", "log.tensorboard=false", "run.name=first"),
)
PEER_WORDS: Final = (
    *("--batch", str(BATCH), "--samples", str(SAMPLES), "--size", str(PIXELS), "--classes", str(CLASSES)),
    *("--depth", "1", "--width", "1"),
)
LIMIT_S: Final = 300.0
REMOVED_VARIABLES: Final = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
SIF_VARIABLE: Final = "APPTAINER_CONTAINER"  # Apptainer sets it to the path of the SIF


def add_arguments(group: argparse._ArgumentGroup) -> None:
    """Add the arguments of this benchmark."""
    group.add_argument("--sif", metavar="FILE", help="the image whose size is reported (row 12)")


def run(options: BenchOptions) -> Iterator[Measurement]:
    """Rows 8, 9 and 12."""
    yield first_step(options)
    yield from front_door(options)
    yield image_size(options)


def first_step(options: BenchOptions) -> Row:
    """Row 8: one process, a small network and synthetic images, so that the start makes the difference."""
    numbers = itertools.count()
    peer_words = [*accelerate_launch(options), *PEER_WORDS]

    def ours() -> float:
        start = time.time()
        return train_first_step(options, options.scratch / f"start-{next(numbers)}") - start

    def peer() -> float:
        start = time.time()
        result = processes.run_for_json(peer_words, user_environ(options), options.scratch, LIMIT_S)
        return float(result["at"]) - start

    pairs = harness.time_in_turns(ours, peer, pairs=options.num_pairs(5))
    torch = median(_seconds([sys.executable, "-c", "import torch"], options) for _ in range(options.num_pairs(3)))
    facts = {"ours_s": median(pairs.ours), "accelerate_launch_s": median(pairs.peer), "import_torch_s": torch}
    return targets.measured("8", pairs.time_ratio(), **facts)


def train_first_step(options: BenchOptions, folder: Path) -> float:
    """Train one step; return the time of its end, in seconds since 1970."""
    words = ["--device", options.device, "--procs-per-node", "1", *SETTINGS, f"run.output_dir={folder}"]
    run_to_end([*our_command("train"), *words], user_environ(options), options.scratch)
    lines = metrics_logger.read_events(folder / "first" / metrics_logger.METRICS_FILE)
    return next(float(line["time"]) for line in lines if line["event"] == "train")


def front_door(options: BenchOptions) -> Iterator[Row]:
    """Row 9: the time of `entrypoint show`, for which nobody should have to wait."""
    show = [*our_command("entrypoint"), "show", "--device", "cpu"]
    yield targets.measured("9", estimate_median([_seconds(show, options) for _ in range(options.num_pairs(20))]))
    peer = _timed(accelerate_launch(options, "empty"), options)
    pairs = harness.time_in_turns(_timed(show, options), peer, pairs=options.num_pairs(5))
    facts = {"ours_s": median(pairs.ours), "peer_s": median(pairs.peer)}
    yield targets.measured("9b", pairs.time_ratio(), **facts)


def image_size(options: BenchOptions) -> Row:
    """Row 12: the size of the SIF of --sif, or of the one that this runs in."""
    path = getattr(options.arguments, "sif", None) or options.environ.get(SIF_VARIABLE) or ""
    if not Path(path).is_file():
        return targets.unmeasured("12", "needs an image: make sif, then python -m bench start --sif train.sif")
    return targets.measured("12", exact(Path(path).stat().st_size / 1e9), file=Path(path).name)


def our_command(name: str) -> list[str]:
    """One of our commands as it is typed, if it is installed next to this Python."""
    script = Path(sys.executable).with_name(name)
    return [str(script)] if script.is_file() else [sys.executable, "-m", name]


def accelerate_launch(options: BenchOptions, script: str = "first_step") -> list[str]:
    """`accelerate launch` of a peer, with all the options that it would otherwise warn about or ask for."""
    command = [*_accelerate(), "launch", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"]
    command += ["--dynamo_backend", "no", "--num_cpu_threads_per_process", _num_threads(options.environ)]
    command += ["--cpu"] if options.device == "cpu" else []
    return [*command, harness.peer_command(options, script)[-1]]


def user_environ(options: BenchOptions) -> dict[str, str]:
    """The environment of a user who has everything installed, with bytecode: pip compiles, in a checkout the first
    start does."""
    return {name: value for name, value in options.child_environ().items() if name not in REMOVED_VARIABLES}


def run_to_end(words: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
    """Run a program to its end. Raises Failure: PEER, if it fails or hangs."""
    processes.run_to_end(words, environ, cwd, LIMIT_S)


def _timed(words: Sequence[str], options: BenchOptions) -> Callable[[], float]:
    return lambda: _seconds(words, options)


def _seconds(words: Sequence[str], options: BenchOptions) -> float:
    start = time.perf_counter()
    run_to_end(words, user_environ(options), options.scratch)
    return time.perf_counter() - start


def _accelerate() -> list[str]:
    script = Path(sys.executable).with_name("accelerate")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "accelerate.commands.accelerate_cli"]


def _num_threads(environ: Mapping[str, str]) -> str:
    return environ.get("OMP_NUM_THREADS") or str(num_usable_cores())
