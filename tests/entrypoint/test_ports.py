"""All tasks of a launch come to the same ports, and two launches to others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from entrypoint import plan


@given(st.text(max_size=30))
def test_candidates_are_distinct_and_below_the_ephemeral_range(launch_id: str) -> None:
    ports = plan.candidate_ports(launch_id)
    assert len(set(ports)) == len(ports) == plan.NUM_CANDIDATE_PORTS
    assert all(20_000 <= port < 32_768 for port in ports)


def test_all_tasks_of_a_launch_derive_the_same_candidates() -> None:
    assert plan.candidate_ports("slurm:7.0.0") == plan.candidate_ports("slurm:7.0.0")


def test_two_jobs_on_a_node_derive_different_candidates() -> None:
    assert plan.candidate_ports("slurm:7.0.0") != plan.candidate_ports("slurm:8.0.0")


def test_ports_of_neighbouring_jobs_rarely_meet() -> None:
    firsts = [plan.candidate_ports(f"slurm:{job}.0.0")[0] for job in range(2000)]
    assert len(set(firsts)) > 1800  # of 12,768 ports: 1852 if they were drawn


def test_a_narrow_range_gives_each_of_its_ports_once() -> None:
    assert sorted(plan.candidate_ports("k", (30_000, 30_002))) == [30_000, 30_001, 30_002]
