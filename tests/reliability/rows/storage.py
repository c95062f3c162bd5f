"""Rows of docs/evidence/failures.md about disks, quotas, file servers and what becomes of checkpoints there."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from checkpoints import flip, reseal
from disks import fill, mounted
from images import write_classes
from stage import ENDLESS, TINY, finished, once, released, saved, start, struck, train, verdict
from trials import Trial

Row = Callable[[int, Path], Trial]
LONGER = (*TINY, "train.epochs=3")  # four steps more than a finished run has
DELAY_US = 2_500_000


def failing_saves(call: str, error: str, code: int, *words: str, last: int = 4) -> Row:
    """Rows 14, 15, 17, 19: from some moment on, a system call of every save fails.

    last: of the calls that a commit cannot do without. strace counts in each thread, and each save has one of its own.
    """

    def row(seed: int, folder: Path) -> Trial:
        finished(folder)
        started = start(folder, *ENDLESS)
        started.until_step(9 + seed)
        inject = f"-einject={call}:error={error}:when={1 + seed // 2 % last}+"
        tracer = struck(started, started.rank(0), f"-etrace={call}", inject)
        ended = started.ended()
        released(tracer)
        also = {"the run goes on from there": train_on(folder)} if seed % 2 == 0 else {}
        return verdict(
            ended,
            code,
            "kept:",
            *words,
            injector=f"strace {inject}",
            process="rank 0",
            folder=folder,
            kept=8,
            also=also,
        )

    return row


def train_on(folder: Path) -> bool:
    """Whether the next start can take what is there: two steps more."""
    return train(folder, *ENDLESS, f"train.max_steps={saved(folder) + 2}").code == 0


def full(seed: int, folder: Path) -> Trial:
    """Row 14: no room at the start, and at a save."""
    if seed % 2 == 0:
        return failing_saves("fsync", "ENOSPC", 74, "No space left", "free of")(seed, folder)
    with mounted(folder / "disk", "size=256k") as disk:
        (disk / "runs").mkdir()
        fill(disk, leave=4096 * (seed % 3))
        ended = train(folder, *TINY, "run.output_dir=disk/runs")
    return verdict(ended, 74, "No space left", "free", injector="a full tmpfs", process="the start")


def passing_error(seed: int, folder: Path) -> Trial:
    """Row 17: a file server that fails once or twice and then works is asked again; one that goes on failing is 74."""
    if seed % 2 == 0:
        return failing_saves("rename", "ESTALE", 74, "Stale", last=2)(seed, folder)
    return survived(f"-einject=rename:error={('ESTALE', 'EIO')[seed % 4 // 2]}:when=1", "rename", seed, folder)


def survived(
    inject: str, call: str, seed: int, folder: Path, *words: str, also: Mapping[str, bool] | None = None
) -> Trial:
    """A run that goes on under a fault until it is told to stop."""
    finished(folder)
    started = start(folder, *ENDLESS)
    started.until_step(9 + seed)
    tracer = struck(started, started.rank(0), f"-etrace={call}", inject)
    before = max(started.run.logged())
    started.until_step(before + 6)
    released(tracer)
    started.send(signal.SIGTERM)
    ended = started.ended()
    also = {"it went on saving": saved(folder) >= before + 6, **(also or {})}
    return verdict(ended, 75, *words, injector=f"strace {inject}", process="rank 0", folder=folder, kept=8, also=also)


def slow_saves(seed: int, folder: Path) -> Trial:
    """Row 18: an fsync that takes seconds is waited for, and its time is in the record."""
    trial = survived(f"-einject=fsync:delay_enter={DELAY_US}:when=1", "fsync", seed, folder)
    text = (folder / "runs/run/metrics.jsonl").read_text()
    seconds = [
        float(line.split('"seconds": ')[1].split(",")[0].rstrip("}"))
        for line in text.splitlines()
        if '"checkpoint"' in line
    ]
    slow = max(seconds, default=0)
    return also_so(trial, slow >= DELAY_US / 1e6 - 0.5, f"the record tells how long the save took ({slow:.1f} s)")


def also_so(trial: Trial, holds: bool, what: str) -> Trial:
    """The trial with one more thing to hold."""
    from dataclasses import replace

    return trial if holds else replace(trial, ok=False, lines=[*trial.lines, f"WRONG: not so: {what}"])


def read_only(seed: int, folder: Path) -> Trial:
    """Row 16: before a model is built."""
    with mounted(folder / "disk", "ro"):
        ended = train(folder, *TINY, "run.output_dir=disk/runs")
    also = {"before the workers start": ended.seconds < 20 and "global batch" not in ended.said}
    return verdict(ended, 73, "disk/runs", "fix:", injector="a read-only tmpfs", process="the start", also=also)


def damage(seed: int, folder: Path, name: str, action: Callable[[Path], object]) -> Trial:
    """Rows 20 to 22: the newest checkpoint is passed over; where none is whole, the start is refused."""
    checkpoints = finished(folder)
    steps = sorted(checkpoints.glob("step-*"))
    none = seed % 2 == 0
    for path in steps if none else steps[-1:]:
        action(path)
    ended = train(folder, *LONGER)
    words = ("is whole",) if none else ("skipped", "step-00000008", "at step 6")
    if none:
        shutil.rmtree(checkpoints)
    return verdict(
        ended, 65 if none else 0, *words, injector=name, process="the next start", folder=folder, kept=0 if none else 12
    )


def a_file(seed: int, path: Path) -> Path:
    """Any file of a checkpoint."""
    return random.Random(seed).choice(sorted(path.iterdir()))


def truncated(seed: int, folder: Path) -> Trial:
    def cut(path: Path) -> None:
        file = a_file(seed, path)
        os.truncate(file, random.Random(seed).randrange(file.stat().st_size - 1))

    return damage(seed, folder, "byte edit: a file cut short", cut)


def flipped(seed: int, folder: Path) -> Trial:
    def turn(path: Path) -> None:
        file = a_file(seed, path)
        flip(file, at=random.Random(seed).randrange(file.stat().st_size - 1))

    return damage(seed, folder, "byte edit: a flipped bit", turn)


def incomplete(seed: int, folder: Path) -> Trial:
    def take_away(path: Path) -> None:
        file = a_file(seed, path)
        file.unlink() if seed % 3 else file.write_bytes(b"")

    return damage(seed, folder, "rm, or an empty file", take_away)


def other_config(seed: int, folder: Path) -> Trial:
    """Row 23."""
    finished(folder)
    key, value = (("model.args", "{width: 8}"), ("optim.lr", "0.02"), ("data.image_size", "16"))[seed % 3]
    ended = train(folder, *LONGER, f"{key}={value}")
    return verdict(
        ended, 65, key.split(".")[0], "->", injector=f"{key}={value}", process="the next start", folder=folder, kept=8
    )


def other_world(seed: int, folder: Path) -> Trial:
    """Row 24: fast goes on and says so; bitwise refuses a world that is no power of two."""
    if seed % 2 == 0:
        words = (*TINY, "train.reproducible=bitwise")
        ended = train(folder, *words, ranks=3)
        return verdict(ended, 76, "1, 2", injector="3 ranks, bitwise", process="the start")
    finished(folder)
    ended = train(folder, *LONGER, ranks=2)
    return verdict(
        ended,
        0,
        "instead of 1",
        "goes on with 2 ranks",
        injector="2 ranks instead of 1",
        process="the next start",
        folder=folder,
        kept=12,
    )


def newer(seed: int, folder: Path) -> Trial:
    """Row 25."""
    changes: dict[str, object] = {"format": 99} if seed % 2 else {"torch": "99.1.0"}
    for path in finished(folder).glob("step-*"):
        reseal(path, **changes)
    ended = train(folder, *LONGER)
    shutil.rmtree(folder / "runs/run/checkpoints")
    return verdict(ended, 65, "newer version", "99", injector=f"manifest: {changes}", process="the next start")


def two_starts(seed: int, folder: Path) -> Trial:
    """Row 26: the second is refused, naming the first; the first goes on."""
    first = start(folder, *ENDLESS)
    first.until_step(1 + seed)
    second = train(folder, *ENDLESS)
    at = max(first.run.logged())
    first.until_step(at + 3)
    first.send(signal.SIGTERM)
    stopped = first.ended()
    also = {"the first went on": stopped.code == 75, "no step is twice in the record": once(first.run.logged())}
    return verdict(
        second,
        73,
        "process",
        "fix:",
        injector="started twice",
        process="the second start",
        folder=folder,
        kept=1,
        also=also,
    )


def stale_lock(seed: int, folder: Path) -> Trial:
    """Row 27: whoever held the run's folder was killed: the next start takes it over."""
    first = start(folder, *ENDLESS)
    first.until_saved(1 + seed)
    first.destroy()
    ended = train(folder, *ENDLESS, f"train.max_steps={saved(folder) + 2}")
    return verdict(
        ended, 0, "resumed", injector="kill -9 of all processes", process="the run's folder", folder=folder, kept=1
    )


