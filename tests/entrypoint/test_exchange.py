"""Tasks tell each other their hosts: over PMI-1 and through files; right, or a clear error."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path

import pytest
from machines import machine
from pmi_server import PmiServer
from synthetic import HTCONDOR, PER_RANK

from entrypoint import network
from entrypoint.errors import Failure
from entrypoint.exchange import TaskHost, exchange_hosts, place_task
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
from entrypoint.plan import Plan, plan_allocation

CPU = LaunchOptions(device="cpu")
Exchange = Callable[[int], Plan]


def nothing() -> None:
    """Nobody asks the waiting task to stop."""


def planned(task: int, tasks: int = 2, host: str = "", procs: int | None = None) -> Plan:
    """The plan of one task of a launcher that tells no hosts."""
    environ = HTCONDOR | {"_CONDOR_PROCNO": str(task), "_CONDOR_NPROCS": str(tasks)}
    here, options = machine(hostname=host or f"node{task + 1:02}"), replace(CPU, procs_per_node=procs)
    return plan_allocation(detect_allocation(environ, options, here), options, here, environ)


def hosts(*names: str) -> list[TaskHost]:
    return [
        TaskHost(host=name, address=f"10.0.0.{name[-1]}", nonce=f"nonce-{task}", ports=f"2000{task}/21000")
        for task, name in enumerate(names)
    ]


def together(tasks: int, run: Exchange, delays: list[float] | None = None) -> list[Plan]:
    """Run the exchange of all tasks at once; each starts after its delay in seconds."""

    def start(task: int) -> Plan:
        time.sleep(delays[task] if delays else 0.0)
        return run(task)

    with ThreadPoolExecutor(tasks) as pool:
        waiting: list[Future[Plan]] = [pool.submit(start, task) for task in range(tasks)]
        return [future.result(60) for future in waiting]


def agree(plans: list[Plan]) -> bool:
    """Whether all tasks have the same hosts, address of rank 0 and launch id, and places of their own."""
    shared = {(plan.hosts, plan.world.master_addr, plan.launch_id, plan.world.num_nodes) for plan in plans}
    positions = {(plan.world.node_rank, plan.world.local_rank) for plan in plans}
    return len(shared) == 1 and len(positions) == len(plans)


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task is on a host of its own, although all run here."""
    monkeypatch.setattr(network, "own_address", lambda environ: environ.get("ADDRESS", "10.0.0.1"))


def through_files(folder: Path, tasks: int = 2, timeout_s: float = 60.0) -> Exchange:
    def run(task: int) -> Plan:
        environ = {"ADDRESS": f"10.0.0.{task + 1}"}
        return exchange_hosts(planned(task, tasks), environ, folder, time.monotonic() + timeout_s, nothing)

    return run


def over_pmi(server: PmiServer, folder: Path, timeout_s: float = 60.0) -> Exchange:
    def run(task: int) -> Plan:
        environ = {"ADDRESS": f"10.0.0.{task + 1}", "PMI_FD": str(server.descriptors[task])}
        return exchange_hosts(
            planned(task, len(server.descriptors)), environ, folder, time.monotonic() + timeout_s, nothing
        )

    return run


def test_each_task_learns_its_place_and_the_address_of_rank_0() -> None:
    names = hosts("node1", "node2", "node1", "node2")
    plans = [place_task(planned(task, 4, names[task].host), names, task) for task in range(4)]
    assert [(plan.world.node_rank, plan.world.local_rank) for plan in plans] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert {(plan.hosts, plan.world.master_addr) for plan in plans} == {(("node1", "node2"), "10.0.0.1")}
    assert {plan.world.local_world_size for plan in plans} == {2}


def test_tasks_of_one_host_meet_on_loopback() -> None:
    world = place_task(planned(1, 2, "node1"), hosts("node1", "node1"), 1).world
    assert (world.master_addr, world.num_nodes, world.local_rank) == ("127.0.0.1", 1, 1)


@pytest.mark.parametrize("has_it", [(0,), (1,), (0, 1)])
def test_the_users_address_wins_on_all_tasks_even_if_only_some_have_it(has_it: tuple[int, ...]) -> None:
    """Open MPI's mpirun without -x hands a variable to the tasks of its own host only."""
    names = [
        replace(each, master_addr="ib-node1" if task in has_it else "")
        for task, each in enumerate(hosts("node1", "node2"))
    ]
    assert {place_task(planned(task), names, task).world.master_addr for task in (0, 1)} == {"ib-node1"}


def test_loopback_as_the_users_address_is_refused_on_all_tasks_of_several_hosts() -> None:
    names = [replace(each, master_addr="localhost" * (task == 0)) for task, each in enumerate(hosts("node1", "node2"))]
    for task in (0, 1):
        with pytest.raises(Failure, match="would look for rank 0 on itself"):
            place_task(planned(task), names, task)


