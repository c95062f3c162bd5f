"""Where a row of docs/evidence/failures.md is played: a real `train` in its own folder, struck, ended, and looked at.

Whatever the fault: nothing hangs (a time-out), no process is left (each carries a mark in its environment), and the
newest committed checkpoint is whole.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from processes import alive, unmeasured, wait_until
from runs import Run
from trials import Trial, last_lines

from entrypoint import Failure
from train.config.load import keep_last_overrides

MARK = "CHAOS_TRIAL"
HANG_S = 150.0  # a trial that takes longer hangs
GONE_S = 5.0  # after the command's end: for the processes it started
# Four steps an epoch, eight in all.
TINY = (
    *("run.name=run", "run.output_dir=runs", "data.samples=80", "data.image_size=8", "data.classes=2"),
    *("model.args.width=4", "optim.lr=0.01", "optim.schedule=constant", "train.epochs=2"),
    *("train.global_batch_size=16", "train.micro_batch_size=8", "log.tensorboard=false", "log.every_steps=1"),
    *("checkpoint.every_steps=2", "checkpoint.keep=3", "checkpoint.every_minutes=null", "eval.every_epochs=2"),
)
ENDLESS = tuple(keep_last_overrides([*TINY, "train.epochs=100000", "eval.every_epochs=100000"]))
HUNG = -1000
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended. code: HUNG where it had to be killed; left: the processes that outlived it."""

    code: int
    said: str
    seconds: float
    left: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class Started:
    """A command under way."""

    process: subprocess.Popen[bytes]
    folder: Path
    mark: str
    output: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def run(self) -> Run:
        """The folder of the run that TINY and ENDLESS name."""
        return Run(folder=self.folder / "runs" / "run")

    @property
    def said(self) -> str:
        """All that was printed so far."""
        return self.output.read_text(errors="replace")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait for something; an AssertionError with the output where the command ends first."""
        wait_until(lambda: holds() or self.process.poll() is not None, what, HANG_S)
        assert holds(), f"ended with {self.process.returncode} before {what}:\n{self.said[-3000:]}"

    def until_step(self, step: int) -> None:
        """Wait until the record holds this step."""
        self.until(lambda: max(self.run.logged(), default=0) >= step, f"step {step}")

    def until_saved(self, step: int = 1) -> None:
        """Wait until a checkpoint of this step or a later one is committed."""
        self.until(lambda: any(at >= step for at in saved_steps(self.run.folder)), f"a checkpoint of step {step}")

    def pids(self, words: str = "") -> list[int]:
        """The processes of this trial whose command line holds `words`."""
        return [pid for pid in marked(self.mark) if words in command_line(pid)]

    def rank(self, rank: int) -> int:
        """The process of one rank."""
        (found,) = [pid for pid in self.pids("train.worker") if _variable(pid, "RANK") == str(rank) and _leads(pid)]
        return found

    def send(self, signum: signal.Signals) -> None:
        """A signal to the command itself."""
        self.process.send_signal(signum)

    def ended(self, timeout_s: float = HANG_S) -> Ended:
        """Wait for the end; whatever is there after GONE_S is counted and killed."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = HUNG
        seconds = time.monotonic() - self.began
        deadline = time.monotonic() + GONE_S
        while code != HUNG and marked(self.mark) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = [f"{pid} {command_line(pid)}" for pid in marked(self.mark)]
        self.destroy()
        return Ended(code=code, said=self.said, seconds=seconds, left=left)

    def destroy(self) -> None:
        """Kill what is there."""
        for pid in marked(self.mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(10)


def start(folder: Path, *words: str, ranks: int = 1, before: Sequence[str] = (), **environ: str | None) -> Started:
    """`train --device cpu --procs-per-node RANKS WORDS` in `folder`, behind the command `before`. None unsets."""
    settings = [word for word in words or TINY if "=" in word and not word.startswith("-")]
    options = [word for word in words if word not in settings]
    place = ("--device", "cpu", "--procs-per-node", str(ranks))
    return command(folder, *before, *TRAIN, *place, *options, *keep_last_overrides(settings), **environ)


TRAIN = (sys.executable, "-m", "train")


def command(folder: Path, *words: str, output: int | None = None, **environ: str | None) -> Started:
    """Any command, marked."""
    mark = os.urandom(8).hex()
    variables = {**unmeasured(), "OMP_NUM_THREADS": "1", **environ, MARK: mark}
    said = folder / f"said-{mark}"
    with said.open("wb") as stream:
        process = subprocess.Popen(
            list(words),
            cwd=folder,
            env={name: value for name, value in variables.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=stream if output is None else output,
            stderr=stream if output is None else subprocess.DEVNULL,
        )
    return Started(process=process, folder=folder, mark=mark, output=said)


def train(folder: Path, *words: str, ranks: int = 1, before: Sequence[str] = (), **environ: str | None) -> Ended:
    """`start` to its end."""
    return start(folder, *words, ranks=ranks, before=before, **environ).ended()


def verdict(
    ended: Ended,
    code: int | Collection[int],
    *words: str,
    injector: str,
    process: str,
    folder: Path | None = None,
    kept: int = 0,
    also: Mapping[str, bool] | None = None,
) -> Trial:
    """Compare with what docs/evidence/failures.md says: exit code, words that the user must read, what holds always.

    kept: the newest committed checkpoint in `folder`'s run must be of this step or a later one.
    """
    codes = {code} if isinstance(code, int) else set(code)
    wrong = [] if ended.code in codes else [f"exit code {'none: it hung' if ended.code == HUNG else ended.code}"]
    wrong += [f"not said: {one}" for one in words if one not in ended.said]
    wrong += ["a traceback"] if "Traceback (most recent call last)" in ended.said else []
    wrong += [f"left behind: {one}" for one in ended.left]
    wrong += [f"not so: {what}" for what, holds in (also or {}).items() if not holds]
    wrong += _of_checkpoints(folder, kept) if folder else []
    return Trial(
        row="",
        injector=injector,
        process=process,
        expected=sorted(codes)[0] if len(codes) == 1 else sorted(codes),
        observed=ended.code,
        ok=not wrong,
        lines=[*last_lines(ended.said), *(f"WRONG: {one}" for one in wrong)],
        figures={"seconds": round(ended.seconds, 1)},
    )


def _of_checkpoints(folder: Path, kept: int) -> list[str]:
    try:
        step = Run(folder=folder / "runs" / "run").committed() or 0
    except Failure as failure:
        return [f"no checkpoint can be read: {failure.what}: {failure.found}"]
    return [] if step >= kept else [f"the newest checkpoint is of step {step}, not {kept}"]


def saved_steps(run: Path) -> list[int]:
    """The steps of the committed checkpoints, by their names."""
    with suppress(FileNotFoundError):
        names = [path.name for path in (run / "checkpoints").iterdir() if (path / "manifest.json").exists()]
        return sorted(int(name.removeprefix("step-")) for name in names if name.startswith("step-"))
    return []


@functools.cache
def _made(ranks: int) -> Path:
    place = Path(tempfile.mkdtemp(prefix="chaos-finished-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    ended = train(place, ranks=ranks)
    if ended.code:
        raise RuntimeError(f"a run without a fault ended with {ended.code}:\n{ended.said}")
    return place / "runs"


def finished(folder: Path, ranks: int = 1) -> Path:
    """Put a finished TINY run into `folder`, checkpoints of steps 4, 6 and 8; its checkpoints' folder.

    Made once in a process: more epochs go on from it.
    """
    with _ONE_AT_A_TIME:
        made = _made(ranks)
    shutil.copytree(made, folder / "runs")
    return folder / "runs" / "run" / "checkpoints"


def struck(started: Started, pid: int, *inject: str) -> subprocess.Popen[str]:
    """Attach strace to all threads of a process; returns it once it holds them."""
    words = ["strace", "-f", f"-p{pid}", "-o/dev/null", *inject]
    tracer = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=started.folder)
    assert tracer.stderr is not None
    if "attached" not in (said := tracer.stderr.readline()):
        raise RuntimeError(f"strace: {said}")
    return tracer


def released(tracer: subprocess.Popen[str]) -> None:
    """Let the traced processes go; returns at once where they have ended."""
    tracer.send_signal(signal.SIGINT)
    try:
        tracer.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        tracer.kill()
        tracer.communicate()


def marked(mark: str) -> list[int]:
    """The living processes that carry a mark."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError):
                if f"{MARK}={mark}".encode() in (path / "environ").read_bytes().split(b"\0") and alive(int(path.name)):
                    found.append(int(path.name))
    return found


def command_line(pid: int) -> str:
    """With spaces; empty for one that is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return ""


def saved(folder: Path) -> int:
    """The newest committed step of the run in a folder whose checkpoint is whole; 0 without one."""
    return Run(folder=folder / "runs" / "run").committed() or 0


def as_uninterrupted(folder: Path, ranks: int) -> bool:
    """Whether the run came to the weights of one without a fault, bit by bit."""
    with _ONE_AT_A_TIME:
        made = _made(ranks)
    found, wanted = (Run(folder=place).weights(8) for place in (folder / "runs" / "run", made / "run"))
    return found.keys() == wanted.keys() and all(np.array_equal(found[name], wanted[name]) for name in wanted)


def once(steps: Sequence[int]) -> bool:
    """Whether no step is missing in the record, and none there twice."""
    return list(steps) == list(range(1, len(steps) + 1))


def _variable(pid: int, name: str) -> str | None:
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            key, _, value = entry.decode(errors="replace").partition("=")
            if key == name:
                return value
    return None


def _leads(pid: int) -> bool:
    """A rank leads a session; its data workers do not."""
    with suppress(OSError):
        return os.getsid(pid) == pid
    return False
