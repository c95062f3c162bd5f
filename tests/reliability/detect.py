"""How soon a death and a hang are named on the console, and whether any process is left, on 2 and 4 real ranks.

detect.py         all trials
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import trials
from processes import alive, free_port, unmeasured, wait_until
from runs import Run
from trials import Trial

from entrypoint import stacks

DEATH_S, HANG_S, ORPHAN_S = 2.0, 30.0, 5.0  # what is promised
LIMIT_S = 3.0  # launch.timeouts.step of those that hang
START_S = 180.0
SETTINGS = (
    *("run.name=run", "run.output_dir=runs", "data.samples=960", "data.image_size=16", "model.args.width=4"),
    *("train.epochs=100000", "eval.every_epochs=100000", "train.global_batch_size=48", "train.micro_batch_size=4"),
    *("optim.schedule=constant", "log.tensorboard=false", "log.every_steps=1", "checkpoint.every_minutes=null"),
)


@dataclass(slots=True, kw_only=True)
class Training:
    """A training under way. lines: what the console of rank 0's task says, with the time of each line."""

    process: subprocess.Popen[str]
    run: Run
    other: subprocess.Popen[str] | None = None
    """The task of rank 1, where two tasks start one rank each."""
    lines: list[tuple[float, str]] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    steps: set[float] = field(default_factory=set)
    """When the record grew."""

    def listen(self) -> None:
        """In a thread: note the lines as they come."""
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.lines.append((time.monotonic(), line.rstrip()))

    def note_steps(self) -> None:
        """In a thread, until the end: note when the record grows."""
        while self.process.poll() is None:
            grown = time.time() - (self.run.folder / "metrics.jsonl").stat().st_mtime
            self.steps.add(round(time.monotonic() - grown, 2))
            time.sleep(0.05)

    @property
    def parents(self) -> list[int]:
        """The tasks."""
        return [self.process.pid, *([self.other.pid] if self.other else [])]

    def train_until(self, step: int) -> None:
        """Wait until that step is done."""
        wait_until(lambda: max(self.run.logged(), default=0) >= step, f"step {step} is done", START_S)
        self.known = {pid for parent in self.parents for pid in (parent, *stacks.descendant_pids(parent))}

    def rank(self, number: int) -> int:
        """The pid of a rank."""
        ranks = [pid for parent in self.parents for pid in _children(parent)]
        return next(pid for pid in ranks if _variable(pid, "RANK") == str(number))

    def data_worker(self, number: int) -> int:
        """The pid of a process that reads images for a rank."""
        return next(pid for pid in stacks.descendant_pids(self.rank(number)) if _is_fork(pid))

    def said(self, words: str) -> tuple[float, str] | None:
        """When a line with these words came."""
        return next(((at, line) for at, line in list(self.lines) if words in line), None)

    def wait_for(self, words: str, seconds: float) -> tuple[float, str] | None:
        """The same, once it has come or the time is over."""
        deadline = time.monotonic() + seconds
        while self.said(words) is None and time.monotonic() < deadline and self.process.poll() is None:
            time.sleep(0.01)
        time.sleep(0.1)
        return self.said(words)

    def ended(self) -> tuple[int, float]:
        """The exit code of rank 0's task, and when all tasks had ended."""
        code = self.process.wait(60)
        if self.other is not None:
            self.other.wait(60)
        return code, time.monotonic()

    def left(self, since: float) -> list[int]:
        """The processes that are still there, once the time for their end is over."""
        while (there := [pid for pid in self.known if alive(pid)]) and time.monotonic() < since + ORPHAN_S:
            time.sleep(0.05)
        return there

    def last_lines(self) -> list[str]:
        """What the user read last."""
        return [line for _, line in self.lines][-trials.LAST :]


class Stage:
    """A training of some ranks in a folder of its own; nothing of it is left afterwards.

    apart: each of two ranks in a task of its own, as under srun.
    """

    def __init__(self, ranks: int, *settings: str, fault: str = "", apart: bool = False) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="detect-", ignore_cleanup_errors=True)
        self.settings, self.fault = settings, fault
        place, port = ("--nodes", "2", "--master-addr", "127.0.0.1", "--node-rank"), free_port() if apart else 0
        one_task = ("--procs-per-node", str(ranks))
        process = self._start(*((*place, "0", "--master-port", str(port)) if apart else one_task))
        other = self._start(*place, "1", "--master-port", str(port), silent=True) if apart else None
        self.training = Training(process=process, other=other, run=Run(folder=Path(self.folder.name, "runs", "run")))
        self.listener = threading.Thread(target=self.training.listen, daemon=True)
        self.listener.start()

    def _start(self, *place: str, silent: bool = False) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "train", "--device", "cpu", *place, *SETTINGS, *self.settings],
            cwd=self.folder.name,
            env={**unmeasured(), "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1", "FAULT": self.fault},
            stdout=subprocess.DEVNULL if silent else subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self) -> Training:
        return self.training

    def __exit__(self, *_: object) -> None:
        parents = self.training.parents
        for pid in {
            *parents,
            *self.training.known,
            *(pid for parent in parents for pid in stacks.descendant_pids(parent)),
        }:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)
        for process in (self.training.process, self.training.other):
            if process is not None:
                process.wait(60)
        self.listener.join(10)
        self.folder.cleanup()


