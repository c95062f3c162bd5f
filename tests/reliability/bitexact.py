"""kill -9 at random times, the run resumed, and every bit compared with the run that nobody killed.

bitexact.py     N=200 trials over fast on 1, 2 and 4 ranks and bitwise on any of them; SEED=0; AT_ONCE=2 trials
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import trials
from processes import alive, unmeasured, wait_until
from trials import Trial

from train.logging.metrics_logger import METRICS_FILE, read_events

WORLDS = (1, 2, 4)
TURNS = (1, 4, 2, 1, 2, 1)  # most of a trial is the start of its ranks
STEPS = 48
# All that a state may hold (two moments, an average, BatchNorm's statistics), and all that is drawn (order,
# augmentation, dropout). Saved in every third step, and where an evaluation is the best so far.
SETTINGS = (
    *("run.name=run", "data.samples=160", "data.image_size=8", "data.classes=4", "model.args.width=4"),
    *("model.args.norm=batch", "model.args.dropout=0.1", "optim.name=adamw", "optim.lr=0.003"),
    *("train.clip_grad_norm=0.1", "train.ema_decay=0.9", "train.epochs=12", "train.global_batch_size=32"),
    *("train.micro_batch_size=4", "eval.batch_size=10", "eval.metric=loss", "checkpoint.every_steps=3"),
    *("log.every_steps=2", "log.tensorboard=false"),
)
MODES = ("fast", "bitwise")
STARTING = 0.2  # share of the kills that come before the first step
LONGEST_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One trial: `moment` is the share of the training's time that has passed, or, below 0, is left of its start.

    victim: which rank is killed; None for the parent, whose ranks the kernel kills with it.
    """

    number: int
    mode: str
    before: int
    after: int
    victim: int | None
    moment: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """An uninterrupted run: what it left, and how long it took to begin training, and to train."""

    left: dict[str, str]
    start_s: float
    train_s: float


