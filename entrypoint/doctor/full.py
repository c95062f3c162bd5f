"""The full check starts all ranks once for an all-reduce, and reports transport and speed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from entrypoint.doctor import fabric, reading
from entrypoint.doctor.context import CheckContext, Finding, fail, ok, warn
from entrypoint.errors import ExitCode
from entrypoint.machine import read_machine
from entrypoint.plan import Plan

ALL_RANKS_TIMEOUT_S = 60.0  # for the ranks, from torch's first byte to the last sum
PAIR_TIMEOUT_S = 30.0
_GRACE_S = 15.0  # what the parent needs besides
_FINDING_NAME = "all-reduce"
_RUN_BY_HAND_FIX = "start it by hand to see all of it: entrypoint run -- python -P -m train.distributed.allreduce_check"
_TRANSPORT_FIX = "see the finding `fabric`, and launch/fabric for the settings of each network"
_HANG_FIX = "NCCL_P2P_DISABLE=1 takes another way; for good: switch off IOMMU or ACS in the BIOS"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """How a start of all ranks ended. code: None where it had to be ended. result: what rank 0 left, if it is here."""

    code: int | None
    text: str
    result: Mapping[str, Any] | None = None
    ways: tuple[str, ...] = ()

    @property
    def hung(self) -> bool:
        """Whether time ran out."""
        return self.code in (None, ExitCode.HANG)


LaunchFunction = Callable[[Sequence[str], Mapping[str, str], float], LaunchResult]


def check_allreduce(scene: CheckContext, words: Sequence[str], launch: LaunchFunction | None = None) -> list[Finding]:
    """Start `train.distributed.allreduce_check` once per rank, as `entrypoint run` with these launch arguments does.

    Pairs of GPUs are tried where all together hang. launch: starts and waits (tests have their own).
    """
    if scene.plan is None:
        return []  # it would be refused, which is told already
    launch = launch or launch_allreduce
    ended = launch(words, scene.environ, ALL_RANKS_TIMEOUT_S)
    found = [*allreduce_findings(ended, scene.plan), *_transport_findings(ended, scene)]
    alone = scene.plan.spawn == scene.plan.world.world_size
    if ended.hung and scene.plan.device == "cuda" and alone and scene.plan.spawn > 2:
        found.append(check_gpu_pairs(read_machine(scene.environ).gpus[: scene.plan.spawn], scene.environ, launch))
    return found


def launch_allreduce(words: Sequence[str], environ: Mapping[str, str], limit_s: float) -> LaunchResult:
    """Start all ranks of this task, and wait for their end."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        result, python = Path(folder, "result.json"), [sys.executable, "-I", "-m"]
        smoke = [*python, "train.distributed.allreduce_check", "--result", str(result), "--timeout", f"{limit_s:g}"]
        command = [*python, "entrypoint", "run", "--logs", f"{folder}/logs", *words, "--", *smoke]
        code, console = _run_with_timeout(
            command, {**environ, **_nccl_debug_variables(folder, environ)}, limit_s + _GRACE_S
        )
        logs = [reading.read_text(file) for file in sorted(Path(folder, "logs").glob("*.log"))]
        nccl = [reading.read_text(file) for file in Path(folder).glob("nccl.*")]
        left = json.loads(result.read_text()) if result.exists() else None
        return LaunchResult(code=code, text="\n".join([*logs, console]), result=left, ways=nccl_transports(nccl))


def allreduce_findings(ended: LaunchResult, plan: Plan) -> list[Finding]:
    """How it ended, in words."""
    what, fix = parse_error_block(ended)
    if ended.hung:
        hung = _HANG_FIX if plan.device == "cuda" else _RUN_BY_HAND_FIX
        return [fail(_FINDING_NAME, what or "the ranks were not done in time", hung)]
    if ended.code:
        return [
            fail(
                _FINDING_NAME,
                what or f"the ranks ended with {ended.code}: {_last_line(ended.text)}",
                fix or _RUN_BY_HAND_FIX,
            )
        ]
    if ended.result is None:
        return [ok(_FINDING_NAME, "the ranks of this task have exchanged numbers; the task of rank 0 tells how fast")]
    return [ok(_FINDING_NAME, _describe_speed(ended.result, ended.ways))]


