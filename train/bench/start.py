"""From a command to its first step, beside `accelerate launch`; the front door alone; and the size of the image."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

from entrypoint import num_usable_cores
from train.bench import once, paced, pairs, rows
from train.bench.options import Options
from train.bench.paced import Side
from train.bench.rows import Found, Row
from train.logging import metrics_logger

BATCH, SAMPLES, PIXELS, CLASSES = 64, 512, 32, 10
SETTINGS: Final = (
    *("data.name=synthetic", f"data.samples={SAMPLES}", f"data.image_size={PIXELS}", f"data.classes={CLASSES}"),
    *("data.val_fraction=0", "model.name=wide_resnet", "model.args={depth: 1, width: 1}", "train.max_steps=1"),
    *(f"train.global_batch_size={BATCH}", f"train.micro_batch_size={BATCH}", "train.precision=fp32"),
    # The peer keeps no curves.
    *("optim.warmup_epochs=0", "log.every_steps=1", "log.tensorboard=false", "run.name=first"),
)
SCRIPT: Final = (
    *("--batch", str(BATCH), "--samples", str(SAMPLES), "--size", str(PIXELS), "--classes", str(CLASSES)),
    *("--depth", "1", "--width", "1"),
)
LONGEST_S: Final = 300.0
UNUSUAL: Final = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
IMAGE: Final = "APPTAINER_CONTAINER"  # the SIF, as Apptainer tells those inside


def arguments(group: argparse._ArgumentGroup) -> None:
    """What only this bench takes."""
    group.add_argument("--sif", metavar="FILE", help="the image whose size is told (row 12)")


def run(options: Options) -> Iterator[Found]:
    """Rows 8, 9 and 12."""
    yield first_step(options)
    yield from front_door(options)
    yield image(options)


def first_step(options: Options) -> Row:
    """Row 8: one process, a small network, and images that are made: what differs is how one gets there."""
    numbers = itertools.count()
    side = Side(name="first_step", command=[*launcher(options), *SCRIPT], environ=plain(options))

    def ours() -> float:
        began = time.time()
        return until_first_step(options, options.scratch / f"start-{next(numbers)}") - began

    def theirs() -> float:
        began = time.time()
        return float(paced.one_json(side, options.scratch, LONGEST_S)["at"]) - began

    timings = pairs.interleaved(ours, theirs, pairs=options.count(5))
    torch = median(_seconds([sys.executable, "-c", "import torch"], options) for _ in range(options.count(3)))
    facts = {"ours_s": median(timings.ours), "accelerate_launch_s": median(timings.peer), "import_torch_s": torch}
    return rows.measured("8", timings.longer(), **facts)


def until_first_step(options: Options, folder: Path) -> float:
    """Train one step; when it was done, in seconds since 1970."""
    words = ["--device", options.device, "--procs-per-node", "1", *SETTINGS, f"run.output_dir={folder}"]
    done([*command("train"), *words], plain(options), options.scratch)
    lines = metrics_logger.read_events(folder / "first" / metrics_logger.METRICS_FILE)
    return next(float(line["time"]) for line in lines if line["event"] == "train")


def front_door(options: Options) -> Iterator[Row]:
    """Row 9: what nobody should have to wait for."""
    show, nothing = [*command("entrypoint"), "show", "--device", "cpu"], [sys.executable, "-c", "pass"]
    empty = launcher(options, "empty")
    for number, peer, asked in (("9a", nothing, 20), ("9b", empty, 5)):
        timings = pairs.interleaved(_timed(show, options), _timed(peer, options), pairs=options.count(asked))
        yield rows.measured(number, timings.longer(), ours_s=median(timings.ours), peer_s=median(timings.peer))


def image(options: Options) -> Row:
    """Row 12: the SIF that was named, or that this runs in."""
    path = getattr(options.own, "sif", None) or options.environ.get(IMAGE) or ""
    if not Path(path).is_file():
        return rows.unmeasured("12", "needs an image: make sif, then train bench start --sif train.sif")
    return rows.measured("12", pairs.exactly(Path(path).stat().st_size / 1e9), file=Path(path).name)


def command(name: str) -> list[str]:
    """One of ours as it is typed, where it is installed beside this Python."""
    script = Path(sys.executable).with_name(name)
    return [str(script)] if script.is_file() else [sys.executable, "-m", name]


def launcher(options: Options, script: str = "first_step") -> list[str]:
    """`accelerate launch`, told all that it would warn of or ask for otherwise."""
    accelerate = [*_accelerate(), "launch", "--num_processes", "1", "--num_machines", "1", "--mixed_precision", "no"]
    accelerate += ["--dynamo_backend", "no", "--num_cpu_threads_per_process", _threads(options.environ)]
    return [*accelerate, *(["--cpu"] if options.device == "cpu" else []), options.peer(script)[-1]]


def plain(options: Options) -> dict[str, str]:
    """The environment of a user who has all installed, and compiled by pip: a checkout is by the first start."""
    return {name: value for name, value in options.variables().items() if name not in UNUSUAL}


def done(words: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
    """Run to the end. Raises Failure: PEER, where it fails or hangs."""
    once.done(words, environ, cwd, LONGEST_S)


def _timed(words: Sequence[str], options: Options) -> Callable[[], float]:
    return lambda: _seconds(words, options)


def _seconds(words: Sequence[str], options: Options) -> float:
    began = time.perf_counter()
    done(words, plain(options), options.scratch)
    return time.perf_counter() - began


def _accelerate() -> list[str]:
    script = Path(sys.executable).with_name("accelerate")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "accelerate.commands.accelerate_cli"]


def _threads(environ: Mapping[str, str]) -> str:
    return environ.get("OMP_NUM_THREADS") or str(num_usable_cores())
