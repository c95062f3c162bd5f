"""The full check starts all ranks once for an all-reduce, and reports its transport and speed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from entrypoint import fabrics, pmi
from entrypoint.accelerators import nvidia
from entrypoint.console import shell_command
from entrypoint.doctor import fabric
from entrypoint.doctor.context import CheckContext, Finding, fail, ok, warn
from entrypoint.errors import ExitCode
from entrypoint.files import read_text
from entrypoint.machine import read_machine
from entrypoint.plan import Plan

ALL_RANKS_TIMEOUT_S = 60.0  # for the ranks, from importing torch to the last all-reduce
PAIR_TIMEOUT_S = 30.0
_GRACE_S = 15.0  # for the parent, in addition
_FINDING_NAME = "all-reduce"
_CHECK_COMMAND = "entrypoint run -- python -P -m train.distributed.allreduce_check"
_TRANSPORT_FIX = f"see the finding `fabric`, and {fabrics.PROFILES} for the settings of each network"
_HANG_FIX = "NCCL_P2P_DISABLE=1 takes another way; for good: switch off IOMMU or ACS in the BIOS"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchResult:
    """How a start of all ranks ended.

    code: None if it was killed. result: rank 0's, if it runs on this node.
    """

    code: int | None
    text: str
    result: Mapping[str, Any] | None = None
    transports: tuple[str, ...] = ()

    @property
    def hung(self) -> bool:
        """Whether time ran out."""
        return self.code in (None, ExitCode.HANG)


LaunchFunction = Callable[[Sequence[str], Mapping[str, str], float], LaunchResult]


def check_allreduce(context: CheckContext, words: Sequence[str], launch: LaunchFunction | None = None) -> list[Finding]:
    """Start `train.distributed.allreduce_check` once per rank, with these launch arguments.

    If all GPUs together hang, each pair is tried. launch: starts the ranks and waits (tests replace
    it).
    """
    if context.plan is None:
        return []  # the plan's own finding tells why
    launch = launch or launch_allreduce
    # Where tasks tell each other their hosts, if they must: a folder that they share, unlike a temporary one.
    shared = context.output.absolute() / "doctor" if context.plan.exchanges_hosts else None
    outcome = launch([*words, *(("--logs", str(shared)) if shared else ())], context.environ, ALL_RANKS_TIMEOUT_S)
    if shared and outcome.code == 0 and context.plan.world.rank == 0:
        shutil.rmtree(shared, ignore_errors=True)
    findings = [*allreduce_findings(outcome, context.plan), *_transport_findings(outcome, context)]
    if outcome.hung and context.plan.device == "cuda" and context.plan.starts_all_ranks and context.plan.spawn > 2:
        findings.append(
            check_gpu_pairs(read_machine(context.environ).gpus[: context.plan.spawn], context.environ, launch)
        )
    return findings


def launch_allreduce(words: Sequence[str], environ: Mapping[str, str], limit_s: float) -> LaunchResult:
    """Start all ranks of this task, and wait until they end."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as folder:
        result, python = Path(folder, "result.json"), [sys.executable, "-I", "-m"]
        check = [*python, "train.distributed.allreduce_check", "--result", str(result), "--timeout", f"{limit_s:g}"]
        words = words if "--logs" in words else ["--logs", f"{folder}/logs", *words]
        command = [*python, "entrypoint", "run", *words, "--", *check]
        variables = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET,P2P"}  # NCCL logs its transports
        variables |= {"NCCL_DEBUG_FILE": f"{folder}/nccl.%h.%p"}
        variables = dict(environ) if environ.get("NCCL_DEBUG") else {**environ, **variables}
        code, console = _run_with_timeout(command, variables, limit_s + _GRACE_S)
        log_dir = Path(words[words.index("--logs") + 1])
        logs = [read_text(file) for file in sorted(log_dir.glob("*.log"))]
        nccl_logs = [read_text(file) for file in Path(folder).glob("nccl.*")]
        result_data = json.loads(result.read_text()) if result.exists() else None
        return LaunchResult(
            code=code, text="\n".join([*logs, console]), result=result_data, transports=nccl_transports(nccl_logs)
        )


