"""All ranks at one store: here each rank is a thread with a store connection of its own."""

from __future__ import annotations

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from machines import machine
from processes import candidates, own_launch_id
from torch import distributed as dist
from worlds import APART, FIRST, SECOND

from entrypoint import Failure, Handover, HangTimeouts, LaunchOptions, SupervisionPolicy, World, network, run_plan
from entrypoint.launchers import detect_allocation
from entrypoint.plan import plan_allocation
from entrypoint.run_errors import RunErrors
from train.distributed.rendezvous import connect


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.distributed.rendezvous.SAME_HOST_GRACE_S", 0.0)


@pytest.fixture
def short_store_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.distributed.rendezvous._STORE_TIMEOUT_S", 0.5)


def environ(name: str, *, one_host: bool = True, restarts: str = "0", **more: Any) -> dict[str, str]:
    handover = Handover(launch_id=own_launch_id(name), ports=tuple(candidates(name)), one_host=one_host, **more)
    return handover.to_environ() | {"TORCHELASTIC_RESTART_COUNT": restarts}


def meet(
    name: str, *worlds: World, gpus: tuple[str, ...] = ("", ""), timeout_s: float = 20.0, **more: Any
) -> list[object]:
    """What each rank came away with: its store, or the Failure that it raised."""

    variables = environ(name, **more)

    def one(world: World, gpu: str) -> object:
        try:
            return connect(world, variables, timeout_s, gpu)
        except Failure as failure:
            return failure

    with ThreadPoolExecutor(len(worlds)) as pool:
        return list(pool.map(one, worlds, gpus))


def test_ranks_meet_and_share_what_they_store() -> None:
    stores = meet("meet", FIRST, SECOND)
    stores[0].set("key", "value")  # type: ignore[attr-defined]
    assert stores[1].get("key") == b"value"  # type: ignore[attr-defined]


def test_one_rank_opens_no_port() -> None:
    assert isinstance(connect(replace(FIRST, world_size=1), environ("alone"), 5.0), dist.HashStore)


def test_the_store_listens_on_loopback_only_where_all_ranks_share_a_host() -> None:
    stores = meet("loopback", FIRST, SECOND)
    port = f"{stores[0].port:04X}"  # type: ignore[attr-defined]
    with open("/proc/net/tcp") as table:
        listening = [line.split()[1] for line in table if f":{port} 00000000:0000 0A" in line]
    assert listening == [f"0100007F:{port}"]


@pytest.mark.parametrize("master", ["127.0.0.1", "::1"])
def test_ranks_of_several_machines_meet_at_a_store_that_listens_everywhere(master: str) -> None:
    worlds = [replace(world, master_addr=master, num_nodes=2) for world in (FIRST, SECOND)]
    stores = meet(f"everywhere {master}", *worlds, one_host=False)
    stores[0].set("key", "value")  # type: ignore[attr-defined]
    assert stores[1].get("key") == b"value"  # type: ignore[attr-defined]


@pytest.mark.usefixtures("short_store_timeout")
def test_a_taken_first_port_moves_everyone_to_the_next() -> None:
    with network.bind_first_free("127.0.0.1", candidates("taken first")[:1]):
        stores = meet("taken first", FIRST, SECOND)
    assert stores[1].port == candidates("taken first")[1]  # type: ignore[attr-defined]


def test_another_runs_store_on_our_port_is_not_joined() -> None:
    port = candidates("neighbour")[0]
    neighbour = dist.TCPStore("127.0.0.1", port, 1, is_master=True, timeout=timedelta(seconds=5))
    neighbour.set("train/launch_id", "another launch")
    stores = meet("neighbour", FIRST, SECOND)
    assert stores[1].port == candidates("neighbour")[1]  # type: ignore[attr-defined]


def test_a_rank_that_is_there_twice_is_refused_with_both_processes() -> None:
    three = replace(FIRST, world_size=3)
    found = meet(
        "twice", three, replace(SECOND, world_size=3), replace(SECOND, world_size=3), gpus=("", "", ""), timeout_s=3
    )
    failures = [str(failure) for failure in found if isinstance(failure, Failure)]
    assert any("two processes say that they are rank 1" in text for text in failures)


def test_a_second_rank_0_is_refused_rather_than_given_a_store_of_its_own() -> None:
    found = meet("two zeros", FIRST, FIRST, timeout_s=3)
    assert any("two processes say that they are rank 0" in str(failure) for failure in found)