def plans(number: int, seed: int) -> list[Plan]:
    """The modes and the ranks by turns; all else by chance."""
    draw, made = random.Random(seed), []
    for at in range(number):
        mode, before = MODES[at % 2], TURNS[at // 2 % len(TURNS)]
        after = before if mode == "fast" else draw.choice(WORLDS)
        victim = draw.choice([None, None, draw.randrange(before)])
        moment = draw.uniform(-STARTING / (1 - STARTING), 1)
        made.append(Plan(number=at, mode=mode, before=before, after=after, victim=victim, moment=moment))
    return made


@functools.cache
def scratch() -> str:
    """Where killed runs leave what nobody takes away: gone with this process. Short, since sockets are made in it."""
    folder = tempfile.mkdtemp(prefix="t-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def start(place: Path, mode: str, world: int) -> subprocess.Popen[bytes]:
    """The real command, all it says in place/log."""
    where = ["--device", "cpu", "--procs-per-node", str(world)]
    command = [sys.executable, "-m", "train", *where, *SETTINGS, f"train.reproducible={mode}"]
    # With bitwise the number of threads is ours to choose: it must be the same in every world.
    environ = {name: value for name, value in unmeasured().items() if name != "OMP_NUM_THREADS"}
    environ["TMPDIR"] = scratch()
    threads = {"OMP_NUM_THREADS": "1"} if mode == "fast" else {}
    with (place / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=place, env=environ | threads, stdout=log, stderr=log)


def wait_for_training(place: Path, process: subprocess.Popen[bytes]) -> None:
    """Until the first step stands in the record."""
    deadline = time.monotonic() + LONGEST_S
    while not (place / "runs" / "run" / METRICS_FILE).exists() and process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            raise AssertionError(f"no first step: {told(place)}")
        time.sleep(0.002)


def uninterrupted(place: Path, mode: str, world: int) -> Reference:
    """Run to the end, and measure."""
    place.mkdir()
    begun = time.monotonic()
    with start(place, mode, world) as process:
        wait_for_training(place, process)
        trains = time.monotonic()
        if process.wait(LONGEST_S):
            raise RuntimeError(told(place))
    ended = time.monotonic()
    return Reference(left=left(place), start_s=trains - begun, train_s=ended - trains)


def left(place: Path) -> dict[str, str]:
    """sha256 of each file of tensors at the last step, and of what the record tells."""
    run = place / "runs" / "run"
    files = sorted((run / "checkpoints" / f"step-{STEPS:08d}").glob("*.safetensors"))
    events = read_events(run / METRICS_FILE)
    told = [(event["event"], event["step"], event["loss"]) for event in events if "loss" in event]
    record = {"record": digest(json.dumps(told).encode())}
    return {path.name: digest(path.read_bytes()) for path in files} | record


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def told(place: Path) -> str:
    return (place / "log").read_text()


def ranks_of(parent: int) -> list[int]:
    """The processes of the ranks, in their order, as far as they are there."""
    with suppress(OSError):
        tasks = Path(f"/proc/{parent}/task").iterdir()
        return sorted(int(pid) for task in tasks for pid in (task / "children").read_text().split())
    return []


def strike(plan: Plan, place: Path, reference: Reference, share: float = 1.0) -> str | None:
    """Start, and kill at the moment. Returns which process it was; None if the run had ended before.

    share: of the time until then.
    """
    process = start(place, plan.mode, plan.before)
    begun = time.monotonic()
    if plan.moment >= 0:
        wait_for_training(place, process)
        time.sleep(share * plan.moment * reference.train_s)
    else:
        time.sleep(share * reference.start_s * (1 + plan.moment * (1 - STARTING) / STARTING))
    ranks = ranks_of(process.pid)
    if process.poll() is not None or (plan.moment >= 0 and not ranks):
        process.wait(LONGEST_S)
        return None
    victim = process.pid if plan.victim is None or plan.victim >= len(ranks) else ranks[plan.victim]
    with suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    process.wait(LONGEST_S)
    wait_until(lambda: not any(map(alive, ranks)), f"the ranks are gone: {ranks}", 10)
    name = "the parent" if victim == process.pid else f"rank {plan.victim}"
    return f"{name}, {time.monotonic() - begun:.2f} s after its start"


def killed(plan: Plan, place: Path, reference: Reference) -> str:
    """Strike; earlier where the run was faster than the one that was measured."""
    share = 1.0
    while True:
        place.mkdir()
        process = strike(plan, place, reference, share)
        if process is not None:
            return process
        shutil.rmtree(place)
        share /= 2


def trial(plan: Plan, place: Path, reference: Reference) -> Trial:
    """Kill one run, go on with it to the end, compare."""
    process = killed(plan, place, reference)
    record = place / "runs" / "run" / METRICS_FILE
    reached = max((event["step"] for event in read_events(record)), default=0) if record.exists() else 0
    with start(place, plan.mode, plan.after) as again:
        code = again.wait(LONGEST_S)
    found = left(place) if code == 0 else {"code": str(code)}
    same = found == reference.left
    figures: dict[str, Any] = {"mode": plan.mode, "ranks": [plan.before, plan.after], "killed_after_step": reached}
    shown = {
        "row": "bitexact",
        "injector": f"kill -9 at {plan.moment:.0%} of the training" if plan.moment >= 0 else "kill -9 while it starts",
        "process": process,
    }
    if same:
        shutil.rmtree(place)
    return Trial(
        **shown,
        expected=short(reference.left),
        observed=short(found),
        ok=same,
        lines=[] if same else [f"kept: {place}", *trials.last_lines(told(place))],
        figures=figures,
    )


def short(left: dict[str, str]) -> dict[str, str]:
    return {name: value[:16] for name, value in left.items()}


def run(number: int, seed: int, place: Path, at_once: int) -> Iterator[Trial]:
    """The references, then all trials, some at a time. A run that differs is kept in `place`."""
    trainer = plans(number, seed)
    needed = {(plan.mode, plan.before if plan.mode == "fast" else 1) for plan in trainer}
    with ThreadPoolExecutor(at_once) as pool:
        names = {key: place / f"{key[0]}-{key[1]}" for key in sorted(needed)}
        references = dict(zip(names, pool.map(lambda key: uninterrupted(names[key], *key), names), strict=True))

        def one(plan: Plan) -> Trial:
            key = plan.mode, plan.before if plan.mode == "fast" else 1
            return trial(plan, place / f"trial-{plan.number}", references[key])

        yield from pool.map(one, trainer)


def main() -> int:
    """`make bitexact`."""
    number, seed = int(os.environ.get("N") or 200), int(os.environ.get("SEED") or 0)
    place = Path(tempfile.mkdtemp(prefix="bitexact-"))
    code = trials.run("bitexact", run(number, seed, place, int(os.environ.get("AT_ONCE") or 2)), n=number, seed=seed)
    if code == 0:
        shutil.rmtree(place)
    return code


if __name__ == "__main__":
    sys.exit(main())
