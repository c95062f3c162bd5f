"""`run_plan` runs a command once per rank of the plan and returns the task's exit code.

Every command that starts ranks calls `make_plan` and then `run_plan`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from entrypoint import environment, exchange, heartbeat, network, preload
from entrypoint.accelerators import nvidia
from entrypoint.children import Child, die_with_parent, start_rank
from entrypoint.console import terminal_columns, use_color
from entrypoint.errors import ExitCode, Failure
from entrypoint.handover import ATTEMPT_VARIABLE, DEVICE_VARIABLE, Handover
from entrypoint.hang import HangWatch, SupervisionPolicy
from entrypoint.launchers import current_job_key, per_node
from entrypoint.machine import count_oom_kills
from entrypoint.plan import Plan
from entrypoint.supervise import SignalInbox, Supervision, supervise
from entrypoint.tee import Console, Tee, open_log
from entrypoint.threads import refuse_few_threads
from entrypoint.world import World, is_loopback, world_to_environ

MIN_RANK_THREADS: Final = 11  # a rank with gloo, on one core, has 9 or 10, and one that reads its resource figures
START_TIMEOUT_S: Final = 600.0  # launch.timeouts.start, for a command that has no configuration
WAITING_NOTE_AFTER_S: Final = 10.0
NAME_INTERVAL_S: Final = 1.0  # between two questions for the name of rank 0's host
# For the user's command on the CPU. Without the first, Accelerate makes each rank a world of its own.
FOREIGN_CPU_VARIABLES: Final = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}


def run_plan(
    planned: Plan,
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    log_dir: Path,
    foreign: bool,
    policy: SupervisionPolicy | None = None,
    stop_signals: list[int] | None = None,
) -> int:
    """Run `command` once per rank, wait, and return the exit code for the task.

    Output goes to `log_dir/rank-NNNN.log`, and that of rank 0 also to the console. foreign: the
    command is not our own worker. policy: how our own workers are supervised. stop_signals: those that
    arrived before this call; the signal that is forwarded to the ranks is appended.

    Raises:
        Failure: before any rank is started, if the launch cannot work.
    """
    terminal = sys.stdout.isatty() and sys.stderr.isatty()  # `train | tee` needs complete lines
    console = Console(is_terminal=terminal, folds=not foreign, uses_color=use_color(terminal, environ))
    preload.preload_mapped_files()
    stop_signals = [] if stop_signals is None else stop_signals
    with SignalInbox() as inbox, _scratch_home(environ) as scratch:
        inbox.arrived.extend(dict.fromkeys(stop_signals))
        if planned.launcher == "torchrun":  # torchrun leaves its workers behind when it is killed
            die_with_parent(signal.SIGTERM, os.getppid())
        deadline = time.monotonic() + (policy.limits.start if policy else START_TIMEOUT_S)
        if planned.exchanges_hosts:
            planned = _exchange_hosts(planned, environ, log_dir, deadline, inbox, console)
        if planned.world.num_nodes > 1:
            _resolve_master(planned, deadline, inbox, console)
        base, notes = environment.clean_environ(environ, foreign=foreign, scratch=scratch)
        notes += _adapt_foreign_environ(planned, base) if foreign else []
        notes += _address_notes(planned, foreign)
        restarts = policy.restarts if policy and planned.starts_all_ranks else 0
        if policy and policy.restarts > restarts:
            unused = "launch.max_restarts is not used: this task starts only some of the ranks."
            notes.append(f"{unused} The job script requeues the job")
        lines = [*(f"note: {note}" for note in notes), *(f"WARNING: {warning}" for warning in planned.warnings)]
        for line in lines if planned.world.rank == 0 else ():  # once per run
            console.say(line)
        for name in (heartbeat.HEARTBEAT_VARIABLE, "PMI_FD"):
            base.pop(name, None)  # of an outer run; and mpiexec's socket, which ranks do not inherit
        added = _shared_variables(planned, environ, console, policy)
        handover = Handover(
            launch_id=planned.launch_id,
            job=current_job_key(environ),
            launcher=planned.launcher,
            hosts=planned.hosts,
            ports=planned.ports,
            sources=planned.sources,
            added=tuple(name for name in added if name != DEVICE_VARIABLE and not environ.get(name)),
            one_host=planned.one_host,
            agent_store=planned.agent_store,
            terminal=console.is_terminal,
        )
        shared = base | added | _master_port_variable(planned, foreign)
        for attempt in itertools.count():
            # Another launch_id for each attempt: no rank may connect to the store of an earlier one.
            launch_id = handover.launch_id + (f":attempt-{attempt}" if attempt else "")
            variables = shared | replace(handover, launch_id=launch_id).to_environ() | {ATTEMPT_VARIABLE: str(attempt)}
            code, stop = _run_attempt(planned, command, variables, log_dir, console, foreign, policy, inbox)
            if stop is not None:
                stop_signals.append(stop)
            is_accident = code in {each for each in ExitCode if each.restart}
            if policy is None or stop is not None or attempt >= restarts or not is_accident:
                return code
            policy.failed(code)
            console.say(f"restart {attempt + 1} of {restarts}, in place (launch.max_restarts)")
    raise AssertionError("unreachable")


def _exchange_hosts(
    planned: Plan, environ: Mapping[str, str], folder: Path, deadline: float, inbox: SignalInbox, console: Console
) -> Plan:
    """The plan with all tasks' hosts. A signal ends the waiting."""
    notes = [f"waiting for the other tasks' hosts, through {planned.sources.get('hosts')} ({folder})"]
    note_at = time.monotonic() + WAITING_NOTE_AFTER_S

    def check() -> None:
        _raise_if_stopped(inbox)
        if notes and time.monotonic() > note_at:
            console.say(notes.pop())

    return exchange.exchange_hosts(planned, environ, folder, deadline, check)