def test_two_ranks_on_one_gpu_are_both_named() -> None:
    for failure in meet("one gpu", FIRST, SECOND, gpus=("GPU-fake-0", "GPU-fake-0")):
        assert isinstance(failure, Failure)
        assert failure.what == "ranks 0 and 1 use the same GPU"
        assert failure.code == 76


def test_gpus_beside_cpus_are_refused_with_the_host_that_has_none() -> None:
    for failure in meet("mixed", FIRST, SECOND, gpus=("GPU-fake-0", "")):
        assert isinstance(failure, Failure)
        assert (failure.code, f"rank 1 on {socket.gethostname()}" in str(failure.found)) == (76, True)


def test_each_rank_with_its_own_gpu_is_accepted() -> None:
    assert not any(
        isinstance(found, Failure) for found in meet("gpus", FIRST, SECOND, gpus=("GPU-fake-0", "GPU-fake-1"))
    )


def test_ranks_that_disagree_about_the_world_are_refused() -> None:
    found = meet("disagree", FIRST, replace(SECOND, world_size=4), timeout_s=3)
    assert any("disagree about the number of ranks" in str(failure) for failure in found)


def test_who_waits_is_told_why_another_refused_to_take_part() -> None:
    found = meet("told", FIRST, replace(SECOND, world_size=4), timeout_s=60)
    assert all("disagree about the number of ranks" in str(failure) for failure in found)


def test_a_rank_that_does_not_come_is_named() -> None:
    (failure,) = meet("missing", FIRST, gpus=("",), timeout_s=1)
    assert "missing 1" in str(failure)
    assert failure.code == 69  # type: ignore[attr-defined]


def test_the_host_of_a_rank_that_does_not_come_is_named_where_the_launcher_tells_the_hosts() -> None:
    (failure,) = meet("missing host", APART, gpus=("",), timeout_s=1, hosts=(socket.gethostname(), "node02"))
    assert "missing 1, and no rank came from node02" in str(failure)


# Rank 0 gives the others up after a second. While it loads torch it beats: that may take longer than the parent waits.
# Rank 1 is stopped before it has looked for the others.
STOPPED_EARLY = """
import os, signal, threading
from entrypoint import attach_heartbeat, world_from_environ
pulse = attach_heartbeat(os.environ)
world = world_from_environ(os.environ)
if world.rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
loaded = threading.Event()
def beat():
    while not loaded.wait(0.2):
        pulse.beat("start")
threading.Thread(target=beat, daemon=True).start()
from train.distributed.rendezvous import connect  # seconds on a busy machine: the beats go on meanwhile
loaded.set()
try:
    connect(world, os.environ, 1.0)
finally:
    os._exit(69)
"""


def test_a_rank_that_is_stopped_before_all_have_met_is_a_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("entrypoint.hang.START_SLACK_S", 5.0)
    here, options = machine(), LaunchOptions(device="cpu", procs_per_node=2)
    found = plan_allocation(detect_allocation({}, options, here), options, here, {})
    limits = HangTimeouts(start=0, step=60, evaluation=60, save=60, data=60)
    care = SupervisionPolicy(
        limits=limits,
        errors=RunErrors(tmp_path),
    )
    command = [sys.executable, "-c", STOPPED_EARLY]
    assert run_plan(found, command, dict(os.environ), log_dir=tmp_path, foreign=False, policy=care) == 91
    (blamed,) = (error for error in RunErrors(tmp_path).read() if error.failure.code == 91)
    assert (blamed.rank, blamed.host) == (1, here.hostname)
    assert blamed.failure.what.startswith(
        f"rank 1 of 2 ({here.hostname}) has finished no step, is stopped and sits in the start"
    )


def test_a_store_that_never_opens_is_named_with_host_and_ports() -> None:
    (failure,) = meet("nobody", SECOND, gpus=("",), timeout_s=1)
    assert "refused: nothing listens" in str(failure)
    assert str(candidates("nobody")[0]) in str(failure)


@pytest.mark.usefixtures("short_store_timeout")
def test_a_program_that_accepts_and_stays_silent_is_passed_over() -> None:
    with socket.create_server(("127.0.0.1", candidates("mute")[0])):
        stores = meet("mute", FIRST, SECOND)
    assert stores[1].port == candidates("mute")[1]  # type: ignore[attr-defined]


def test_torchruns_own_store_is_joined_and_kept_apart_by_restart() -> None:
    agent = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=5))
    worlds = [replace(world, master_port=agent.port) for world in (FIRST, SECOND)]
    stores = meet("agent", *worlds, agent_store=True, restarts="2")
    stores[0].set("key", "value")  # type: ignore[attr-defined]
    assert agent.get("train/attempt-2/key") == b"value"
