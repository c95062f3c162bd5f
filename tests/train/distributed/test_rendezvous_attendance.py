"""Signing in, one rank after the other, at a store in memory."""

from __future__ import annotations

import socket
import time
from dataclasses import replace

import pytest
from attending import signed
from torch import distributed as dist
from worlds import APART, FIRST, SECOND

from entrypoint import ExitCode, Failure, World
from entrypoint.hang import PEER_ANSWER_TIMEOUT_S, START_SLACK_S
from train.distributed import rendezvous


def waited(
    store: dist.Store, seconds: float = 5.0, world: World = FIRST, hosts: tuple[str, ...] = ()
) -> list[dict[str, object]]:
    return rendezvous.wait_for_all_ranks(store, world, time.monotonic() + seconds, lambda: None, hosts)


def test_everyone_is_listed_in_the_order_of_the_ranks() -> None:
    who = waited(signed((SECOND, "GPU-fake-1"), (FIRST, "GPU-fake-0")))
    assert [one["gpu"] for one in who] == ["GPU-fake-0", "GPU-fake-1"]


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


def test_a_rank_of_the_same_host_is_waited_for_after_the_deadline() -> None:
    store = signed((FIRST, ""))
    who = rendezvous.wait_for_all_ranks(
        store, FIRST, time.monotonic(), lambda: rendezvous.register_rank(store, SECOND, "")
    )
    assert len(who) == 2


@pytest.mark.parametrize(("rank", "near"), [(0, False), (3, False), (4, True), (7, True), (8, False)])
def test_ranks_of_a_host_are_neighbours(rank: int, near: bool) -> None:
    assert rendezvous.is_on_same_host(rank, replace(FIRST, rank=5, world_size=12, local_world_size=4)) is near


def test_the_parents_find_a_hang_before_a_rank_gives_its_neighbour_up() -> None:
    assert rendezvous.SAME_HOST_GRACE_S > START_SLACK_S + PEER_ANSWER_TIMEOUT_S


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


def test_two_ranks_on_one_gpu_are_both_named() -> None:
    with pytest.raises(Failure, match="ranks 0 and 1 use the same GPU") as caught:
        rendezvous.refuse_conflicting_ranks(waited(signed((FIRST, "GPU-fake-0"), (SECOND, "GPU-fake-0"))), FIRST)
    assert caught.value.code == ExitCode.LAUNCH_CONFLICT


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