def death(ranks: int, victim: int, *, apart: bool = False) -> Trial:
    """kill -9 of a rank: named with its signal, and nobody stays."""
    with Stage(ranks, apart=apart) as training:
        training.train_until(5)
        pid, struck = training.rank(victim), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        said = training.wait_for("was killed by SIGKILL", 30)
        code, ended = training.ended()
        left = training.left(ended)
        named = said is not None and f"rank {victim} of {ranks} " in said[1] and f"pid {pid})" in said[1]
        named_ms = round(1000 * (said[0] - struck)) if said else None
        cause = training.run.ending.cause if training.run.ending else ""
    ok = code == 69 and named and (named_ms or 0) <= 1000 * DEATH_S and not left and f"rank {victim} " in cause
    figures = {"ranks": ranks, "named_ms": named_ms, "orphans": len(left)}
    whose = " of another task" if apart else ""
    return _trial("1", "kill -9", f"rank {victim}{whose}", 69, code, ok, training, figures)


def hang(ranks: int, victim: int, how: str, *, apart: bool = False) -> Trial:
    """A rank that is stopped (from outside), holds the interpreter's lock, or sleeps in its data loader."""
    fault = "" if how == "stop" else f"{'data' if how == 'sleep' else 'bwd'}:{victim}:8:{how}"
    with Stage(ranks, f"launch.timeouts.step={LIMIT_S:g}", fault=fault, apart=apart) as training:
        training.train_until(8)
        if how == "stop":
            os.kill(training.rank(victim), signal.SIGSTOP)
        steps = threading.Thread(target=training.note_steps, daemon=True)
        steps.start()
        said = training.wait_for("ERROR[91]", 60 + LIMIT_S)
        code, ended = training.ended()
        left, errors = training.left(ended), training.run.folder / "errors"
        named = said is not None and f"ERROR[91] rank {victim} of {ranks} " in said[1]
        dumps = [(errors / f"stacks-rank-{rank:04d}.txt") for rank in range(ranks)]
        whole = all(path.exists() and _has_stack(path, stopped=how == "stop") for path in dumps)
        steps.join(10)
        # The last step before it: asked for its stacks, a rank that sleeps in C wakes up and takes one more.
        last = max((at for at in training.steps if said and at < said[0] - 1), default=0.0)
        detected_s = round(said[0] - last - LIMIT_S, 2) if said else None
        code_on_disk = training.run.ending.code if training.run.ending else None
    ok = code == code_on_disk == 91 and named and whole and (detected_s or 0) <= HANG_S and not left
    figures = {"ranks": ranks, "after_limit_s": detected_s, "orphans": len(left), "stacks": whole}
    injector = {"stop": "kill -STOP", "hang": "FAULT bwd:hang", "sleep": "FAULT data:sleep"}[how]
    whose = " of another task" if apart else ""
    return _trial("10" if how == "hang" else "9", injector, f"rank {victim}{whose}", 91, code, ok, training, figures)


def orphans(victim: str) -> Trial:
    """kill -9 of any one process of a training with data workers: all others go."""
    with Stage(2, "data.loader=workers", "data.workers=1") as training:
        training.train_until(5)
        pids = {"parent": training.process.pid, "rank 0": training.rank(0), "rank 1": training.rank(1)}
        os.kill(training.data_worker(1) if victim == "a data worker" else pids[victim], signal.SIGKILL)
        struck = time.monotonic()
        ended = struck if victim == "parent" else None
        code = training.process.wait(60)
        left = training.left(ended or time.monotonic())
    expected = {"parent": -9, "a data worker": 71}.get(victim, 69)
    figures = {"ranks": 2, "orphans": len(left), "processes": len(training.known)}
    return _trial("63", "kill -9", victim, expected, code, code == expected and not left, training, figures)


def every() -> Iterator[Trial]:
    """All trials of `make detect`."""
    for ranks in (2, 4):
        yield from (death(ranks, victim) for victim in range(ranks))
        for how in ("stop", "hang", "sleep"):
            yield from (hang(ranks, victim, how) for victim in (0, ranks - 1))
    yield death(2, 1, apart=True)
    yield hang(2, 1, "stop", apart=True)
    yield from (orphans(victim) for victim in ("parent", "rank 0", "rank 1", "a data worker"))


class Worst:
    """The largest figure of each kind, while the trials pass by."""

    def __init__(self, all_trials: Iterator[Trial]) -> None:
        self._trials, self._seen = all_trials, dict[str, Any]()

    def __iter__(self) -> Iterator[Trial]:
        for trial in self._trials:
            for name in ("named_ms", "after_limit_s", "orphans"):
                if (value := trial.figures.get(name)) is not None:
                    self._seen[name] = max(value, self._seen.get(name, value))
            yield trial

    def facts(self) -> dict[str, Any]:
        """For the summary."""
        return {f"worst_{name}": value for name, value in self._seen.items()}


def _trial(
    row: str,
    injector: str,
    process: str,
    expected: int,
    observed: int,
    ok: bool,
    training: Training,
    figures: dict[str, Any],
) -> Trial:
    lines: Sequence[str] = training.last_lines()
    return Trial(
        row=row,
        injector=injector,
        process=process,
        expected=expected,
        observed=observed,
        ok=ok,
        lines=list(lines),
        figures=figures,
    )


def _has_stack(path: Path, *, stopped: bool) -> bool:
    text = path.read_text()
    return 'File "' in text or (stopped and "State:\tT (stopped)" in text)


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _variable(pid: int, name: str) -> str | None:
    found = re.search(rf"(?:^|\0){name}=([^\0]*)", Path(f"/proc/{pid}/environ").read_text())
    return found[1] if found else None


def _is_fork(pid: int) -> bool:
    """Whether it runs the program of a rank: a data worker, and no helper of multiprocessing's."""
    return b"train.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def main() -> int:
    """`make detect`."""
    worst = Worst(every())
    return trials.run("detect", worst, at_the_end=worst.facts, limit_s=LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
