"""`make preempt` at a smaller size: what test_signals.py does not do yet, each once, on this folder's nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from bed import Cluster
from dead_ends import DEAD_ENDS, trial
from interruptions import Bench, bench, interrupted
from strikes import GENTLE, HARSH
from trials import Trial

AT_ONCE = 3  # trainings of two ranks
KEPT = ("time limit without a signal", "scontrol requeue", "TERM again during the save")
REFUSED = ("killed at the same step in each start", "two submissions of one run", "run folder not visible")


@pytest.fixture(scope="module")
def stage(cluster: Cluster, place: Callable[[str], str]) -> Iterator[Bench]:
    with ThreadPoolExecutor(1) as pool:
        yield bench(cluster, place, pool)


@pytest.fixture(scope="module")
def found(stage: Bench) -> Iterator[dict[str, Future[Trial]]]:
    """All at once, as far as the machine can: they wait for Slurm most of the time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        kept = {one.name: pool.submit(interrupted, stage, one) for one in GENTLE if one.name in KEPT}
        refused = {one.name: pool.submit(trial, stage, one) for one in DEAD_ENDS if one.name in REFUSED}
        yield kept | refused


@pytest.mark.parametrize("name", KEPT)
def test_a_job_that_is_told_to_stop_loses_no_step_and_no_bit(found: dict[str, Future[Trial]], name: str) -> None:
    seen = found[name].result(280)
    assert seen.ok, seen


@pytest.mark.parametrize("name", REFUSED)
def test_a_job_that_must_not_go_on_ends_with_its_code(found: dict[str, Future[Trial]], name: str) -> None:
    seen = found[name].result(280)
    assert seen.ok, seen


def test_a_job_goes_on_without_the_node_that_was_cut_off(stage: Bench, found: dict[str, Future[Trial]]) -> None:
    for other in found.values():
        other.exception(280)  # they need the nodes
    seen = interrupted(stage, next(one for one in HARSH if one.name == "link cut"))
    stage.cluster.heal("node01", "node02", "node03")
    assert seen.ok, seen
