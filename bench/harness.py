"""This module runs ours and a peer in turns, and computes the ratio of their times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from bench.estimates import Estimate, estimate_median
from bench.processes import BenchOptions, Program, run_in_turns
from bench.training import LEARNING_RATE, LOG_EVERY, Workload
from train.config import environment


def peer_command(options: BenchOptions, name: str) -> list[str]:
    """The beginning of a command line: python PEERS/NAME.py."""
    return [sys.executable, str(options.peers / f"{name}.py")]


def peer_program(options: BenchOptions, name: str, *words: str, ranks: int = 1) -> Program:
    """A script of bench/peers, with the same OpenMP setting as our ranks: it is tuned to its best."""
    command = [*peer_command(options, name), "--device", options.device, *words]
    environ = {"GOMP_SPINCOUNT": environment.GOMP_SPINCOUNT} | options.child_environ()
    return Program(name=name, command=command, environ=environ, ranks=ranks)


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
    our_times, peer_times = run_in_turns((ours, peer), rounds=pairs, warm_up=warm_up)
    return Pairs(ours=our_times, peer=peer_times)
