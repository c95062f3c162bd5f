"""Rows of docs/evidence/failures.md about processes: killed, stopped, told to stop, silent."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from images import write_classes
from stage import (
    ENDLESS,
    HUNG,
    TINY,
    Ended,
    as_uninterrupted,
    finished,
    once,
    saved,
    start,
    struck,
    train,
    verdict,
)
from trials import Trial

from entrypoint import SIGNAL_REPEAT_WINDOW_S

Row = Callable[[int, Path], Trial]
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def killed(site: str) -> Row:
    """Rows 1 and 2: one of two ranks is killed; the same command goes on to the bits of a run without a fault."""

    def row(seed: int, folder: Path) -> Trial:
        # A save of step 4 begins only once that of step 2 is committed: from step 5 on, something is.
        rank, step = seed % 2, random.Random(seed).randrange(5, 8)
        fault = f"{site}:{rank}:{step}:kill9"
        ended = train(folder, ranks=2, FAULT=fault)
        before = saved(folder)
        also = {"something was saved before": before >= 2}
        if site == "fwd" or seed % 2 == 0:
            again = train(folder, ranks=2)
            also["the next start ends with the same bits"] = again.code == 0 and as_uninterrupted(folder, ranks=2)
        words = (f"rank {rank} of 2", "killed by SIGKILL")
        return verdict(
            ended, 69, *words, injector=f"FAULT={fault}", process=f"rank {rank}", folder=folder, kept=before, also=also
        )

    return row


def killed_while_saving(seed: int, folder: Path) -> Trial:
    """Row 3: at a write, fsync or rename of a checkpoint of a training under way."""
    call = ("fsync", "rename", "write")[seed % 3]
    finished(folder)
    started = start(folder, *ENDLESS)
    started.until_step(9 + seed)
    inject = f"-einject={call}:signal=KILL:when={1 + seed % 4 if call != 'rename' else 1 + seed % 2}"
    tracer = struck(started, started.rank(0), f"-etrace={call}", inject)
    ended = started.ended()
    tracer.communicate(timeout=20)
    again = train(folder, *TINY, f"train.max_steps={saved(folder) + 2}", "train.epochs=100000")
    swept = not list((folder / "runs/run/checkpoints").glob(".*"))
    also = {"the next start goes on": again.code == 0, "it sweeps what was left": swept}
    return verdict(
        ended, 69, "SIGKILL", injector=f"strace {inject}", process="rank 0", folder=folder, kept=8, also=also
    )


def told_to_stop(seed: int, folder: Path, *signals: signal.Signals, gap_s: float = 0.0) -> Trial:
    """Rows 4, 5 and 61: the step is finished, saved, and the same on all ranks."""
    started = start(folder, *ENDLESS, ranks=2 - seed % 2)
    started.until_step(2 + seed)
    for number, signum in enumerate(signals):
        time.sleep(gap_s if number else 0)
        started.send(signum)
    ended = started.ended()
    ending = started.run.ending
    also = {"exit.json says 75": ending is not None and ending.code == 75}
    also |= {"no step is lost": ending is not None and ending.step == started.run.committed()}
    also |= {"each step is once in the record": once(started.run.logged())}
    names = " ".join(signum.name for signum in signals)
    return verdict(ended, 75, injector=f"kill -s {names}", process="the parent", folder=folder, kept=1, also=also)


def grace_too_short(seed: int, folder: Path) -> Trial:
    """Row 7: killed while it saves after a signal; the checkpoint before stays."""
    finished(folder)
    started = start(folder, *ENDLESS, "checkpoint.every_steps=100000", FAULT="save:0:*:sleep")
    started.until_step(9 + seed)
    started.send(signal.SIGTERM)
    time.sleep(1 + seed / 5)
    started.send(signal.SIGKILL)
    return verdict(
        started.ended(), -9, injector="FAULT=save:0:*:sleep, TERM, KILL", process="the parent", folder=folder, kept=8
    )


def silent(action: str) -> Row:
    """Rows 9 and 10: a rank that does nothing is a hang, with everybody's stacks."""

    def row(seed: int, folder: Path) -> Trial:
        rank = seed % 2
        fault = f"{('fwd', 'bwd')[seed % 2]}:{rank}:{3 + seed % 3}:{action}"
        ended = train(folder, *TINY, "launch.timeouts.step=4", ranks=2, FAULT=fault)
        left = sorted(path.name for path in (folder / "runs/run/errors").glob("*"))
        also = {f"stacks in errors/ ({left})": any("stack" in name for name in left)}
        return verdict(
            ended,
            91,
            f"rank {rank} of 2",
            injector=f"FAULT={fault}",
            process=f"rank {rank}",
            folder=folder,
            kept=2,
            also=also,
        )

    return row


def stopped(seed: int, folder: Path) -> Trial:
    """Row 9 as well: kill -STOP at any time."""
    if seed % 2:
        return silent("sleep")(seed, folder)
    limits = ("launch.timeouts.step=4", "launch.timeouts.save=12")  # it may be stopped in a save, which is every second
    started = start(folder, *ENDLESS, *limits, ranks=2)
    started.until_step(3 + seed)
    os.kill(started.rank(1), signal.SIGSTOP)
    words = ("rank 1 of 2", "stopped")
    return verdict(started.ended(), 91, *words, injector="kill -STOP", process="rank 1", folder=folder, kept=2)


