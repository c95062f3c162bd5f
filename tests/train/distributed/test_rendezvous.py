"""All ranks at one store: here each rank is a thread with a store connection, or signs in at a store in memory."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from attending import signed
from machines import machine
from processes import candidates, free_port, own_launch_id, start_python
from runs import TEN_STEPS
from torch import distributed as dist
from worlds import APART, FIRST, SECOND

from entrypoint import (
    ExitCode,
    Failure,
    Handover,
    HangTimeouts,
    LaunchOptions,
    SupervisionPolicy,
    World,
    network,
    run_plan,
)
from entrypoint.hang import PEER_ANSWER_TIMEOUT_S, START_SLACK_S
from entrypoint.launchers import detect_allocation
from entrypoint.plan import plan_allocation
from entrypoint.run_errors import RunErrors
from train.distributed import rendezvous
from train.distributed.rendezvous import SAME_HOST_GRACE_S, ClockReading, clock_skew_warnings, connect

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)  # Debian's libfaketime


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

    def join(world: World, gpu: str) -> object:
        try:
            return connect(world, variables, timeout_s, gpu)
        except Failure as failure:
            return failure

    with ThreadPoolExecutor(len(worlds)) as pool:
        return list(pool.map(join, worlds, gpus))


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
    outcomes = meet(
        "twice", three, replace(SECOND, world_size=3), replace(SECOND, world_size=3), gpus=("", "", ""), timeout_s=3
    )
    failures = [str(failure) for failure in outcomes if isinstance(failure, Failure)]
    assert any("two processes say that they are rank 1" in text for text in failures)


def test_a_second_rank_0_is_refused_rather_than_given_a_store_of_its_own() -> None:
    outcomes = meet("two zeros", FIRST, FIRST, timeout_s=3)
    assert any("two processes say that they are rank 0" in str(failure) for failure in outcomes)


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
        isinstance(outcome, Failure) for outcome in meet("gpus", FIRST, SECOND, gpus=("GPU-fake-0", "GPU-fake-1"))
    )


def test_ranks_that_disagree_about_the_world_are_refused() -> None:
    outcomes = meet("disagree", FIRST, replace(SECOND, world_size=4), timeout_s=3)
    assert any("disagree about the number of ranks" in str(failure) for failure in outcomes)


def test_who_waits_is_told_why_another_refused_to_take_part() -> None:
    outcomes = meet("told", FIRST, replace(SECOND, world_size=4), timeout_s=60)
    assert all("disagree about the number of ranks" in str(failure) for failure in outcomes)


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
    plan = plan_allocation(detect_allocation({}, options, here), options, here, {})
    limits = HangTimeouts(start=0, step=60, evaluation=60, save=60, data=60)
    care = SupervisionPolicy(
        limits=limits,
        errors=RunErrors(tmp_path),
    )
    command = [sys.executable, "-c", STOPPED_EARLY]
    assert run_plan(plan, command, dict(os.environ), log_dir=tmp_path, foreign=False, policy=care) == 91
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


def waited(
    store: dist.Store, seconds: float = 5.0, world: World = FIRST, hosts: tuple[str, ...] = ()
) -> list[dict[str, object]]:
    return rendezvous.wait_for_all_ranks(store, world, time.monotonic() + seconds, lambda: None, hosts)


def test_everyone_is_listed_in_the_order_of_the_ranks() -> None:
    who = waited(signed((SECOND, "GPU-fake-1"), (FIRST, "GPU-fake-0")))
    assert [rank["gpu"] for rank in who] == ["GPU-fake-0", "GPU-fake-1"]


def test_the_same_rank_twice_is_refused() -> None:
    with pytest.raises(Failure, match="two processes say that they are rank 1") as caught:
        signed((SECOND, ""), (SECOND, ""))
    assert caught.value.code == ExitCode.LAUNCH_CONFLICT


def test_another_number_of_ranks_is_refused_with_both() -> None:
    with pytest.raises(Failure, match="disagree about the number of ranks") as caught:
        signed((FIRST, ""), (replace(SECOND, world_size=4), ""))
    assert "2 says rank 0" in str(caught.value.found)
    assert "4 says rank 1" in str(caught.value.found)


def test_a_rank_that_does_not_come_is_named() -> None:
    with pytest.raises(Failure, match="missing 1\n") as caught:
        waited(signed((APART, "")), 0.2, APART)
    assert caught.value.code == ExitCode.PEER


@pytest.mark.parametrize("domain", ["", ".example.org"])
def test_a_host_from_which_no_rank_came_is_named(domain: str) -> None:
    hosts = (socket.gethostname() + domain, "node02")
    with pytest.raises(Failure, match="missing 1, and no rank came from node02\n"):
        waited(signed((APART, "")), 0.2, APART, hosts)


def test_no_host_is_named_where_ranks_call_theirs_otherwise_than_the_launcher() -> None:
    with pytest.raises(Failure, match="missing 1\n"):
        waited(signed((APART, "")), 0.2, APART, ("an-alias", "node02"))


def test_a_rank_of_the_same_host_is_waited_for_after_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "SAME_HOST_GRACE_S", SAME_HOST_GRACE_S)
    store = signed((FIRST, ""))
    who = rendezvous.wait_for_all_ranks(
        store, FIRST, time.monotonic(), lambda: rendezvous.register_rank(store, SECOND, "")
    )
    assert len(who) == 2


@pytest.mark.parametrize(("rank", "near"), [(0, False), (3, False), (4, True), (7, True), (8, False)])
def test_ranks_of_a_host_are_neighbours(rank: int, near: bool) -> None:
    assert rendezvous.is_on_same_host(rank, replace(FIRST, rank=5, world_size=12, local_world_size=4)) is near


def test_the_parents_find_a_hang_before_a_rank_gives_its_neighbour_up() -> None:
    assert SAME_HOST_GRACE_S > START_SLACK_S + PEER_ANSWER_TIMEOUT_S


def test_who_waits_is_told_why_another_does_not_take_part() -> None:
    store = signed((FIRST, ""))
    rendezvous.publish_refusal(store, rendezvous.duplicate_rank_failure(1, "a and b"))
    with pytest.raises(Failure, match="two processes say that they are rank 1") as caught:
        waited(store)
    assert caught.value.found == "a and b"


def test_what_happens_elsewhere_is_looked_at_while_ranks_are_missing() -> None:
    def look() -> None:
        raise rendezvous.duplicate_rank_failure(0, "here and there")

    with pytest.raises(Failure, match="rank 0"):
        rendezvous.wait_for_all_ranks(signed((FIRST, "")), FIRST, time.monotonic() + 60, look)


@pytest.mark.parametrize("gpus", [("GPU-fake-0", "GPU-fake-1"), ("", "")], ids=["a-gpu-each", "on-the-cpu"])
def test_ranks_that_agree_are_let_through(gpus: tuple[str, str]) -> None:
    rendezvous.refuse_conflicting_ranks(waited(signed((FIRST, gpus[0]), (SECOND, gpus[1]))), FIRST)


@pytest.mark.parametrize(("world", "lines"), [(APART, 1), (replace(APART, rank=1, node_rank=1), 0)])
def test_a_rank_that_is_late_is_said_once_and_by_rank_0_alone(
    world: World, lines: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A real store, since torch logs two lines for each of its waits that times out."""
    monkeypatch.setattr(rendezvous, "_WAITING_NOTE_AFTER_S", 0.0)
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    rendezvous.register_rank(store, world, "")
    with pytest.raises(Failure, match=f"missing {1 - world.rank}\n"):
        waited(store, 3.0, world)
    written = capfd.readouterr().err.splitlines()
    assert written == [f"waiting for 1 of 2 ranks: {1 - world.rank}"] * lines


