"""This module runs ours and a peer in turns, and computes the ratio of their times."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.bench import training
from train.bench.estimates import Estimate, estimate_median
from train.bench.processes import BenchOptions, Program
from train.bench.training import LEARNING_RATE, LOG_EVERY, Workload
from train.config import environment

ROOT: Final = Path(__file__).parents[1]
PEERS: Final = ROOT / "bench/peers"
OUTPUT_TAIL: Final = 2000  # characters of an output that an error shows


def add_peers_argument(parser: argparse.ArgumentParser) -> None:
    """Add --peers DIR, for scripts that somebody has tuned."""
    parser.add_argument(
        "--peers", metavar="DIR", type=_peers_folder, help="the scripts to compare with (default: bench/peers)"
    )


def _peers_folder(text: str) -> Path:
    """Raises Failure: NO_INPUT, if the folder does not exist."""
    folder = Path(text).absolute()
    if not folder.is_dir():
        raise Failure(
            "the scripts to be compared with are not there",
            found=f"no folder {text}",
            fix="give their folder: python -m bench NAME --peers DIR (default: bench/peers)",
            code=ExitCode.NO_INPUT,
        )
    return folder


def peer_command(options: BenchOptions, name: str) -> list[str]:
    """The beginning of a command line: python PEERS/NAME.py."""
    return [sys.executable, str(_peers(options) / f"{name}.py")]


def peer_program(options: BenchOptions, name: str, *words: str, ranks: int = 1) -> Program:
    """A script of bench/peers, with the same OpenMP setting as our ranks: it is tuned to its best."""
    command = [*peer_command(options, name), "--device", options.device, *words]
    environ = {"GOMP_SPINCOUNT": environment.GOMP_SPINCOUNT} | options.child_environ()
    return Program(name=name, command=command, environ=environ, ranks=ranks)


def our_program(options: BenchOptions, name: str, *settings: str, procs: int = 1) -> Program:
    """Our training on `procs` ranks, which may use the model `workload:tiny` of bench/peers."""
    return training.training_program(options, name, *settings, procs=procs, module_folder=_peers(options))


def _peers(options: BenchOptions) -> Path:
    return getattr(options.arguments, "peers", None) or PEERS


def peer_arguments(workload: Workload) -> list[str]:
    """The arguments that every peer takes."""
    values = {
        "--model": workload.model,
        "--width": workload.width,
        "--size": workload.size,
        "--classes": workload.classes,
        "--samples": workload.samples,
        "--batch": workload.batch,
        "--lr": LEARNING_RATE,
        "--log-every": LOG_EVERY,
    }
    return [word for name, value in values.items() for word in (name, str(value))]


def bare_arguments(workload: Workload) -> list[str]:
    """The arguments of the bare loop; the other peers do not know --augment and --compile."""
    return [
        *peer_arguments(workload),
        *(["--precision", workload.precision]),
        *(["--augment"] if workload.augment else []),
        *(["--compile", workload.compile] if workload.compile else []),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """The seconds of each side, pair by pair."""

    ours: tuple[float, ...]
    peer: tuple[float, ...]

    def __add__(self, other: Pairs) -> Pairs:
        """These pairs, and those of another start."""
        return Pairs(ours=self.ours + other.ours, peer=self.peer + other.peer)

    def speed_ratio(self) -> Estimate:
        """Our speed / the peer's."""
        return estimate_median([peer / ours for ours, peer in zip(self.ours, self.peer, strict=True)])

    def time_ratio(self) -> Estimate:
        """Our time / the peer's."""
        return estimate_median([ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)])

    def difference(self, scale: float = 1.0) -> Estimate:
        """Our time minus the peer's, times `scale` (1e6: microseconds)."""
        return estimate_median([(ours - peer) * scale for ours, peer in zip(self.ours, self.peer, strict=True)])


def time_in_turns(ours: Callable[[], float], peer: Callable[[], float], *, pairs: int, warm_up: int = 1) -> Pairs:
    """Call both in turns; each returns its time. The first `warm_up` pairs do not count.

    Every second pair begins with the peer, so that drifts (clocks, heat, caches) affect both alike.
    """
    our_times, peer_times = time_all_in_turns((ours, peer), rounds=pairs, warm_up=warm_up)
    return Pairs(ours=our_times, peer=peer_times)


def time_all_in_turns(
    sides: Sequence[Callable[[], float]], *, rounds: int, warm_up: int = 1
) -> list[tuple[float, ...]]:
    """The times of each side, round by round. The first `warm_up` rounds do not count; every second round goes back."""
    times: list[dict[int, float]] = []
    for number in range(warm_up + rounds):
        order = range(len(sides))
        times.append({side: sides[side]() for side in (reversed(order) if number % 2 else order)})
    return [tuple(in_round[side] for in_round in times[warm_up:]) for side in range(len(sides))]


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
            found=f"{reason}\n{text[-OUTPUT_TAIL:].strip()}",
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
            found="\n".join(lines)[-OUTPUT_TAIL:],
            fix=f"run it alone: {' '.join(words)}",
            code=ExitCode.PEER,
        )
    return dict(json.loads(last))