def _resolve_master(planned: Plan, deadline: float, inbox: SignalInbox, console: Console) -> None:
    """Check that the name of rank 0's host resolves. The name of a pod does so only when that pod has started."""
    for attempt in itertools.count():
        try:
            network.resolve(planned.world.master_addr)
            return
        except Failure:
            if planned.launcher not in per_node.PLATFORMS or time.monotonic() > deadline:
                raise
        if attempt == 0:
            console.say(f"waiting for rank 0: {planned.world.master_addr!r} does not resolve yet")
        _raise_if_stopped(inbox)
        time.sleep(NAME_INTERVAL_S)


def _raise_if_stopped(inbox: SignalInbox) -> None:
    if inbox.arrived:
        raise Failure(
            f"told to stop (signal {inbox.arrived[0]}) before all tasks were there",
            fix="none needed; start it again when you want",
            code=ExitCode.STOPPED,
        )


def _run_attempt(
    planned: Plan,
    command: Sequence[str],
    shared: Mapping[str, str],
    log_dir: Path,
    console: Console,
    foreign: bool,
    policy: SupervisionPolicy | None,
    inbox: SignalInbox,
) -> tuple[int, int | None]:
    """Start all ranks once; return the exit code, and the stop signal if one was received."""
    oom_kills_before = count_oom_kills()
    children = _start_all_ranks(planned, command, shared, log_dir, console, policy)
    hang = (
        HangWatch(policy, children, planned.hostname, planned.device == "cuda", planned.launch_id) if policy else None
    )
    supervision = Supervision(
        children, planned.hostname, foreign, console, count_oom_kills, oom_kills_before, hang=hang, hosts=planned.hosts
    )
    try:
        return supervise(supervision, inbox), supervision.stop_signal
    finally:
        for child in children:
            child.close()


def _address_notes(planned: Plan, foreign: bool) -> list[str]:
    """A note if MASTER_ADDR is not this host's. Foreign ranks would wait for it.

    Our own workers report it themselves.
    """
    world = planned.world
    if not foreign or planned.agent_store or world.rank > 0 or world.num_nodes == 1:
        return []
    if any(map(network.is_own_address, addresses := network.resolve_all(world.master_addr))):
        return []
    return [f"the master's address {addresses[0]} is not this host's own: right if a service or router leads here"]


def _adapt_foreign_environ(planned: Plan, environ: dict[str, str]) -> list[str]:
    """Change the environment of the user's command where ranks would disturb each other; a note for each change.

    `train` removes such variables itself. A rank that is alone on its node keeps the threads that the user bound.
    """
    bindings = environment.THREAD_BINDING_VARIABLES if planned.world.local_world_size > 1 else ()
    bound = [name for name in bindings if environ.pop(name, "").lower() not in ("", "false", "disabled", "none")]
    forced = FOREIGN_CPU_VARIABLES if planned.device == "cpu" else {}
    replaced = [f"{name}={environ[name]}" for name, value in forced.items() if environ.get(name, value) != value]
    environ.update(forced)
    return [
        *(f"not used, all ranks of a node would share its first core: {name}" for name in [", ".join(bound)] if name),
        *(f"not used, the ranks compute on the CPU: {text}" for text in replaced),
    ]