def warnings_of(*seconds: float, nodes: Sequence[int] = (0, 1, 2, 3)) -> tuple[str, ...]:
    readings = [ClockReading(node=n, host=f"node{n}", seconds=s) for n, s in zip(nodes, seconds, strict=False)]
    return clock_skew_warnings(readings)


@pytest.mark.parametrize("seconds", [(5.0,), (5.0, 5.0), (5.0, 6.9, 3.1)])
def test_two_seconds_are_nothing(seconds: Sequence[float]) -> None:
    assert warnings_of(*seconds) == ()


def test_who_is_ahead_and_who_behind_is_named_on_one_line() -> None:
    (line,) = warnings_of(100.0, 160.0, 100.5, 40.0)
    assert line.startswith("clocks differ: node1 is 60.0 s ahead of node0, node3 is 60.0 s behind node0; ")


def test_a_node_is_named_once() -> None:
    (line,) = warnings_of(100.0, 100.0, 160.0, 160.0, nodes=(0, 0, 1, 1))
    assert line.count("node1") == 1


def started(folder: Path, node: int, port: int, **environ: str) -> Popen[str]:
    nodes = ("--nodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port))
    words = ("-m", "train", "--config", "ten.yaml", "--device", "cpu", *nodes, "train.max_steps=3")
    return start_python(*words, cwd=folder, environ=environ)


@pytest.mark.slow
@pytest.mark.skipif(FAKETIME is None, reason="machine: libfaketime is not installed")
def test_a_clock_that_is_an_hour_ahead_is_said_and_the_run_ends_well(tmp_path: Path) -> None:
    (tmp_path / "ten.yaml").write_text(TEN_STEPS)
    # Both of its clocks: with the wall clock alone, a wait until a moment lasts an hour now and then.
    fake = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+3600s"}
    port = free_port()
    with started(tmp_path, 0, port) as first, started(tmp_path, 1, port, **fake) as second:
        try:
            printed, other = first.communicate(timeout=200)[0], second.communicate(timeout=60)[0]
        finally:
            first.kill()
            second.kill()
    assert (first.returncode, second.returncode) == (0, 0), printed + other
    match = re.search(r"clocks differ: \S+ is ([\d.]+) s ahead of ", printed)
    assert match, printed
    assert float(match[1]) == pytest.approx(3600, abs=60)
