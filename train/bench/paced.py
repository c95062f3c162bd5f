"""Sides of a comparison, alive at the same time, each of which does a block of steps only when it is told to."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TextIO

from entrypoint import ExitCode, Failure, die_with_parent, num_usable_cores
from train.bench.options import Options
from train.config import environment, load

LOOPBACK: Final = "127.0.0.1"
LONGEST_S: Final = 600.0  # of a start with its warm-up, and of a block
ON_GPU_S: Final = 150.0  # the same on a GPU: one that hangs must leave time for the other rows of bench/gpu.sh
TAIL: Final = 2000  # characters of a log that are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is started: `command --pace PORT:TOKEN`. ranks: so many times, with torchrun's variables."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    ranks: int = 1


@dataclass(slots=True, kw_only=True)
class Paced:
    """One that has warmed up and waits. facts: what it said of itself; steps: of each block."""

    side: Side
    facts: dict[str, Any]
    steps: int = 1
    _talk: TextIO = field(repr=False)
    _log: Path

    def block(self) -> float:
        """Seconds of a step, over one block."""
        return self.both()[0]

    def both(self) -> tuple[float, float]:
        """Of a step, over one block: seconds by the clock, and of processors, which neighbours do not lengthen."""
        told = self.ask(steps=self.steps)
        return float(told["seconds"]) / self.steps, float(told["cpu"]) / self.steps

    def ask(self, **wanted: Any) -> dict[str, Any]:
        """Let it do `steps`, and return what it tells. Raises Failure where it ended instead."""
        try:
            self._talk.write(json.dumps(wanted) + "\n")
            self._talk.flush()
            told = self._talk.readline()
        except OSError as error:
            raise ended(self.side, self._log, str(error)) from error
        if not told:
            raise ended(self.side, self._log, "it hung up")
        return dict(json.loads(told))

    def fit_to(self, seconds: float) -> int:
        """How many steps take about so long, by one block of now."""
        return max(1, round(seconds / self.block()))


def ours(
    options: Options, name: str, *settings: str, procs: int = 1, warm_up: int = 10, config: str | None = None
) -> Side:
    """Our own training, on `procs` ranks of this machine."""
    folder = options.scratch / name
    command = [sys.executable, "-m", "train.bench", "--logs", str(folder / "logs")]
    command += ["--device", options.device, "--procs-per-node", str(procs), "--", "--warm-up", str(warm_up)]
    command += ["--beside", str(options.peers)] if options.peers else []
    command += ["--config", config] if config else []
    words = load.keep_last_overrides([*settings, f"run.output_dir={options.scratch}", f"run.name={name}"])
    return Side(name=name, command=[*command, *words], environ=options.variables())


def peer(options: Options, name: str, *words: str, ranks: int = 1) -> Side:
    """A script of the peers."""
    command = [*options.peer(name), "--device", options.device, *words]
    environ = {
        "GOMP_SPINCOUNT": environment.GOMP_SPINCOUNT
    } | options.variables()  # as our own ranks: tuned to its best
    return Side(name=name, command=command, environ=environ, ranks=ranks)


@contextmanager
def started(options: Options, *sides: Side) -> Iterator[list[Paced]]:
    """All of them, warmed up one after the other; killed at the end.

    Raises:
        Failure: PEER for one that ends, with the end of its log.
    """
    with ExitStack() as stack:
        yield [_start(options, side, stack) for side in sides]


def one_json(side: Side, scratch: Path, timeout_s: float = LONGEST_S) -> dict[str, Any]:
    """What a script that runs alone prints: the last line of its output. Raises Failure as above."""
    log = scratch / f"{side.name}-{secrets.token_hex(4)}.log"
    with ExitStack() as stack:
        others = [stack.enter_context(_running(side, rank, log, [])) for rank in range(1, side.ranks)]
        del others
        first = stack.enter_context(_running(side, 0, log, [], piped=True))
        try:
            said, _ = first.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ended(side, log, f"not done in {timeout_s:g} s") from error
        lines = said.decode().strip().splitlines()
        if first.returncode or not lines:
            raise ended(side, log, f"exit code {first.returncode}")
        return dict(json.loads(lines[-1]))


def ended(side: Side, log: Path, why: str) -> Failure:
    """One side of a comparison is gone."""
    with suppress(OSError):
        why = f"{why}\n{log.read_text(errors='replace')[-TAIL:].strip()}"
    return Failure(
        f"a process that is measured has ended: {side.name}",
        found=why,
        fix=f"run it alone: {' '.join(side.command)}",
        code=ExitCode.PEER,
    )


def _start(options: Options, side: Side, stack: ExitStack) -> Paced:
    options.tell(f"  starts {side.name}")
    log, token = options.scratch / f"{side.name}-{secrets.token_hex(4)}.log", secrets.token_hex(16)
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(1.0)
        pace = ["--pace", f"{server.getsockname()[1]}:{token}"]
        side = _with_group(side)
        ranks = [stack.enter_context(_running(side, rank, log, pace)) for rank in range(side.ranks)]
        limit_s = _limit(options)
        try:
            talk, facts = _first_words(server, token, limit_s, lambda: _gone(ranks, side, log))
        except TimeoutError as error:
            raise ended(side, log, f"no word in {limit_s:g} s") from error
    stack.callback(talk.close)
    return Paced(side=side, facts=facts, _talk=talk, _log=log)


def _first_words(
    server: socket.socket, token: str, limit_s: float, look: Callable[[], None]
) -> tuple[TextIO, dict[str, Any]]:
    """Wait for the one that knows the token. look: raises where it has ended. Raises TimeoutError."""
    over = time.monotonic() + limit_s
    while time.monotonic() < over:
        look()
        try:
            line, _ = server.accept()
        except TimeoutError:
            continue
        with line:
            line.settimeout(limit_s)
            talk = line.makefile("rw")  # holds the connection from now on
        told = json.loads(talk.readline() or "{}")
        if secrets.compare_digest(str(told.pop("token", "")), token):
            return talk, told
        talk.close()
    raise TimeoutError


def _limit(options: Options) -> float:
    """A CPU compiles for minutes, and a user's own data may take long to open."""
    return LONGEST_S if options.device == "cpu" or options.config else ON_GPU_S


def _gone(ranks: Sequence[subprocess.Popen[bytes]], side: Side, log: Path) -> None:
    codes = [rank.poll() for rank in ranks]
    if any(code is not None for code in codes):
        raise ended(side, log, f"exit codes {codes}")


def _with_group(side: Side) -> Side:
    """Where several are to meet, on a port that is free now."""
    if side.ranks == 1:
        return side
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    meeting = {"WORLD_SIZE": str(side.ranks), "LOCAL_WORLD_SIZE": str(side.ranks), "MASTER_ADDR": LOOPBACK}
    threads = str(max(1, num_usable_cores() // side.ranks))
    shared = {"OMP_NUM_THREADS": threads} | dict(side.environ) | meeting | {"MASTER_PORT": str(port)}
    return replace(side, environ=shared)


@contextmanager
def _running(
    side: Side, rank: int, log: Path, pace: Sequence[str], *, piped: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """One process, killed at the end with all that it has started."""
    parent = os.getpid()
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if side.ranks > 1 else {}
    with log.open("ab") as told:
        process = subprocess.Popen(
            [*side.command, *pace],
            env={**side.environ, **place},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if piped else told,
            stderr=told,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent),
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