def _flight_recorder_variables(
    planned: Plan, policy: SupervisionPolicy | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """Where torch's flight recorder writes NCCL's last collectives after an error."""
    if policy is None or planned.device != "cuda" or planned.world.world_size == 1:
        return {}
    if any(environ.get(name) for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")):
        return {}  # set by the user, the second by its older name, which ours would override
    return {"TORCH_FR_DUMP_TEMP_FILE": str(policy.errors.collectives_prefix)}


def _start_all_ranks(
    planned: Plan,
    command: Sequence[str],
    shared: Mapping[str, str],
    log_dir: Path,
    console: Console,
    policy: SupervisionPolicy | None,
) -> list[Child]:
    """Start all ranks, or none: if one cannot be started, those before it are killed."""
    if policy:
        refuse_few_threads(MIN_RANK_THREADS * planned.spawn)
        with suppress(OSError):  # a rank reports a bad folder itself; torch's flight recorder creates none
            policy.errors.folder.mkdir(parents=True, exist_ok=True)
    children: list[Child] = []
    try:
        for world, cores in itertools.zip_longest(planned.worlds(), planned.cores):
            tee = Tee(
                log=open_log(log_dir, world.rank),
                console=console if world.rank == 0 else None,
                escapes=console.folds,
            )
            channel = heartbeat.HeartbeatChannel() if policy else None
            children.append(start_rank(command, rank_environ(shared, world), world, tee, channel, cores))
    except BaseException:
        for child in children:
            child.kill_group()
        raise
    return children


def rank_environ(shared: Mapping[str, str], world: World) -> dict[str, str]:
    """One rank's complete environment.

    The shared MASTER_PORT wins, because it was tested to be free.
    """
    return {**shared, **world_to_environ(world), **{k: v for k, v in shared.items() if k == "MASTER_PORT"}}


def _shared_variables(
    planned: Plan, environ: Mapping[str, str], console: Console, policy: SupervisionPolicy | None
) -> dict[str, str]:
    """The variables that all ranks of this task share and that libraries or the user's command read."""
    variables = {DEVICE_VARIABLE: planned.device, "OMP_NUM_THREADS": planned.num_threads(environ)}
    if console.is_terminal:
        # Read from the terminal: an exported COLUMNS may be the width of another one.
        variables["COLUMNS"] = str(terminal_columns(console.err) or shutil.get_terminal_size().columns)
    variables |= _interface_variables(planned, environ) | _flight_recorder_variables(planned, policy, environ)
    if planned.device == "cuda":
        variables |= nvidia.rank_variables(environ)
    return variables


def _interface_variables(planned: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """The network interface for gloo and NCCL: the one that leads to rank 0, unless the user chose.

    NCCL takes a name as a prefix unless it begins with `=`; gloo takes one complete name.
    """
    if planned.world.world_size == 1:
        return {}
    chosen = environ.get("ENTRYPOINT_INTERFACE")
    name = chosen or _interface_towards_peers(planned) or ""
    if chosen and chosen not in (interfaces := [name for _, name in socket.if_nameindex()]):
        raise Failure(
            "ENTRYPOINT_INTERFACE is not a network interface of this host",
            found=f"ENTRYPOINT_INTERFACE={chosen}",
            expected=f"one of {', '.join(interfaces)}",
            fix="set it to the interface that all nodes share, or unset it",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    variables = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"} if name else {}
    return {variable: value for variable, value in variables.items() if chosen or not environ.get(variable)}


def _interface_towards_peers(planned: Plan) -> str | None:
    master = planned.world.master_addr
    if planned.one_host:
        return network.LOOPBACK_INTERFACE
    if planned.world.num_nodes > 1:
        # Kubeflow's first pod may call itself `localhost`; the others do not.
        is_first_pod = is_loopback(master) and planned.launcher in per_node.PLATFORMS
        return network.interface_between(planned.hosts, network.own_address({}) if is_first_pod else master)
    return network.interface_towards(network.resolve(master))


def _master_port_variable(planned: Plan, foreign: bool) -> dict[str, str]:
    """MASTER_PORT for a foreign command, which opens its store itself: a port that is free now.

    If several tasks start ranks, all must know the port without communicating: it is the first
    candidate, and rank 0's task refuses to start if it is taken.
    """
    if not foreign or planned.agent_store:
        return {}
    ports = planned.ports if planned.starts_all_ranks else planned.ports[:1]
    if planned.world.rank > 0:
        return {"MASTER_PORT": str(planned.ports[0])}
    host = network.listen_address(planned.world.master_addr, planned.world.num_nodes)
    with network.bind_first_free(host, ports) as listener:
        return {"MASTER_PORT": str(listener.getsockname()[1])}


def _scratch_home(environ: Mapping[str, str]) -> AbstractContextManager[str | None]:
    """A temporary folder that replaces a HOME or TMPDIR that cannot be written; removed when the run ends."""
    needed = not all(map(environment.is_writable, (environ.get("HOME"), environ.get("TMPDIR") or "/tmp")))
    parent = environment.scratch_parent(environ) if needed else None
    if parent is None:
        return nullcontext()
    return tempfile.TemporaryDirectory(prefix="train-home-", dir=str(parent), ignore_cleanup_errors=True)
