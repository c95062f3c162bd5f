"""Several processes for a command: results in order, and failures as in one process."""

from __future__ import annotations

import os
import signal

import pytest

from entrypoint import ExitCode, Failure
from train.data.process_pool import map_in_processes


def double(number: int) -> int:
    if number == 13:
        raise Failure("no thirteen", found="13", fix="leave it out", code=ExitCode.DATA)
    if number == 99:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * number


@pytest.mark.parametrize("processes", [1, 2])
def test_results_come_in_order(processes: int) -> None:
    assert list(map_in_processes(double, range(10), processes)) == list(range(0, 20, 2))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_failure_is_that_of_the_process(processes: int) -> None:
    with pytest.raises(Failure, match="no thirteen") as caught:
        list(map_in_processes(double, [1, 13, 2], processes))
    assert (caught.value.code, caught.value.found, caught.value.fix) == (65, "13", "leave it out")


def test_a_process_that_is_killed_is_said() -> None:
    with pytest.raises(Failure, match="was killed") as caught:
        list(map_in_processes(double, [1, 99, 2], 2))
    assert caught.value.code == 69
