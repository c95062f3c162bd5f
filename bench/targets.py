"""This module lists the rows of docs/evidence/performance.md, with the target of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bench import measurements
from bench.estimates import Estimate
from bench.measurements import Row, Target
from entrypoint import Failure

# Ratios are ours / the peer's.
TARGETS: Final[Mapping[str, Target]] = {
    "1": Target(what="reference workload, images/s: ours / the published recipe", limit=2.5, where="gpu"),
    "2": Target(what="images/s x 14.47 GFLOP / the device's matrix products", limit=0.50, where="gpu"),
    "3a": Target(what="images/s, 256 images per GPU: ours / a bare loop", limit=0.98),
    "3b": Target(what="images/s, 64 images per GPU: ours / a bare loop", limit=0.95),
    "4a": Target(what="extra time per step: ours - a bare loop", better="lower", limit=60.0, unit="µs", where="cpu"),
    "4b": Target(what="extra time per step: ours / stock Accelerate", better="lower", limit=0.25, where="cpu"),
    "5": Target(what="system calls with a path, per step", better="lower", limit=0.0, where="cpu"),
    "6": Target(what="pause between epochs / time of a step", better="lower", limit=1.0),
    "7": Target(what="input, images/s of one core: ours in memory / Pillow in workers", limit=4.0, where="cpu"),
    "8": Target(what="from command to first step: ours / accelerate launch", better="lower", limit=0.6, where="cpu"),
    "9": Target(what="time of entrypoint show", better="lower", limit=0.3, unit="s", where="cpu"),
    "9b": Target(what="time of entrypoint show / accelerate launch", better="lower", limit=0.05, where="cpu"),
    "10a": Target(what="first compiled step: with cache / without", better="lower", limit=0.15),
    "10b": Target(what="graphs compiled after the first step", better="lower", limit=0.0),
    "11a": Target(what="extra time for a checkpoint: ours / save_state", better="lower", limit=0.6),
    "11b": Target(what="the snapshot alone / save_state", better="lower", limit=0.2),
    "12": Target(what="size of the image", better="lower", limit=3.5, unit="GB"),
    "13": Target(what="DDP on 2 processes: ours / bare DDP", limit=0.97, where="cpu"),
    "14": Target(what="scaling"),
    # bench/input.py adds which images they were and what ran beside ours.
    "15": Target(what="JPEG files to 224 px, images/s of one core", limit=1.5, where="cpu"),
    "16": Target(what="tar shards to 224 px, images/s of one core", limit=1.0, where="cpu"),
    "16b": Target(what="tar shards to 224 px, images/s of two cores with two workers", limit=1.0, where="cpu"),
}


def measured(number: str, estimate: Estimate, **facts: Any) -> Row:
    """A row with its value."""
    return Row(number=number, target=TARGETS[number], estimate=estimate, facts=facts)


def unmeasured(number: str, reason: str, **facts: Any) -> Row:
    """A row that this machine cannot measure."""
    return Row(number=number, target=TARGETS[number], missing=reason, facts=facts)


def failed(number: str, failure: Failure) -> Row:
    """A row that this machine could have measured if a process had not failed."""
    return measurements.failed_row(number, failure, TARGETS[number])