def asked_in_time(seed: int, folder: Path) -> Trial:
    """Row 6: a limit stops the run without a signal. 25 s of it are kept for saves of which none was measured yet."""
    limit_s = 40 + 5 * (seed % 3)
    started = start(folder, *ENDLESS, "--time-limit", f"0:{limit_s}")
    ended = started.ended()
    late = "no step was done" in ended.said  # a machine so busy that the start alone took longer
    also = {"before the limit": ended.seconds < limit_s or late}
    also["what was done is saved"] = saved(folder) == max(started.run.logged(), default=0)
    return verdict(ended, 75, injector=f"--time-limit 0:{limit_s}", process="none", folder=folder, also=also)


def interrupted(seed: int, folder: Path) -> Trial:
    """Row 60: Ctrl-C saves; a second one two seconds later ends at once."""
    if seed % 2:
        return told_to_stop(seed, folder, signal.SIGINT)
    finished(folder)
    started = start(folder, *ENDLESS, "checkpoint.every_steps=100000", FAULT="save:0:*:sleep")
    started.until_step(9)
    started.send(signal.SIGINT)
    note = folder / "runs/run/errors/stopping.json"
    started.until(note.exists, "the first is heard")  # or a busy machine takes both for one
    time.sleep(SIGNAL_REPEAT_WINDOW_S + 0.5)
    started.send(signal.SIGINT)
    return verdict(
        started.ended(30),
        130,
        injector="FAULT=save:0:*:sleep, kill -INT twice",
        process="the parent",
        folder=folder,
        kept=8,
    )


def told_while_starting(seed: int, folder: Path) -> Trial:
    """Row 62: at any time from the moment at which the command listens, up to its first steps."""
    signum, wait_s = SIGNALS[seed % 3], random.Random(seed).uniform(0, 4)
    started = start(folder, *ENDLESS, "checkpoint.every_steps=100000", ranks=2 - seed % 2)
    pid = started.process.pid
    used = [0.0]

    def listens() -> bool:
        used.append(_cpu_seconds(pid))
        return bool(_caught(pid) >> (signum - 1) & 1)

    started.until(listens, "it listens to signals")
    used_s = max(used[:-2])  # when it was last seen deaf: what it does until somebody looks again is not asked
    time.sleep(wait_s)
    started.send(signum)
    ended = started.ended(60)
    ready = saved(folder) == max(started.run.logged(), default=0)
    also = {"what was done is saved": ready, f"it listened soon ({used_s:.2f} s of its own)": used_s < LISTENS_S}
    injector = f"kill -s {signum.name} {wait_s:.2f} s after it listens"
    return verdict(ended, 75, injector=injector, process="the parent", folder=folder, also=also)


# Of CPU time: a loaded machine shall not decide. 0.1 s were wanted; it takes 0.15 s alone, Python itself 0.02 s.
LISTENS_S = 0.5


def _caught(pid: int) -> int:
    """The signals that a process has handlers for, as bits."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt"))


def _cpu_seconds(pid: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def orphaned(seed: int, folder: Path) -> Trial:
    """Row 63: the parent is killed; its ranks and their workers go with it."""
    started = start(folder, *ENDLESS, *(("data.loader=workers", "data.workers=1") if seed % 2 == 0 else ()), ranks=2)
    started.until_saved()
    started.send(signal.SIGKILL)
    return verdict(started.ended(), -9, injector="kill -9", process="the parent", folder=folder, kept=2)


def worker_killed(seed: int, folder: Path) -> Trial:
    """Row 64: a process that reads data."""
    write_classes(folder / "images", one=24, two=24)
    started = start(folder, *ENDLESS, *FOLDER, "data.loader=workers", "data.workers=2")
    started.until_step(1 + seed)
    rank = started.rank(0)
    readers = [pid for pid in started.pids("train.worker") if pid != rank and _parent(pid) == rank]
    if not readers:
        return verdict(
            Ended(code=HUNG, said="no data worker found", seconds=0), 71, injector="kill -9", process="a data worker"
        )
    os.kill(random.Random(seed).choice(readers), signal.SIGKILL)
    return verdict(started.ended(), 71, "worker", injector="kill -9", process="a data worker", folder=folder)


FOLDER = ("data.name=folder", "data.root=images", "data.classes=2", "data.samples=10000", "data.val_fraction=0.25")


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


ROWS: Mapping[int, Row] = {
    1: killed("fwd"),
    2: killed("bwd"),
    3: killed_while_saving,
    4: lambda seed, folder: told_to_stop(seed, folder, signal.SIGTERM),
    5: lambda seed, folder: told_to_stop(seed, folder, SIGNALS[1 + seed % 2]),
    6: asked_in_time,
    7: grace_too_short,
    9: stopped,
    10: silent("hang"),
    60: interrupted,
    61: lambda seed, folder: told_to_stop(seed, folder, signal.SIGTERM, signal.SIGTERM, gap_s=0.01),
    62: told_while_starting,
    63: orphaned,
    64: worker_killed,
}
