"""A requeued job whose run is not there says so, instead of training from the start without a word."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train.run import record


@pytest.fixture
def job(tmp_path: Path) -> dict[str, str]:
    """The environment of a job's first start."""
    (tmp_path / "home").mkdir()
    return {"SLURM_JOB_ID": "7", "HOME": str(tmp_path / "home")}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of its run, as a start makes it."""
    (tmp_path / "run" / "logs").mkdir(parents=True)
    return tmp_path / "run"


def again(job: dict[str, str]) -> dict[str, str]:
    return {**job, "SLURM_RESTART_COUNT": "1"}


def marks(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("home/.cache/train-image/jobs/*"))


def begun(folder: Path) -> None:
    record.add_start(folder, 0, environ={}, holder_token=None, started_at=0.0)


def test_a_run_that_moved_away_is_missed_by_name(run: Path, job: dict[str, str]) -> None:
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    run.rename(run.with_name("elsewhere"))
    with pytest.raises(Failure) as caught:
        record.refuse_missing_run(run, again(job), host="node02")
    assert caught.value.code == ExitCode.NO_INPUT
    assert (
        caught.value.found == f"no such folder on node02; an earlier start of the job kept the run in {run} on node01"
    )


@pytest.mark.parametrize(("code", "passes"), [(ExitCode.STOPPED, True), (ExitCode.IO, False)])
def test_of_what_happens_while_the_mark_is_left_only_a_request_to_stop_passes(
    run: Path, job: dict[str, str], code: ExitCode, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise Failure("it", fix="none", code=code)

    monkeypatch.setattr(record.files, "write_json", fail)
    with pytest.raises(Failure) if passes else nullcontext():
        record.write_job_marker(run, job, host="node01", written_at=0.0)


def test_a_run_that_is_there_is_nothing_to_tell(run: Path, job: dict[str, str]) -> None:
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    assert record.refuse_missing_run(run, again(job), host="node02") is None


def test_a_job_that_was_put_back_before_it_had_a_folder_goes_on_and_says_so(
    tmp_path: Path, job: dict[str, str]
) -> None:
    assert "begins at step 0" in (record.refuse_missing_run(tmp_path / "run", again(job), host="node02") or "")


@pytest.mark.parametrize("other", [{"SLURM_JOB_ID": "8"}, {"SLURM_CLUSTER_NAME": "other"}], ids=["job", "cluster"])
def test_the_mark_of_another_job_is_not_this_ones(run: Path, job: dict[str, str], other: dict[str, str]) -> None:
    record.write_job_marker(run, job | other, host="node01", written_at=0.0)
    run.rename(run.with_name("elsewhere"))
    assert record.refuse_missing_run(run, again(job), host="node02") is not None


def test_a_first_start_looks_for_nothing(tmp_path: Path, job: dict[str, str]) -> None:
    assert record.refuse_missing_run(tmp_path / "run", job, host="node01") is None


def test_checkpoints_that_are_gone_are_missed(run: Path, job: dict[str, str]) -> None:
    begun(run)
    with pytest.raises(Failure, match="checkpoints") as caught:
        record.refuse_missing_run(run, again(job), host="node02")
    assert caught.value.code == ExitCode.NO_INPUT


def test_a_start_that_died_before_it_looked_for_checkpoints_has_none(run: Path, job: dict[str, str]) -> None:
    assert record.refuse_missing_run(run, again(job), host="node02") is None


@pytest.mark.parametrize(("code", "left"), [(0, 0), (65, 0), (75, 1), (69, 1)])
def test_a_mark_stays_while_the_job_may_be_put_back(
    run: Path, job: dict[str, str], tmp_path: Path, code: int, left: int
) -> None:
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    record.remove_job_marker(run, job, code)
    assert len(marks(tmp_path)) == left


def test_marks_of_long_ago_are_removed(run: Path, job: dict[str, str], tmp_path: Path) -> None:
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    (old,) = marks(tmp_path)
    os.utime(old, (0, 0))
    record.write_job_marker(run, {**job, "SLURM_JOB_ID": "8"}, host="node01", written_at=record.MARKER_LIFETIME_S + 1)
    assert old not in marks(tmp_path)


@pytest.mark.parametrize("environ", [{}, {"SLURM_JOB_ID": "7"}, {"SLURM_JOB_ID": "7", "HOME": "/proc/none"}])
def test_without_a_job_or_a_home_no_mark_is_left(run: Path, environ: dict[str, str]) -> None:
    record.write_job_marker(run, environ, host="node01", written_at=0.0)
    record.remove_job_marker(run, environ, 0)


def test_a_home_that_is_not_there_is_not_made(run: Path, tmp_path: Path) -> None:
    record.write_job_marker(run, {"SLURM_JOB_ID": "7", "HOME": str(tmp_path / "none")}, host="node01", written_at=0.0)
    assert not (tmp_path / "none").exists()


def test_a_path_that_is_no_text_is_known_again(tmp_path: Path, job: dict[str, str]) -> None:
    run = tmp_path / "run\udcff"
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    with pytest.raises(Failure, match="not here"):
        record.refuse_missing_run(run, again(job), host="node02")


def test_an_unreadable_mark_shows_nothing(run: Path, job: dict[str, str], tmp_path: Path) -> None:
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    marks(tmp_path)[0].write_text("{")
    assert record.refuse_missing_run(run.with_name("none"), again(job), host="node02") is not None
