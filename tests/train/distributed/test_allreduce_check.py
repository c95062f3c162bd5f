"""`python -m train.distributed.allreduce_check`, started as the doctor starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import worlds
from processes import python

from entrypoint.world import world_to_environ


def test_two_ranks_leave_what_they_measured(tmp_path: Path) -> None:
    run = ["-m", "entrypoint", "run", "--logs", str(tmp_path), "--device", "cpu", "--procs-per-node", "2", "--"]
    done = python(
        *run, sys.executable, "-m", "train.distributed.allreduce_check", "--result", str(tmp_path / "result.json")
    )
    assert done.returncode == 0, done.stdout + done.stderr
    recorded = json.loads((tmp_path / "result.json").read_text())
    assert (recorded["backend"], recorded["ranks"], recorded["device"], recorded["interface"]) == (
        "gloo",
        2,
        "cpu",
        "lo",
    )
    assert recorded["bytes_per_s"] > 0


def test_the_wait_for_others_ends_before_the_alarm_however_long_torch_takes_to_load() -> None:
    """In a process of its own: loading torch takes 16 s by a clock that is made up."""
    code = (
        "import os; from train.distributed import allreduce_check as check; from train.distributed import rendezvous\n"
        "seconds = iter([100.0, 116.0])\n"
        "check.time.monotonic = lambda: next(seconds)\n"
        "check.start_timer = lambda limit_s, ring: None\n"
        "rendezvous.connect = lambda world, environ, patience, uuid: exit(str(patience))\n"
        "check.check_all_reduce(['--timeout', '30'], os.environ)"
    )
    assert python("-c", code, environ=world_to_environ(worlds.ALONE)).stderr == "7.0\n"


def test_without_a_place_it_says_how_to_start_it() -> None:
    done = python("-m", "train.distributed.allreduce_check")
    assert done.returncode == 76
    assert "entrypoint run" in done.stderr


def test_the_alarm_ends_a_process_that_hangs() -> None:
    code = (
        "import threading; from train.distributed import allreduce_check as check; "
        "check.start_timer(0.01, lambda: check.exit_as_hung('rank 3 of 4', 0.01)); threading.Event().wait()"
    )
    done = python("-c", code)
    assert done.returncode == 91
    assert "ERROR[91] rank 3 of 4 was not done after 0.01 s" in done.stderr


def test_an_alarm_that_is_taken_back_does_not_ring() -> None:
    code = (
        "from train.distributed import allreduce_check as check; "
        "check.start_timer(60.0, lambda: check.exit_as_hung('rank 0 of 1', 60.0)).cancel(); print('done')"
    )
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (0, "done\n")
