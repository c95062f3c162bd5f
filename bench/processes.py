"""This module starts the programs that a benchmark times. Each runs a block of steps only on request.

So several programs can be alive at the same time and take turns.
"""

from __future__ import annotations

import argparse
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
from typing import Any, Final, Literal, TextIO, TypeVar

from entrypoint import (
    ExitCode,
    Failure,
    HangTimeouts,
    LaunchOptions,
    Plan,
    RunErrors,
    SupervisionPolicy,
    die_with_parent,
    num_usable_cores,
    run_plan,
)

T = TypeVar("T")
LOOPBACK: Final = "127.0.0.1"
LIMIT_S: Final = 600.0  # for a start with its warm-up, and for a block
GPU_LIMIT_S: Final = 150.0  # the same on a GPU: a program that hangs must leave time for the other rows of bench/gpu.sh
LOG_TAIL: Final = 2000  # characters of a log or an output that an error shows
ROOT: Final = Path(__file__).parents[1]  # the folder that holds this package
PEERS: Final = ROOT / "bench/peers"
# Ranks are started without PYTHONPATH, and a checkout need not be installed.
CALL_MAIN: Final = (
    "import importlib, os, sys; sys.path.insert(0, sys.argv[1]); "
    "sys.exit(importlib.import_module(sys.argv[2]).main(sys.argv[3:], os.environ))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """The command line of one benchmark.

    is_main: whether this task has world rank 0, which alone prints and writes results. pairs: None: as many as the
    row asks for. quick: the smallest sizes, which show that it works; the values mean nothing. compares: other
    programs are measured too; their scripts are in the folder `peers`. scratch: an empty folder that is removed
    afterwards. log: takes one line of progress. arguments: the benchmark's own arguments.
    """

    device: Literal["cpu", "cuda"]
    launch: LaunchOptions
    scratch: Path
    environ: Mapping[str, str]
    log: Callable[[str], None]
    is_main: bool = True
    pairs: int | None = None
    quick: bool = False
    config: str | None = None
    overrides: tuple[str, ...] = ()
    compares: bool = False
    peers: Path = PEERS
    arguments: argparse.Namespace = field(default_factory=argparse.Namespace)

    def num_pairs(self, default: int = 5) -> int:
        """`--pairs`, or 2 with --quick, or the row's own number."""
        return self.pairs or (2 if self.quick else default)

    def child_environ(self, **more: str) -> dict[str, str]:
        """The environment of a program that is timed. Coverage would be timed with it."""
        environ = {name: value for name, value in self.environ.items() if not name.startswith("COVERAGE_")}
        path = environ.get("PYTHONPATH")
        return environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)} | more


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command line that is started as `command --pace PORT:TOKEN`, on each of `ranks` ranks."""

    name: str
    command: Sequence[str]
    environ: Mapping[str, str]
    ranks: int = 1


@dataclass(slots=True, kw_only=True)
class RunningProgram:
    """A program that has warmed up and waits for requests. facts: its description of itself; steps: of each block."""

    program: Program
    facts: dict[str, Any]
    steps: int = 1
    _stream: TextIO = field(repr=False)
    _log: Path

    def step_seconds(self) -> float:
        """Run one block; returns the seconds of one step."""
        return self.step_and_cpu_seconds()[0]

    def step_and_cpu_seconds(self) -> tuple[float, float]:
        """Run one block; returns the seconds of one step by the clock and of processor time, which other programs
        on the machine do not lengthen."""
        block = self.request(steps=self.steps)
        return float(block["seconds"]) / self.steps, float(block["cpu"]) / self.steps

    def request(self, **request: Any) -> dict[str, Any]:
        """Let the program run `steps` steps, and return its answer. Raises Failure if the program has ended."""
        try:
            self._stream.write(json.dumps(request) + "\n")
            self._stream.flush()
            answer = self._stream.readline()
        except OSError as error:
            raise program_failure(self.program, self._log, str(error)) from error
        if not answer:
            raise program_failure(self.program, self._log, "it hung up")
        return dict(json.loads(answer))

    def steps_in(self, seconds: float) -> int:
        """How many steps take about so long, estimated from one block."""
        return max(1, round(seconds / self.step_seconds()))


def module_command(module: str, *words: str) -> list[str]:
    """The command line that calls `main(words, os.environ)` of a module of ours, whatever the current folder holds."""
    return [sys.executable, "-c", CALL_MAIN, str(ROOT), module, *words]


def run_ranks(plan: Plan, command: Sequence[str], environ: Mapping[str, str], *, logs: Path, limit_s: float) -> int:
    """Run a command on the plan's ranks of this task, each phase within the limit; returns the exit code."""
    limits = HangTimeouts(start=limit_s, step=limit_s, evaluation=limit_s, save=limit_s, data=limit_s)
    policy = SupervisionPolicy(limits=limits, errors=RunErrors(logs))
    return run_plan(plan, command, environ, log_dir=logs, foreign=False, policy=policy)


def parse_counts(text: str) -> list[int]:
    """Parse an argument such as `1,2,4` into ascending numbers. Raises ValueError for a number below 1."""
    counts = sorted({int(word) for word in text.split(",")})
    if counts[0] < 1:
        raise ValueError
    return counts


@contextmanager
def start_programs(options: BenchOptions, *programs: Program) -> Iterator[list[RunningProgram]]:
    """Start programs and warm them up, one after the other; kill them at the end.

    Raises:
        Failure: PEER for a program that ends, with the end of its log.
    """
    with ExitStack() as stack:
        yield [_start(options, program, stack) for program in programs]


