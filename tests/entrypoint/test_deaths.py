"""What the user reads of a rank that could not say it itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrypoint import supervise
from entrypoint.run_errors import RunErrors

LOST = {"code": 69, "what": "another rank is gone", "found": "Connection closed by peer [10.0.0.2]:4117"}
KILLED = {"code": 69, "what": "rank 3 of 4 (node02, pid 7) was killed by SIGKILL", "killed": True, "symptom": False}


def leave(errors: Path, rank: int, facts: dict[str, object]) -> None:
    (errors / f"rank-{rank:04d}.json").write_text(json.dumps(facts | {"rank": rank, "host": f"node0{1 + rank // 2}"}))


@pytest.mark.parametrize(("signum", "name"), [(9, "SIGKILL"), (7, "SIGBUS"), (40, "signal 40")])
def test_a_death_names_its_signal(signum: int, name: str) -> None:
    assert f"was killed by {name}" in supervise.killed_by_signal_failure("rank 1 of 2", signum).what


def test_a_rank_that_torch_ended_for_an_error_of_its_gpu_is_a_bad_node() -> None:
    lines = [
        "terminate called after throwing an instance of 'c10::AcceleratorError'",
        "  what():  CUDA error: uncorrectable ECC error encountered",
        "Exception raised from c10_cuda_check_implementation",
    ]
    failure = supervise.cuda_abort_failure("rank 1 of 2", "node02", lines)
    assert failure is not None
    assert (failure.code, failure.found) == (78, "CUDA error: uncorrectable ECC error encountered")
    assert "--exclude=node02" in failure.fix


@pytest.mark.parametrize(
    "line",
    ["terminate called without an active exception", "CUDA error: device-side assert triggered", "CUDA error: a word"],
    ids=["no error of CUDA's", "an error of the program's", "printed by a rank that torch did not end"],
)
def test_any_other_abort_blames_no_node(line: str) -> None:
    aborted = "terminate called after throwing an instance of 'c10::Error'" if "assert" in line else ""
    assert supervise.cuda_abort_failure("rank 1 of 2", "node02", [aborted, line]) is None


LAST_LINES = {
    "what():  [enforce fail at gloo/transport/tcp/listener.cc:68] false. accept: Too many open files": "ulimit -n",
    "what():  Resource temporarily unavailable": "ulimit -u",
    "cannot allocate memory for thread-local data: ABORT": "ulimit -v",
    "terminate called after throwing an instance of 'std::bad_alloc'": "ulimit -v",
}


@pytest.mark.parametrize("line", LAST_LINES)
def test_a_rank_that_a_library_ended_for_a_limit_is_a_want_of_resources(line: str) -> None:
    failure = supervise.limit_failure("rank 1 of 2", ["step 3", line])
    assert failure is not None
    assert (failure.code, failure.found, LAST_LINES[line] in failure.fix) == (71, line, True)
    assert failure.what.startswith("rank 1 of 2 has ended: the system")
    assert supervise.limit_failure("rank 1 of 2", ["step 3", "Segmentation fault"]) is None


def test_the_cause_that_another_task_has_left_is_named_with_its_host(tmp_path: Path) -> None:
    leave(tmp_path, 0, LOST)
    leave(tmp_path, 3, KILLED)
    assert (
        supervise.describe_remote_cause(RunErrors(tmp_path), {0, 1})
        == f"the cause is on node02, rank 3: {KILLED['what']}"
    )


def test_who_only_lost_a_peer_is_no_cause(tmp_path: Path) -> None:
    leave(tmp_path, 2, LOST)
    assert supervise.describe_remote_cause(RunErrors(tmp_path), {0, 1}) is None


def test_a_file_that_is_being_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank-0002.json").write_text('{"code": 6')
    assert supervise.describe_remote_cause(RunErrors(tmp_path), {0, 1}) is None


def test_a_silent_host_is_named_by_the_address_that_was_lost(tmp_path: Path) -> None:
    leave(tmp_path, 0, LOST)
    addresses = {"node01": "10.0.0.1", "node02": "10.0.0.2"}
    description = supervise.describe_lost_host(RunErrors(tmp_path), [0, 1], addresses, addresses.__getitem__)
    assert description == "the lost rank is on node02, which reported nothing"