def no_locks(seed: int, folder: Path) -> Trial:
    """Row 28: a file system without locks."""
    before = ("strace", "-f", "--seccomp-bpf", "-qq", "-o/dev/null", "-etrace=flock", "-einject=flock:error=ENOLCK")
    finished(folder)
    ended = train(folder, *LONGER, before=before)
    return verdict(ended, 0, injector="strace flock ENOLCK", process="all", folder=folder, kept=12)


def full_log(seed: int, folder: Path) -> Trial:
    """Row 54: the record cannot be written any more; the training goes on."""
    finished(folder)
    started = start(folder, *ENDLESS)
    started.until_step(9 + seed)
    inject = f"-einject=write:error={('ENOSPC', 'EIO')[seed % 2]}"
    tracer = struck(started, started.rank(0), "-etrace=write", f"-P{folder}/runs/run/metrics.jsonl", inject)
    before = saved(folder)
    started.until_saved(before + 4)
    released(tracer)
    started.send(signal.SIGTERM)
    return verdict(
        started.ended(), 75, "metrics", injector=f"strace {inject}", process="rank 0", folder=folder, kept=before + 4
    )


def closed_output(seed: int, folder: Path) -> Trial:
    """Row 59: who reads the output goes away."""
    reader, writer = os.pipe()
    started = start(folder, *TINY, output=writer)
    os.close(writer)
    if seed % 2:
        os.read(reader, 1)
    os.close(reader)
    log = folder / "runs/run/logs/rank-0000.log"
    ended = started.ended()
    also = {"the log is whole": log.exists() and "step-00000008" in log.read_text()}
    return verdict(ended, 0, injector="stdout closed", process="the parent", folder=folder, kept=8, also=also)