def test_a_port_that_only_the_first_task_was_given_counts_for_all() -> None:
    plans = [place_task(planned(task), hosts("node1", "node2"), task) for task in (0, 1)]
    assert {(plan.ports, plan.world.master_port) for plan in plans} == {((20000, 21000), 20000)}


def test_two_containers_with_one_name_are_two_hosts_if_their_addresses_differ() -> None:
    names = [replace(each, address=f"10.0.0.{task}") for task, each in enumerate(hosts("pod", "pod"))]
    assert place_task(planned(1), names, 1).world.num_nodes == 2


def test_tasks_that_start_several_ranks_each_may_not_share_a_host() -> None:
    with pytest.raises(Failure, match="several tasks are on node1") as caught:
        place_task(planned(0, 2, "node1", procs=2), hosts("node1", "node1"), 0)
    assert caught.value.code == 76


def test_tasks_exchange_hosts_through_files(tmp_path: Path) -> None:
    plans = together(3, through_files(tmp_path, 3))
    assert agree(plans)
    assert plans[2].hosts == ("node01", "node02", "node03")


def test_tasks_exchange_hosts_over_pmi_and_leave_no_file(tmp_path: Path) -> None:
    with PmiServer(3) as server:
        plans = together(3, over_pmi(server, tmp_path))
        assert server.finalized == 3
    assert agree(plans)
    assert plans[2].hosts == ("node01", "node02", "node03")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seed", range(50))
