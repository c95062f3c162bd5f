"""Tasks tell each other their hosts, where the launcher does not say which host has rank 0.

They do it over PMI-1 if the launcher speaks it, otherwise through files in the run's folder, which
all nodes must share. Afterwards each task knows all hosts, and its own place among the tasks of its
host.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from entrypoint import file_writer, network, pmi
from entrypoint.console import list_some
from entrypoint.errors import ExitCode, Failure
from entrypoint.files import read_json_object
from entrypoint.launchers.allocation import LOOPBACK
from entrypoint.plan import Plan, refuse_loopback_master

MAX_PORT = 2**16 - 1
PORTS_PATTERN = re.compile(r"\d{1,5}(/\d{1,5})*", re.ASCII)
MAX_POLL_INTERVAL_S = 1.0  # between looks into the folder; the first ones are shorter


@dataclass(frozen=True, slots=True)
class TaskHost:
    """Where one task runs.

    nonce: another one for each start, so that no earlier start is believed. ports: where rank 0 may listen, separated
    by "/". master_addr: MASTER_ADDR, if the task has it. mpirun may hand such variables to some of the hosts only.
    """

    host: str
    address: str
    nonce: str
    ports: str
    master_addr: str = ""


def exchange_hosts(
    planned: Plan, environ: Mapping[str, str], folder: Path, deadline: float, check: Callable[[], None]
) -> Plan:
    """The plan with hosts, node and address of rank 0 filled in, after all tasks have told theirs.

    Args:
        folder: shared by all nodes; used if the launcher does not speak PMI-1.
        deadline: until when to wait for the other tasks, in seconds of time.monotonic().
        check: called about twice per second while this waits; may raise.

    Raises:
        Failure: PEER if tasks are missing at the deadline; LAUNCH_CONFLICT if they cannot share the
            hosts as they do.
    """
    me = TaskHost(
        host=planned.hostname,
        address=network.own_address(environ),
        nonce=uuid.uuid4().hex,
        ports="/".join(map(str, planned.ports)),
        master_addr=environ.get("MASTER_ADDR", ""),
    )
    task, num_tasks = planned.world.rank // planned.spawn, planned.world.world_size // planned.spawn
    if pmi.is_available(environ, task, num_tasks):
        with suppress(pmi.PmiClosedError):  # on all tasks alike: a command before this one has used it
            values = pmi.exchange_values(environ, ",".join(astuple(me)), task, num_tasks, deadline, check)
            return place_task(planned, [TaskHost(*value.split(",", 4)) for value in values], task)
        if planned.world.num_nodes == 1:
            return replace(planned, exchanges_hosts=False)
    key = f"hosts-{_hash(planned.launch_id)}"
    return place_task(planned, _exchange_through_files(folder / key, me, task, num_tasks, deadline, check), task)


def place_task(planned: Plan, tasks: Sequence[TaskHost], task: int) -> Plan:
    """The plan of `task`, when the hosts of all tasks are known: with the ports of task 0, and any task's MASTER_ADDR.

    Raises:
        Failure: LAUNCH_CONFLICT if tasks that each start several ranks share a host, or MASTER_ADDR is loopback for
            several hosts.
    """
    places = [(each.host, each.address) for each in tasks]  # pods of one machine have addresses of their own
    nodes = list(dict.fromkeys(places))
    own_place = places[task]
    ports = tuple(map(int, tasks[0].ports.split("/")))
    master_addr = next((each.master_addr for each in tasks if each.master_addr), tasks[0].address)
    tasks_on_node = places.count(own_place)
    if planned.spawn > 1 and len(nodes) < len(places):
        shared = next(host for host, address in nodes if places.count((host, address)) > 1)
        raise Failure(
            f"several tasks are on {shared}, and each would start {planned.spawn} ranks there",
            found=f"{len(places)} tasks on {len(nodes)} hosts",
            expected="one task per host, or one rank per task",
            fix="ask the scheduler for whole hosts, or for one GPU per task; or --procs-per-node 1",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    world = replace(
        planned.world,
        local_rank=places[:task].count(own_place) * planned.spawn,
        local_world_size=tasks_on_node * planned.spawn,
        node_rank=nodes.index(own_place),
        num_nodes=len(nodes),
        master_addr=LOOPBACK if len(nodes) == 1 else master_addr,
        master_port=ports[0],
    )
    refuse_loopback_master("", world)  # whoever has set it, all tasks have it now
    return replace(
        planned,
        world=world,
        hosts=tuple(host for host, _ in nodes),
        ports=ports,
        launch_id=f"{planned.launch_id}:{tasks[0].nonce}",
        exchanges_hosts=False,
    )


def _exchange_through_files(
    folder: Path, me: TaskHost, task: int, num_tasks: int, deadline: float, check: Callable[[], None]
) -> list[TaskHost]:
    """Each task writes a file; task 0 writes what it read of all; each task confirms it; task 0 says that it is final.

    Files of an earlier start may still be there. So a task confirms only a list of task 0 that holds its own nonce, and
    believes it only when task 0 says that all tasks of that list have confirmed it.
    """
    own, all_tasks = folder / f"task-{task}.json", folder / "all.json"
    _write_json(own, asdict(me))
    confirmed, interval_s = "", 0.01
    while True:
        written = _task_host(read_json_object(own))
        if written is not None and written.nonce != me.nonce:  # another process has written this task's file since
            raise Failure(
                "another start of this training is under way in the same folder",
                found=f"{own}, written by {written.host} too",
                fix="wait until it has ended, or give this one its own run.name",
                code=ExitCode.OUTPUT,
            )
        if task == 0:
            hosts = [_task_host(read_json_object(folder / f"task-{other}.json")) for other in range(num_tasks)]
            missing = [other for other, host in enumerate(hosts) if host is None]
            complete = [host for host in hosts if host is not None]
            if not missing:
                digest = _digest(complete)
                confirms = [read_json_object(folder / f"confirm-{other}.json") for other in range(1, num_tasks)]
                missing = [other for other, file in enumerate(confirms, 1) if file.get("confirms") != digest]
                _write_json(all_tasks, {"tasks": [asdict(host) for host in complete], "final": not missing})
        else:
            answer = read_json_object(all_tasks)
            listed = answer.get("tasks")
            complete = [host for file in listed if (host := _task_host(file))] if isinstance(listed, list) else []
            missing = [0]
            if len(complete) == num_tasks and complete[task] == me:
                if (digest := _digest(complete)) != confirmed:
                    _write_json(folder / f"confirm-{task}.json", {"confirms": digest})
                    confirmed = digest
                missing = [] if answer.get("final") else [0]
        if not missing:
            return complete
        if time.monotonic() > deadline:
            raise Failure(
                f"tasks did not tell their hosts in time: missing {list_some(missing, 8)} of {num_tasks}",
                found=f"no file of theirs in {folder}",
                fix="look at the output of these tasks; if the nodes do not share this folder, set run.output_dir to "
                "one that they do; or start one task per node with --nodes --node-rank --master-addr --master-port",
                code=ExitCode.PEER,
            )
        check()
        time.sleep(interval_s)
        interval_s = min(interval_s * 1.5, MAX_POLL_INTERVAL_S)


def _digest(tasks: Sequence[TaskHost]) -> str:
    """Of the nonces of all tasks: another one whenever a task was started again."""
    return _hash(" ".join(each.nonce for each in tasks))


def _hash(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:16]


def _task_host(values: Any) -> TaskHost | None:
    """The host that a task told; None if no task writes such values."""
    names = ("host", "address", "nonce", "ports", "master_addr")
    words = [values.get(name) if isinstance(values, dict) else None for name in names]
    texts = [word for word in words if isinstance(word, str)]
    if len(texts) < len(names) or not PORTS_PATTERN.fullmatch(texts[3]):
        return None
    return TaskHost(*texts) if all(int(port) <= MAX_PORT for port in texts[3].split("/")) else None


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write the file in one piece.

    Raises:
        Failure: OUTPUT if the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with file_writer.replace_file(path, durable=False) as stream:
            stream.write(json.dumps(value).encode())
    except OSError as error:
        raise Failure(
            f"{path.parent} cannot be written: {error.strerror}",
            found="the tasks tell each other their hosts through files there",
            fix="set run.output_dir (entrypoint run: --logs) to a folder that all nodes share and can write",
            code=ExitCode.OUTPUT,
        ) from error
