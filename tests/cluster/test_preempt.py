"""`make preempt` at a smaller size: what test_signals.py does not do yet, each once, on this folder's nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from bed import Cluster
from dead_ends import DEAD_ENDS, trial
from interruptions import bench, interrupted
from strikes import GENTLE, HARSH
from trials import Trial

AT_ONCE = 4  # trainings of two ranks
KEPT = ("time limit without a signal", "scontrol requeue", "TERM again during the save", "link cut")
REFUSED = ("killed at the same step in each start", "two submissions of one run", "run folder not visible")
ENDS_S = 500

Found = dict[str, Future[Trial]]


@pytest.fixture(scope="module")
def found(cluster: Cluster, place: Callable[[str], str]) -> Iterator[Found]:
    """All at once, as far as the machine can: they wait for Slurm most of the time."""
    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        stage = bench(cluster, place, pool)
        kept = {one.name: pool.submit(interrupted, stage, one) for one in (*HARSH, *GENTLE) if one.name in KEPT}
        refused = {one.name: pool.submit(trial, stage, one) for one in DEAD_ENDS if one.name in REFUSED}
        yield kept | refused
    cluster.heal("node01", "node02", "node03")


@pytest.mark.parametrize("name", KEPT)
def test_a_job_that_is_interrupted_loses_no_more_than_was_promised_and_no_bit(found: Found, name: str) -> None:
    seen = found[name].result(ENDS_S)
    assert seen.ok, seen


@pytest.mark.parametrize("name", REFUSED)
def test_a_job_that_must_not_go_on_ends_with_its_code(found: Found, name: str) -> None:
    seen = found[name].result(ENDS_S)
    assert seen.ok, seen
