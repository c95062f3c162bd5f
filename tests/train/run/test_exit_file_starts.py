"""Each start is in the record from the moment its step is known, and a job that gets nowhere is told so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from entrypoint import ExitCode, Failure
from entrypoint.run_errors import DEADLINE_CAUSE, ExitRecord, RunErrors
from train import file_lock
from train.run import record

JOB = {"SLURM_JOB_ID": "7"}


def begin(folder: Path, step: int = 120, holder_token: str | None = None, **environ: str) -> None:
    record.add_start(
        folder,
        step,
        environ=JOB if not environ and not holder_token else environ,
        holder_token=holder_token,
        started_at=0.0,
    )


def in_vain(folder: Path, *, times: int, **options: Any) -> None:
    for _ in range(times):
        begin(folder, **options)


def ended(folder: Path, *codes: int, step: int = 120) -> None:
    """Starts of the job that ended so."""
    for code in codes:
        me = file_lock.this_process_as_holder(job="7")
        record.add_start(folder, step, environ=JOB, holder_token=me.token, started_at=0.0)
        record.write_start_exit(folder, code, me)


def recorded(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / record.RUN_FILE).read_text())["starts"]
    return found


def test_a_start_is_in_the_record_as_soon_as_its_step_is_known(tmp_path: Path) -> None:
    begin(tmp_path, holder_token="a", SLURM_JOB_ID="7")
    (start,) = recorded(tmp_path)
    assert start == {"at": "1970-01-01T00:00:00+00:00", "step": 120, "job": "7", "launch": "a"}


def test_the_rest_of_the_record_stays(tmp_path: Path) -> None:
    (tmp_path / record.RUN_FILE).write_text('{"git": "abc", "starts": [{"step": 0}]}')
    begin(tmp_path)
    found = record.read_run(tmp_path) or {}
    assert (found["git"], len(found["starts"])) == ("abc", 2)


def test_the_fourth_start_of_a_job_at_one_step_is_refused_and_tells_what_the_others_left(tmp_path: Path) -> None:
    ended(tmp_path, 69, 91)
    begin(tmp_path)
    with pytest.raises(Failure) as caught:
        begin(tmp_path)
    assert caught.value.code == ExitCode.NO_PROGRESS
    assert "began at step 120" in caught.value.what
    for word in ("exit code 69", "exit code 91", "left no word"):
        assert word in (caught.value.found or "")
    assert len(recorded(tmp_path)) == 3


def test_three_starts_are_not_yet_in_vain(tmp_path: Path) -> None:
    in_vain(tmp_path, times=3)


def test_a_start_that_came_further_counts_for_the_job(tmp_path: Path) -> None:
    in_vain(tmp_path, times=3, step=100)
    in_vain(tmp_path, times=3, step=120)


def test_a_new_job_is_not_refused(tmp_path: Path) -> None:
    in_vain(tmp_path, times=3)
    begin(tmp_path, SLURM_JOB_ID="8")


def test_the_jobs_of_a_chain_are_one_job(tmp_path: Path) -> None:
    for number in range(7, 10):
        begin(tmp_path, PBS_JOBID=f"{number}.pbs", ENTRYPOINT_JOB_CHAIN="7.pbs")
    with pytest.raises(Failure, match="no progress"):
        begin(tmp_path, PBS_JOBID="10.pbs", ENTRYPOINT_JOB_CHAIN="7.pbs")


def test_starts_by_hand_are_never_refused(tmp_path: Path) -> None:
    for number in range(5):
        begin(tmp_path, holder_token=f"by hand {number}")


def test_restarts_in_place_are_one_job(tmp_path: Path) -> None:
    in_vain(tmp_path, times=3, holder_token="one parent")
    with pytest.raises(Failure, match="no progress"):
        begin(tmp_path, holder_token="one parent")


@pytest.mark.parametrize("code", [0, 75])
def test_a_start_that_ended_in_order_is_none_in_vain(tmp_path: Path, code: int) -> None:
    ended(tmp_path, 69, code, 69, code, code)
    begin(tmp_path)
    with pytest.raises(Failure, match="no progress"):
        begin(tmp_path)


def test_starts_whose_time_was_up_before_they_came_further_are_in_vain(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).write_exit(code=75, step=120, cause=DEADLINE_CAUSE)
    ended(tmp_path, 75, 75, 75)
    with pytest.raises(Failure, match="no progress"):
        begin(tmp_path)


def test_a_start_that_died_before_its_step_was_known_counts_too(tmp_path: Path) -> None:
    for _ in range(3):
        record.write_start_exit(tmp_path, 69, file_lock.this_process_as_holder(job="7"))
    with pytest.raises(Failure, match="no progress"):
        begin(tmp_path)


@pytest.mark.parametrize("code", [0, 75])
def test_a_start_that_was_stopped_before_its_step_was_known_leaves_no_record(tmp_path: Path, code: int) -> None:
    record.write_start_exit(tmp_path, code, file_lock.this_process_as_holder())
    assert list(tmp_path.iterdir()) == []


def test_the_end_of_a_start_tells_the_code_and_its_cause(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).write_exit(code=69, step=3, cause="rank 1 was killed")
    ended(tmp_path, 69)
    assert recorded(tmp_path)[-1]["ended"] == {"code": 69, "cause": "rank 1 was killed"}


DONE = {"step": 0, "world_size": 1, "ended": {"code": 0, "cause": "finished"}}
REFUSED = {"step": None, "ended": {"code": 65, "cause": "another config"}}
OTHER_DATA = {"step": 8, "ended": {"code": 65, "cause": "other data"}}
KILLED = {"step": 0, "world_size": 1}
IDLE = {"step": 8, "idle": True}


def ending(code: int, cause: str, step: int | None = None) -> ExitRecord:
    return ExitRecord(code=code, step=step, cause=cause)


@pytest.mark.parametrize(
    ("before", "said", "told"),
    [
        ([DONE], ending(0, "finished", 8), ending(0, "finished", 8)),
        ([DONE, REFUSED], ending(65, "another config"), ending(0, "finished")),
        ([DONE, REFUSED, OTHER_DATA], ending(65, "other data"), ending(0, "finished")),
        ([DONE], ending(75, "SIGTERM"), ending(0, "finished")),
        ([KILLED], ending(0, "finished", 8), ending(0, "finished", 8)),
        ([KILLED, REFUSED], ending(65, "another config"), None),
        ([DONE, KILLED], None, None),
        ([DONE, IDLE], None, ending(0, "finished")),
        ([DONE, {**IDLE, "ended": {"code": 69, "cause": "killed"}}], ending(69, "killed"), ending(0, "finished")),
        ([KILLED, IDLE], ending(0, "finished", 8), ending(0, "finished", 8)),
        ([KILLED, {**IDLE, "ended": DONE["ended"]}, REFUSED], ending(65, "other"), ending(0, "finished")),
        ([REFUSED], ending(65, "another config"), ending(65, "another config")),
        ([], ending(0, "finished", 8), ending(0, "finished", 8)),
        ([{"step": 0, "world_size": 1, "ended": {"code": "x"}}], None, None),
        ([{"step": 0, "world_size": 1, "ended": {"code": 69, "cause": None}}], None, ending(69, "no cause told")),
    ],
)
def test_the_ending_of_a_run_is_that_of_the_last_start_that_trained(
    before: list[dict[str, Any]], said: ExitRecord | None, told: ExitRecord | None
) -> None:
    assert record.last_training_exit(before, said) == told


def test_each_restart_in_place_has_its_own_end(tmp_path: Path) -> None:
    me = file_lock.this_process_as_holder()
    for code in (69, 91):
        record.add_start(tmp_path, 0, environ={}, holder_token=me.token, started_at=0.0)
        record.write_start_exit(tmp_path, code, me)
    record.write_start_exit(tmp_path, 93, me)  # of the restart that was refused before it was in the record
    assert [start["ended"]["code"] for start in recorded(tmp_path)] == [69, 91, 93]


def test_a_cause_that_belongs_to_another_code_is_left_out(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).write_exit(code=75, step=3, cause="SIGTERM")
    ended(tmp_path, 69)
    assert recorded(tmp_path)[-1]["ended"] == {"code": 69, "cause": None}


def test_an_end_that_cannot_be_noted_is_no_failure(tmp_path: Path) -> None:
    record.write_start_exit(tmp_path / "none", 69, file_lock.this_process_as_holder())


@pytest.mark.parametrize("text", ['{"starts": [1, null]}', '{"starts": [{"ended": 3, "job": 7}]}', "{"])
def test_a_strange_record_refuses_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / record.RUN_FILE).write_text(text)
    begin(tmp_path)


@pytest.mark.parametrize(
    ("environ", "holder_token", "again"),
    [
        ({**JOB, "SLURM_RESTART_COUNT": "1"}, "b", True),
        ({}, "a", True),
        (JOB, "b", False),
        ({"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "1"}, "b", False),
        ({}, None, False),
    ],
    ids=["requeued", "in-place", "the-same-job-script", "another-job", "by-hand"],
)
def test_a_run_that_this_job_has_begun_anew_goes_on(
    tmp_path: Path, environ: dict[str, str], holder_token: str | None, again: bool
) -> None:
    begin(tmp_path, holder_token="a", SLURM_JOB_ID="7")
    assert record.is_restart_of_run(tmp_path, environ, holder_token) is again


def test_a_run_that_an_earlier_job_of_the_chain_has_begun_anew_goes_on(tmp_path: Path) -> None:
    begin(tmp_path, holder_token="a", PBS_JOBID="7.pbs", ENTRYPOINT_JOB_CHAIN="7.pbs")
    environ = {"PBS_JOBID": "8.pbs", "ENTRYPOINT_JOB_CHAIN": "7.pbs"}
    assert record.is_restart_of_run(tmp_path, environ, "b")


def test_a_start_that_never_knew_its_step_has_begun_nothing(tmp_path: Path) -> None:
    record.write_start_exit(tmp_path, 69, file_lock.this_process_as_holder(job="7"))
    assert not record.is_restart_of_run(tmp_path, {**JOB, "SLURM_RESTART_COUNT": "1"}, None)
