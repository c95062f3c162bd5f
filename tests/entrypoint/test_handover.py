"""What a parent tells its ranks comes back from one variable, for the largest jobs too."""

from __future__ import annotations

import json
import random

import pytest

from entrypoint.errors import Failure
from entrypoint.handover import HANDOVER_VARIABLE, Handover

FULL = Handover(
    launch_id="slurm:7.0.0",
    job="slurm:7.0.0 openmpi:a@1",
    launcher="slurm-node",
    hosts=("node09", "node10", "login"),
    ports=(20001, 31000),
    sources={"rank": "SLURM_PROCID"},
    added=("OMP_NUM_THREADS",),
    one_host=True,
    agent_store=True,
    terminal=True,
)


@pytest.mark.parametrize("handover", [FULL, Handover()])
def test_a_handover_comes_back_as_it_was(handover: Handover) -> None:
    assert Handover.from_environ(handover.to_environ()) == handover


def test_a_process_without_a_parent_of_ours_gets_the_defaults() -> None:
    assert Handover.from_environ({}) == Handover.from_environ({HANDOVER_VARIABLE: ""}) == Handover()


PARTS = ("", "node", "10.0.0.", "n[", "x,", "0", "7", "09", "99", "099", "9" * 18, "9" * 30, "-ib", "٣", "fe80::")


@pytest.mark.parametrize("seed", range(100))
def test_any_hosts_come_back_in_their_order(seed: int) -> None:
    draw = random.Random(seed)
    numbers = range(start := draw.choice((0, 8, 98)), start + draw.randint(0, 5))
    hosts = [f"{draw.choice(PARTS)}{number:0{draw.randint(1, 3)}}" for number in numbers]
    hosts += ["".join(draw.choices(PARTS, k=3)) for _ in range(draw.randint(0, 5))]
    handover = Handover(hosts=tuple(hosts))
    assert Handover.from_environ(handover.to_environ()) == handover


def test_the_hosts_of_the_largest_job_fit_into_a_variable() -> None:
    """execve takes 128 KiB for one; the names alone would be 800."""
    hosts = tuple(f"rack{rack:03}-node{node:02}" for rack in range(512) for node in range(128))
    handover = Handover(hosts=hosts)
    (text,) = handover.to_environ().values()
    assert len(text) < 128 << 10
    assert Handover.from_environ({HANDOVER_VARIABLE: text}) == handover


def test_full_host_names_without_order_fit_into_a_variable() -> None:
    draw = random.Random(0)
    drawn = [f"ip-10-{draw.randrange(256)}-{draw.randrange(256)}-{draw.randrange(256)}" for _ in range(4000)]
    handover = Handover(hosts=tuple(f"{name}.us-west-2.compute.internal" for name in drawn))
    (text,) = handover.to_environ().values()
    assert len(text) < 128 << 10
    assert Handover.from_environ({HANDOVER_VARIABLE: text}) == handover


@pytest.mark.parametrize("name", ["launch_id", "launcher", "job"])
def test_a_number_for_a_name_is_refused(name: str) -> None:
    values = json.loads(FULL.to_environ()[HANDOVER_VARIABLE])
    with pytest.raises(Failure, match="set by hand"):
        Handover.from_environ({HANDOVER_VARIABLE: json.dumps(values | {name: 5})})


def test_a_handover_of_another_version_is_refused_with_what_to_unset() -> None:
    values = json.loads(FULL.to_environ()[HANDOVER_VARIABLE])
    with pytest.raises(Failure, match="of another version") as caught:
        Handover.from_environ({HANDOVER_VARIABLE: json.dumps(values | {"version": 2})})
    assert caught.value.code == 76
    assert f"unset {HANDOVER_VARIABLE} RANK" in caught.value.fix


@pytest.mark.parametrize(
    "text", ["nonsense", "[1]", "1", "{}", '{"version": 1}', "[" * 9999, '{"version": 1, "no": 1}']
)
def test_what_no_parent_of_ours_writes_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="set by hand"):
        Handover.from_environ({HANDOVER_VARIABLE: text})