def allreduce_findings(outcome: LaunchResult, plan: Plan) -> list[Finding]:
    """The finding that describes how the ranks ended."""
    what, fix = parse_error_block(outcome)
    run_by_hand = f"start it by hand to see all of it: {shell_command(_CHECK_COMMAND)}"
    if outcome.hung:
        hang_fix = _HANG_FIX if plan.device == "cuda" else run_by_hand
        return [fail(_FINDING_NAME, what or "the ranks were not done in time", hang_fix)]
    if outcome.code:
        last_line = next((line.strip() for line in reversed(outcome.text.splitlines()) if line.strip()), "no output")
        text = what or f"the ranks ended with {outcome.code}: {last_line}"
        return [fail(_FINDING_NAME, text, fix or run_by_hand)]
    if outcome.result is None:
        return [ok(_FINDING_NAME, "the all-reduce of this task's ranks worked; the task of rank 0 reports its speed")]
    return [ok(_FINDING_NAME, _describe_speed(outcome.result, outcome.transports))]


def parse_error_block(outcome: LaunchResult) -> tuple[str, str]:
    """What is wrong and its fix, from the ERROR block with the exit code; empty without one."""
    block = re.search(rf"^ERROR\[{outcome.code}\] (.*)((?:\n  .*)*)", outcome.text, re.M)
    if block is None:
        return "", ""
    facts = dict(re.findall(r"^  (found|fix): (.*)", block[2], re.M))
    return block[1] + (f" ({facts['found']})" if "found" in facts else ""), facts.get("fix", "")


def nccl_transports(logs: Iterable[str]) -> tuple[str, ...]:
    """The transports in NCCL's logs: P2P/CUMEM, SHM/direct, NET/IB/0, NET/Socket/1, ..."""
    return tuple(sorted({transport for log in logs for transport in re.findall(r"\bvia ([A-Z0-9]+(?:/\w+)?)", log)}))


def check_gpu_pairs(uuids: Sequence[str], environ: Mapping[str, str], launch: LaunchFunction) -> Finding:
    """Find the pairs of GPUs whose all-reduce fails, each pair alone on this machine."""
    words = ["--nodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--procs-per-node", "2"]
    failed = []
    for (i, first), (j, second) in combinations(enumerate(uuids), 2):
        outcome = launch(words, {**environ, nvidia.VISIBLE_VARIABLE: f"{first},{second}"}, PAIR_TIMEOUT_S)
        failed += [f"{i}-{j}"] if outcome.code != 0 else []
    if failed:
        return fail("pairs", f"the all-reduce fails between these pairs of GPUs: {', '.join(failed)}", _HANG_FIX)
    return warn(
        "pairs",
        "the all-reduce works for each pair of GPUs, but not for all together",
        "NCCL_DEBUG=INFO, and the logs of all ranks",
    )


def _transport_findings(outcome: LaunchResult, context: CheckContext) -> list[Finding]:
    """A finding if NCCL used TCP although the machine has a faster network."""
    active = fabrics.list_active_devices(context.root)
    sockets = [transport for transport in outcome.transports if transport.startswith("NET/Socket")]
    if not (active and sockets and context.several_nodes):
        return []
    enabled = [device for device in active if not fabrics.disabling_setting(device, context.environ)]
    used = ", ".join(sockets)
    if not enabled:
        setting = fabrics.disabling_setting(active[0], context.environ)
        return [ok("transport", f"NCCL went over TCP ({used}), as {setting} says")]
    make_finding, names = fabric.severity(enabled, context), ", ".join(device.name for device in enabled)
    text = f"{names} is here and NCCL went over TCP ({used}): several times slower"
    return [make_finding("transport", text, fabrics.with_ethernet_fix(enabled, _TRANSPORT_FIX))]


def _describe_speed(result: Mapping[str, Any], transports: Sequence[str]) -> str:
    if result["ranks"] == 1:
        return f"one rank: torch computes on the {result['device']}"
    route = ", ".join(transports) or (
        f"TCP on {result['interface']}" if result["interface"] else "transport not reported"
    )
    speed = f"{result['bytes_per_s'] / 1e9:.1f} GB/s ({result['mib']} MiB in {result['seconds'] * 1000:.1f} ms)"
    return f"{result['ranks']} ranks over {result['backend']} ({route}): every sum right, {speed}"


def _run_with_timeout(command: Sequence[str], environ: Mapping[str, str], limit_s: float) -> tuple[int | None, str]:
    """The exit code (None after a timeout) and the output."""
    try:
        done = subprocess.run(
            command, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=limit_s,
            start_new_session=True, pass_fds=pmi.inherited_sockets(environ),
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:  # the ranks die with their parent
        return None, (error.stdout or b"").decode(errors="replace")
    return done.returncode, done.stdout.decode(errors="replace")