def run_in_turns(sides: Sequence[Callable[[], T]], *, rounds: int, warm_up: int = 1) -> list[tuple[T, ...]]:
    """What each side returned, round by round. The first `warm_up` rounds do not count.

    Every second round goes back, so that drifts (clocks, heat, caches) affect all alike.
    """
    results: list[dict[int, T]] = []
    for number in range(warm_up + rounds):
        order = range(len(sides))
        results.append({side: sides[side]() for side in (reversed(order) if number % 2 else order)})
    return [tuple(in_round[side] for in_round in results[warm_up:]) for side in range(len(sides))]


def run_to_end(words: Sequence[str], environ: Mapping[str, str], cwd: Path, limit_s: float) -> str:
    """Run a program to its end and return its output; kill it with all its children if that takes too long.

    Raises:
        Failure: PEER, with the end of the output, if it fails or takes longer than the limit.
    """
    with subprocess.Popen(
        words,
        env=dict(environ),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit_s)
            reason = f"exit code {process.returncode}" if process.returncode else None
        except BaseException as error:
            with suppress(ProcessLookupError):  # its children would keep the pipe open
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output, reason = error.output or b"", f"not done in {limit_s:g} s"
    text = output.decode(errors="replace")
    if reason is not None:
        raise Failure(
            "a process that is measured has failed",
            found=f"{reason}\n{text[-LOG_TAIL:].strip()}",
            fix=f"run it alone: {' '.join(words)}",
            code=ExitCode.PEER,
        )
    return text


def run_for_json(words: Sequence[str], environ: Mapping[str, str], cwd: Path, limit_s: float) -> dict[str, Any]:
    """Run a script to its end and return the JSON object that it printed last."""
    lines = run_to_end(words, environ, cwd, limit_s).splitlines()
    last = next((line for line in reversed(lines) if line.startswith("{")), None)
    if last is None:
        raise Failure(
            "a process that is measured printed no JSON",
            found="\n".join(lines)[-LOG_TAIL:],
            fix=f"run it alone: {' '.join(words)}",
            code=ExitCode.PEER,
        )
    return dict(json.loads(last))


def program_failure(program: Program, log: Path, reason: str) -> Failure:
    """The failure of a program that ended."""
    with suppress(OSError):
        reason = f"{reason}\n{log.read_text(errors='replace')[-LOG_TAIL:].strip()}"
    return Failure(
        f"a process that is measured has ended: {program.name}",
        found=reason,
        fix=f"run it alone: {' '.join(program.command)}",
        code=ExitCode.PEER,
    )


def _start(options: BenchOptions, program: Program, stack: ExitStack) -> RunningProgram:
    options.log(f"  starts {program.name}")
    log, token = options.scratch / f"{program.name}-{secrets.token_hex(4)}.log", secrets.token_hex(16)
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(1.0)
        pace = ["--pace", f"{server.getsockname()[1]}:{token}"]
        program = _with_rendezvous(program)
        ranks = [stack.enter_context(_process(program, rank, log, pace)) for rank in range(program.ranks)]
        limit_s = _limit(options)
        try:
            stream, facts = _accept(server, token, limit_s, lambda: _refuse_ended_ranks(ranks, program, log))
        except TimeoutError as error:
            raise program_failure(program, log, f"no word in {limit_s:g} s") from error
    stack.callback(stream.close)
    return RunningProgram(program=program, facts=facts, _stream=stream, _log=log)


def _accept(
    server: socket.socket, token: str, limit_s: float, check: Callable[[], None]
) -> tuple[TextIO, dict[str, Any]]:
    """Wait for the process that knows the token. check: raises if it has ended. Raises TimeoutError."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        check()
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        with connection:
            connection.settimeout(limit_s)
            stream = connection.makefile("rw")  # holds the connection from now on
        facts = json.loads(stream.readline() or "{}")
        if secrets.compare_digest(str(facts.pop("token", "")), token):
            return stream, facts
        stream.close()
    raise TimeoutError


def _limit(options: BenchOptions) -> float:
    """A CPU compiles for minutes, and a user's own data may take long to open."""
    return LIMIT_S if options.device == "cpu" or options.config else GPU_LIMIT_S


def _refuse_ended_ranks(ranks: Sequence[subprocess.Popen[bytes]], program: Program, log: Path) -> None:
    codes = [rank.poll() for rank in ranks]
    if any(code is not None for code in codes):
        raise program_failure(program, log, f"exit codes {codes}")


def _with_rendezvous(program: Program) -> Program:
    """The program with torchrun's variables and a free port, if it has several ranks."""
    if program.ranks == 1:
        return program
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    size = {"WORLD_SIZE": str(program.ranks), "LOCAL_WORLD_SIZE": str(program.ranks)}
    threads = str(max(1, num_usable_cores() // program.ranks))
    environ = {"OMP_NUM_THREADS": threads} | dict(program.environ) | size
    return replace(program, environ=environ | {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port)})


@contextmanager
def _process(program: Program, rank: int, log: Path, pace: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """One process, killed at the end with all that it has started."""
    parent = os.getpid()
    rank_environ = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if program.ranks > 1 else {}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*program.command, *pace],
            env={**program.environ, **rank_environ},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(signal.SIGKILL, parent),
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