def parse_error_block(ended: LaunchResult) -> tuple[str, str]:
    """What the rank that decided the exit code says is wrong, and its fix; empty where it says nothing."""
    block = re.search(rf"^ERROR\[{ended.code}\] (.*)((?:\n  .*)*)", ended.text, re.M)
    if block is None:
        return "", ""
    facts = dict(re.findall(r"^  (found|fix): (.*)", block[2], re.M))
    return block[1] + (f" ({facts['found']})" if "found" in facts else ""), facts.get("fix", "")


def nccl_transports(logs: Iterable[str]) -> tuple[str, ...]:
    """The ways that NCCL's logs name: P2P/CUMEM, SHM/direct, NET/IB/0, NET/Socket/1, ..."""
    return tuple(sorted({way for log in logs for way in re.findall(r"\bvia ([A-Z0-9]+(?:/\w+)?)", log)}))


def check_gpu_pairs(uuids: Sequence[str], environ: Mapping[str, str], launch: LaunchFunction) -> Finding:
    """Which two GPUs exchange and which do not, each pair alone on this machine."""
    words = ["--nodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--procs-per-node", "2"]
    bad = []
    for (i, one), (j, other) in combinations(enumerate(uuids), 2):
        ended = launch(words, {**environ, "CUDA_VISIBLE_DEVICES": f"{one},{other}"}, PAIR_TIMEOUT_S)
        bad += [f"{i}-{j}"] if ended.code != 0 else []
    if bad:
        return fail("pairs", f"these pairs of GPUs do not exchange: {', '.join(bad)}", _HANG_FIX)
    return warn(
        "pairs", "each pair of GPUs exchanges, all together do not", "NCCL_DEBUG=INFO, and the logs of all ranks"
    )


def _transport_findings(ended: LaunchResult, scene: CheckContext) -> list[Finding]:
    """A fast network that is there and was not taken."""
    up = [device for device in reading.list_fabric_devices(scene.root) if device.active]
    sockets = [way for way in ended.ways if way.startswith("NET/Socket")]
    if not (up and sockets and scene.several_nodes):
        return []
    wanted, went = [device for device in up if not fabric.disabling_setting(device, scene.environ)], ", ".join(sockets)
    if not wanted:
        return [
            ok("transport", f"NCCL went over TCP ({went}), as {fabric.disabling_setting(up[0], scene.environ)} says")
        ]
    tell, names = fabric.severity(wanted, scene), ", ".join(device.name for device in wanted)
    text = f"{names} is here and NCCL went over TCP ({went}): several times slower"
    return [tell("transport", text, fabric.with_ethernet_fix(wanted, _TRANSPORT_FIX))]


def _describe_speed(result: Mapping[str, Any], ways: Sequence[str]) -> str:
    if result["ranks"] == 1:
        return f"one rank: torch computes on the {result['device']}"
    way = ", ".join(ways) or (f"TCP on {result['interface']}" if result["interface"] else "way not told")
    speed = f"{result['bytes_per_s'] / 1e9:.1f} GB/s ({result['mib']} MiB in {result['seconds'] * 1000:.1f} ms)"
    return f"{result['ranks']} ranks over {result['backend']} ({way}): every sum right, {speed}"


def _nccl_debug_variables(folder: str, environ: Mapping[str, str]) -> dict[str, str]:
    """NCCL tells which way it takes; what the user has asked it to tell goes on being told."""
    wanted = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P", "NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p"}
    return {} if environ.get("NCCL_DEBUG") else wanted


def _run_with_timeout(command: Sequence[str], environ: Mapping[str, str], limit_s: float) -> tuple[int | None, str]:
    """The exit code, None where time ran out, and what was written."""
    process = subprocess.Popen(
        command, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its ranks end with it
        text, _ = process.communicate()
        return None, text
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, text


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