def test_fifty_starts_through_files_agree_whatever_an_earlier_start_left(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    tasks = draw.randint(2, 4)
    leave_files_of_a_dead_start(tmp_path, draw, tasks)
    plans = together(tasks, through_files(tmp_path, tasks), [draw.uniform(0, 0.3) for _ in range(tasks)])
    assert agree(plans)
    assert plans[0].hosts == tuple(f"node{task + 1:02}" for task in range(tasks))
    assert plans[0].world.master_addr == "10.0.0.1"


def leave_files_of_a_dead_start(folder: Path, draw: random.Random, tasks: int) -> None:
    """What a start that was killed may have left: files of some tasks, of task 0, or half a file."""
    key = "hosts-" + sha256(planned(0, tasks).launch_id.encode()).hexdigest()[:16]
    (folder / key).mkdir()
    dead = [
        {"host": f"dead{task}", "address": "10.9.9.9", "nonce": f"dead-{task}", "ports": "20000"}
        for task in range(tasks)
    ]
    files: dict[str, object] = {
        f"task-{task}.json": each | {"master_addr": draw.choice(["", "dead0"])} for task, each in enumerate(dead)
    }
    files |= {f"confirm-{task}.json": {"confirms": "0" * 16} for task in range(1, tasks)}
    files["all.json"] = {"tasks": dead, "final": draw.choice([True, False])}
    for name in draw.sample(sorted(files), draw.randint(0, len(files))):
        text = json.dumps(files[name])
        (folder / key / name).write_text(text[: draw.choice([len(text), len(text) // 2, 0])])


@pytest.mark.parametrize("seed", range(50))
def test_fifty_starts_over_pmi_agree(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    with PmiServer(2) as server:
        plans = together(2, over_pmi(server, tmp_path), [draw.uniform(0, 0.1) for _ in range(2)])
    assert agree(plans)


def test_two_starts_of_mpiexec_on_one_host_are_two_launches(tmp_path: Path) -> None:
    numbers = {"PMI_SIZE": "2", "MPI_LOCALNRANKS": "2"}

    def start(server: PmiServer) -> str:
        def run(task: int) -> Plan:
            own = numbers | {
                "PMI_RANK": str(task),
                "MPI_LOCALRANKID": str(task),
                "PMI_FD": str(server.descriptors[task]),
            }
            launch_plan = plan_allocation(detect_allocation(own, CPU, machine()), CPU, machine(), own)
            assert launch_plan.exchanges_hosts
            return exchange_hosts(launch_plan, own, tmp_path, time.monotonic() + 60, nothing)

        (plan,) = {plan.launch_id: plan for plan in together(2, run)}.values()
        assert (plan.world.num_nodes, plan.world.master_addr) == (1, "127.0.0.1")
        return plan.launch_id

    with PmiServer(2) as first_server, PmiServer(2) as other:
        assert start(first_server) != start(other)


def test_a_second_command_of_the_same_tasks_does_without_the_socket_that_the_first_has_used(tmp_path: Path) -> None:
    """mpiexec closes it after the first: mpiexec ... sh -c 'entrypoint doctor --full; train'."""
    with PmiServer(2) as server:
        descriptors = [os.dup(number) for number in server.descriptors]
        assert agree(together(2, over_pmi(server, tmp_path)))
    try:
        deadline = time.monotonic() + 60

        def again(task: int) -> Plan:
            environ = {"ADDRESS": f"10.0.0.{task + 1}", "PMI_FD": str(descriptors[task])}
            return exchange_hosts(planned(task), environ, tmp_path, deadline, nothing)

        assert agree(together(2, again))
    finally:
        for number in descriptors:
            os.close(number)
    assert list(tmp_path.glob("hosts-*"))


def test_a_second_start_after_a_dead_one_is_another_launch(tmp_path: Path) -> None:
    with pytest.raises(Failure):
        through_files(tmp_path, timeout_s=0.0)(1)
    first, second = (together(2, through_files(tmp_path))[0].launch_id for _ in range(2))
    assert first != second


def test_missing_tasks_are_named_with_the_folder_that_all_must_share(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="missing 1, 2 of 3") as caught:
        through_files(tmp_path, 3, timeout_s=0.0)(0)
    assert caught.value.code == 69
    assert str(tmp_path) in (caught.value.found or "")


def test_a_task_that_never_hears_of_task_0_says_so(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="missing 0 of 2"):
        through_files(tmp_path, timeout_s=0.0)(1)


def test_a_second_start_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    def another_start() -> None:
        file = next(tmp_path.glob("hosts-*/task-0.json"))
        file.write_text(json.dumps(asdict(replace(hosts("other9")[0], nonce="other"))))

    with pytest.raises(Failure, match="another start of this training") as caught:
        exchange_hosts(planned(0), {}, tmp_path, time.monotonic() + 60, another_start)
    assert caught.value.code == 73


def test_a_folder_that_cannot_be_written_is_refused_with_the_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure, match="cannot be written") as caught:
        through_files(tmp_path / "file")(0)
    assert "run.output_dir" in caught.value.fix


def test_a_launcher_that_dies_while_tasks_wait_is_an_error_and_no_hang(tmp_path: Path) -> None:
    with PmiServer(2) as server, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(over_pmi(server, tmp_path), 0)
        assert server.waiting.wait(30)
        server.stop()
        with pytest.raises(Failure, match="over PMI-1") as caught:
            waiting.result(30)
    assert "env -u PMI_FD" in caught.value.fix


def test_tasks_that_do_not_come_in_time_are_an_error_over_pmi_too(tmp_path: Path) -> None:
    with PmiServer(2) as server, pytest.raises(Failure, match="over PMI-1") as caught:
        over_pmi(server, tmp_path, timeout_s=0.0)(0)
    assert "not all tasks have come" in (caught.value.found or "")


def test_a_request_to_stop_ends_the_waiting(tmp_path: Path) -> None:
    def stop() -> None:
        raise Failure("told to stop", fix="none", code=75)  # type: ignore[arg-type]

    with pytest.raises(Failure, match="told to stop"):
        exchange_hosts(planned(0), {}, tmp_path, time.monotonic() + 60, stop)


def test_the_socket_of_a_launcher_outside_of_ours_is_not_used(tmp_path: Path) -> None:
    """mpiexec -n 1 may run a script that starts our tasks in another way."""
    with PmiServer(1) as server:
        outer = {"PMI_FD": str(server.descriptors[0]), "PMI_RANK": "0", "PMI_SIZE": "1"}
        deadline = time.monotonic() + 60
        plans = together(2, lambda task: exchange_hosts(planned(task), outer, tmp_path, deadline, nothing))
        assert server.finalized == 0
    assert len({plan.launch_id for plan in plans}) == 1


def test_a_port_of_pmi_that_does_not_answer_may_be_interrupted(tmp_path: Path) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.create_connection(full.getsockname(), 5)]  # with it the queue is full: the next one waits
        environ = {"PMI_PORT": f"127.0.0.1:{full.getsockname()[1]}", "PMI_ID": "0"}
        calls: list[float] = []

        def stop() -> None:
            calls.append(time.monotonic())
            if len(calls) > 2:
                raise Failure("told to stop", fix="none", code=75)  # type: ignore[arg-type]

        with pytest.raises(Failure, match="told to stop"):
            exchange_hosts(planned(0), environ, tmp_path, time.monotonic() + 60, stop)
        waiting[0].close()


def test_a_closed_descriptor_means_files(tmp_path: Path) -> None:
    plans = together(
        2, lambda task: exchange_hosts(planned(task), {"PMI_FD": "987654"}, tmp_path, time.monotonic() + 60, nothing)
    )
    assert len({plan.launch_id for plan in plans}) == 1


@pytest.mark.parametrize("name", PER_RANK)
def test_show_says_by_what_hosts_will_be_exchanged(name: str) -> None:
    environ = {variable: value for variable, value in PER_RANK[name].items() if variable != "PMI_FD"}
    plan = plan_allocation(detect_allocation(environ, CPU, machine()), CPU, machine(), environ)
    assert (plan.world.master_addr, plan.sources["master_addr"]) == ("", "a file in the run's folder")
