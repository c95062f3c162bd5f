"""Machines and environments to plan for. GPUs here are names only: the planner never asks for more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from captures import read_captures

from entrypoint.machine import Machine

REPOSITORY = Path(__file__).parents[2]


def machine(**changes: Any) -> Machine:
    """A node of 8 cores, all of them given, without GPUs, changed as asked."""
    gpus: dict[str, Any] = {"gpus": (), "idle": (), "machine_cores": changes.get("cores", 8)}
    gpus |= {"core_ids": frozenset(range(changes.get("cores", 8))), "gpu_cores": ()}
    gpus |= {"amd": "", "amd_accelerators": False}
    rest: dict[str, Any] = {"container": "none", "hidden_job": {}, "host_files": {}}
    return Machine(**({"hostname": "node01", "cores": 8, **gpus, **rest} | changes))


def fake_gpus(count: int) -> tuple[str, ...]:
    """UUIDs for GPUs that this machine does not have."""
    return tuple(f"GPU-fake-{index}" for index in range(count))


def captured(situation: str, version: str = "slurm-26.05") -> dict[str, str]:
    """One captured environment, such as `per-gpu/task-0@node01`."""
    return dict(read_captures()[f"{version}/{situation}"])