def bad_image(seed: int, folder: Path) -> Trial:
    """Row 42: named; as many as data.max_bad_images allows are passed over, with their number."""
    place = write_classes(folder / "images", one=24, two=24)
    file = random.Random(seed).choice(sorted(place.rglob("*.png")))
    file.write_bytes(file.read_bytes()[:30] if seed % 2 else b"no image at all")
    words = (*TINY, "data.name=folder", "data.root=images", "data.samples=10000", "train.epochs=1")
    allowed = seed % 3 == 0
    ended = train(folder, *words, f"data.max_bad_images={int(allowed)}", "checkpoint.every_steps=100")
    return verdict(ended, 0 if allowed else 65, file.name, injector="byte edit", process="an image file", folder=folder)


def missing_class(seed: int, folder: Path) -> Trial:
    """Row 43: a class without images, or on one side only."""
    place = folder / "images"
    if seed % 2:
        write_classes(place, one=8, two=0)
    else:
        write_classes(place / "train", one=8, two=8)
        write_classes(place / "val", one=8)
    words = (*TINY, "data.name=folder", "data.root=images", "data.samples=10000")
    return verdict(train(folder, *words), 66, "two", injector="rm", process="a class folder", folder=folder)


ROWS: Mapping[int, Row] = {
    14: full,
    15: failing_saves("fsync", "EDQUOT", 74, "quota"),
    16: read_only,
    17: passing_error,
    18: slow_saves,
    19: failing_saves("fsync", "EIO", 74, "Input/output error"),
    20: truncated,
    21: flipped,
    22: incomplete,
    23: other_config,
    24: other_world,
    25: newer,
    26: two_starts,
    27: stale_lock,
    28: no_locks,
    42: bad_image,
    43: missing_class,
    54: full_log,
    59: closed_output,
}
