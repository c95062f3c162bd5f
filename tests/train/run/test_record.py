"""What ran, where, with what and how each start ended can be read afterwards, by a requeued job too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from disks import fill, mounted

from entrypoint import ExitCode, Failure, World
from entrypoint.run_errors import DEADLINE_CAUSE, ExitRecord, RunErrors
from train import file_lock
from train.config import load
from train.config.schema import DataConfig, ModelConfig, RunConfig
from train.run import record

WORLD = World(
    rank=0,
    local_rank=0,
    world_size=4,
    local_world_size=2,
    node_rank=0,
    num_nodes=2,
    master_addr="node01",
    master_port=20001,
)


def complete_start(
    folder: Path, *, step: int = 0, now: float = 0.0, environ: dict[str, str] | None = None, **more: Any
) -> None:
    """One more start."""
    facts: dict[str, Any] = {"world_size": 4, "hosts": ["node01", "node02"], "launcher": "slurm-task", **more}
    record.complete_start(folder, step=step, environ=environ or {}, started_at=now, **facts)


def started(folder: Path, *, step: int = 0, now: float = 0.0, environ: dict[str, str] | None = None) -> dict[str, Any]:
    """The record after one more start that trained."""
    complete_start(folder, step=step, now=now, environ=environ)
    record.write_run(
        folder,
        world=WORLD,
        hosts=["node01", "node02"],
        launcher="slurm-task",
        sources={"rank": "SLURM_PROCID"},
        argv=["train", "--config", "a.yaml", "model.args.hub_token=abc", "model.weights=https://me:abc@host/x?abc"],
        environ=environ or {},
        variables={"acting": {"NCCL_DEBUG": "INFO"}, "removed": {}},
        training={"precision": "bf16"},
    )
    written = record.read_run(folder)
    assert written is not None
    return written


def test_a_start_is_recorded_with_its_place_and_where_that_came_from(tmp_path: Path) -> None:
    written = started(tmp_path)
    assert written["world"] == asdict(WORLD)
    assert (written["hosts"], written["launcher"]) == (["node01", "node02"], "slurm-task")
    assert written["sources"] == {"rank": "SLURM_PROCID"}
    hidden = ["model.args.hub_token=(not shown)", "model.weights=https://(not shown)@host/x?(not shown)"]
    assert written["argv"] == ["train", "--config", "a.yaml", *hidden]
    assert written["variables"] == {"acting": {"NCCL_DEBUG": "INFO"}, "removed": {}}
    assert written["training"] == {"precision": "bf16"}


def test_a_start_that_trains_nothing_adds_its_entry_alone(tmp_path: Path) -> None:
    before = started(tmp_path)
    complete_start(tmp_path, step=8, world_size=None, hosts=["login"], launcher="local")
    after = record.read_run(tmp_path) or {}
    entry = {"step": 8, "idle": True, "hosts": ["login"], "launcher": "local"}
    assert (after["starts"][:-1], after["starts"][-1] | entry) == (before["starts"], after["starts"][-1])
    assert "world_size" not in after["starts"][-1]
    assert {**after, "starts": None} == {**before, "starts": None}


def test_the_versions_that_matter_are_recorded(tmp_path: Path) -> None:
    versions = started(tmp_path)["versions"]
    assert {"python", "train-image", "torch", "torchvision", "accelerate"} <= versions.keys()
    assert versions["torch"].startswith("2.")


def test_a_requeue_appends_its_start(tmp_path: Path) -> None:
    started(tmp_path, now=0.0, environ={"SLURM_JOB_ID": "7"})
    starts = started(tmp_path, step=120, now=60.0, environ={"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "1"})["starts"]
    assert [(start["at"], start["step"], start["job"]) for start in starts] == [
        ("1970-01-01T00:00:00+00:00", 0, "7"),
        ("1970-01-01T00:01:00+00:00", 120, "7"),
    ]
    assert starts[1]["restart"] == "1"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"starts": 3}'])
def test_an_unreadable_record_is_begun_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert record.read_run(tmp_path) is None
    assert len(started(tmp_path)["starts"]) == 1


def test_a_record_that_cannot_be_written_keeps_the_old_one(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        before = started(disk)
        fill(disk)
        with pytest.raises(Failure) as caught:
            started(disk, step=120)
        assert record.read_run(disk) == before
    assert caught.value.code == ExitCode.IO


# Texts that YAML 1.1 or 1.2 would read as something else.
YAML_TEXTS = ["1e5", "0o17", "no", "null", "3.5", "12:30:00", ".5", "-1", "0x1f", "Zoë", "a: b", "#1", "2024-01-01"]


@pytest.mark.parametrize("name", YAML_TEXTS)
def test_the_written_configuration_is_read_as_the_same_run(tmp_path: Path, name: str) -> None:
    args = {name: [name, 1e-5, None]}
    config = replace(RunConfig(), data=DataConfig(root=name), model=ModelConfig(args=args))
    record.write_config(tmp_path, config)
    assert load.load_config(str(tmp_path / "config.yaml")) == config


def test_the_written_configuration_is_complete(tmp_path: Path) -> None:
    record.write_config(tmp_path, RunConfig())
    text = (tmp_path / "config.yaml").read_text()
    assert "weight_decay: 0.0005" in text
    assert text.startswith("run:\n  name: quickstart\n")


def test_an_earlier_run_s_results_are_set_aside_and_its_logs_stay(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000010").mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    for name in ("metrics.jsonl", "run.json", "mine.txt"):
        (tmp_path / name).write_text(name)
    assert record.move_results_aside(tmp_path) == tmp_path / "before-1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before-1", "logs", "mine.txt"]
    assert (tmp_path / "before-1" / "checkpoints" / "step-00000010").is_dir()


def test_setting_aside_again_takes_another_folder(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / "metrics.jsonl").write_text(str(number))
        assert record.move_results_aside(tmp_path) == tmp_path / f"before-{number}"
    assert (tmp_path / "before-1" / "metrics.jsonl").read_text() == "1"


def test_a_new_run_has_nothing_to_set_aside(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()  # by the rehearsal of a save
    assert record.move_results_aside(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]


def test_a_record_that_is_nested_too_deep_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("[" * 100_000)
    assert record.read_run(tmp_path) is None


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
    starts: list[dict[str, Any]] = json.loads((folder / record.RUN_FILE).read_text())["starts"]
    return starts


def test_a_start_is_in_the_record_as_soon_as_its_step_is_known(tmp_path: Path) -> None:
    begin(tmp_path, holder_token="a", SLURM_JOB_ID="7")
    (start,) = recorded(tmp_path)
    assert start == {"at": "1970-01-01T00:00:00+00:00", "step": 120, "job": "7", "launch": "a"}


def test_the_rest_of_the_record_stays(tmp_path: Path) -> None:
    (tmp_path / record.RUN_FILE).write_text('{"git": "abc", "starts": [{"step": 0}]}')
    begin(tmp_path)
    written = record.read_run(tmp_path) or {}
    assert (written["git"], len(written["starts"])) == ("abc", 2)


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
    ("before", "last_exit", "expected"),
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
    before: list[dict[str, Any]], last_exit: ExitRecord | None, expected: ExitRecord | None
) -> None:
    assert record.last_training_exit(before, last_exit) == expected


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


def requeued(job: dict[str, str]) -> dict[str, str]:
    return {**job, "SLURM_RESTART_COUNT": "1"}


def job_markers(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("home/.cache/train-image/jobs/*"))


def add_first_start(folder: Path) -> None:
    record.add_start(folder, 0, environ={}, holder_token=None, started_at=0.0)


def test_a_run_that_moved_away_is_missed_by_name(run: Path, job: dict[str, str]) -> None:
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    run.rename(run.with_name("elsewhere"))
    with pytest.raises(Failure) as caught:
        record.refuse_missing_run(run, requeued(job), host="node02")
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
    assert record.refuse_missing_run(run, requeued(job), host="node02") is None


def test_a_job_that_was_put_back_before_it_had_a_folder_goes_on_and_says_so(
    tmp_path: Path, job: dict[str, str]
) -> None:
    assert "begins at step 0" in (record.refuse_missing_run(tmp_path / "run", requeued(job), host="node02") or "")


@pytest.mark.parametrize("other", [{"SLURM_JOB_ID": "8"}, {"SLURM_CLUSTER_NAME": "other"}], ids=["job", "cluster"])
def test_the_mark_of_another_job_is_not_this_ones(run: Path, job: dict[str, str], other: dict[str, str]) -> None:
    record.write_job_marker(run, job | other, host="node01", written_at=0.0)
    run.rename(run.with_name("elsewhere"))
    assert record.refuse_missing_run(run, requeued(job), host="node02") is not None


def test_a_first_start_looks_for_nothing(tmp_path: Path, job: dict[str, str]) -> None:
    assert record.refuse_missing_run(tmp_path / "run", job, host="node01") is None


def test_checkpoints_that_are_gone_are_missed(run: Path, job: dict[str, str]) -> None:
    add_first_start(run)
    with pytest.raises(Failure, match="checkpoints") as caught:
        record.refuse_missing_run(run, requeued(job), host="node02")
    assert caught.value.code == ExitCode.NO_INPUT


def test_a_start_that_died_before_it_looked_for_checkpoints_has_none(run: Path, job: dict[str, str]) -> None:
    assert record.refuse_missing_run(run, requeued(job), host="node02") is None


@pytest.mark.parametrize(("code", "left"), [(0, 0), (65, 0), (75, 1), (69, 1)])
def test_a_mark_stays_while_the_job_may_be_put_back(
    run: Path, job: dict[str, str], tmp_path: Path, code: int, left: int
) -> None:
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    record.remove_job_marker(run, job, code)
    assert len(job_markers(tmp_path)) == left


def test_marks_of_long_ago_are_removed(run: Path, job: dict[str, str], tmp_path: Path) -> None:
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    (old,) = job_markers(tmp_path)
    os.utime(old, (0, 0))
    record.write_job_marker(run, {**job, "SLURM_JOB_ID": "8"}, host="node01", written_at=record.MARKER_LIFETIME_S + 1)
    assert old not in job_markers(tmp_path)


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
        record.refuse_missing_run(run, requeued(job), host="node02")


def test_an_unreadable_mark_shows_nothing(run: Path, job: dict[str, str], tmp_path: Path) -> None:
    record.write_job_marker(run, job, host="node01", written_at=0.0)
    job_markers(tmp_path)[0].write_text("{")
    assert record.refuse_missing_run(run.with_name("none"), requeued(job), host="node02") is not None


COMMIT, OTHER_COMMIT = "1" * 40, "2" * 40


def checkout(folder: Path, files: dict[str, str]) -> Path:
    """A project folder whose `.git` holds these files."""
    for name, text in files.items():
        path = folder / ".git" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


CHECKOUTS = {
    "detached": {"HEAD": COMMIT},
    "a branch": {"HEAD": "ref: refs/heads/main", "refs/heads/main": COMMIT},
    "a packed branch": {
        "HEAD": "ref: refs/heads/a/b",
        "packed-refs": f"# pack-refs\n{OTHER_COMMIT} refs/b\n{COMMIT} refs/heads/a/b",
    },
    "loose before packed": {
        "HEAD": "ref: refs/heads/main",
        "refs/heads/main": COMMIT,
        "packed-refs": f"{OTHER_COMMIT} refs/heads/main",
    },
}


@pytest.mark.parametrize("files", CHECKOUTS.values(), ids=CHECKOUTS.keys())
def test_the_commit_is_read_from_the_files_of_git(tmp_path: Path, files: dict[str, str]) -> None:
    assert record.git_commit(checkout(tmp_path, files)) == COMMIT


WITHOUT_COMMIT: dict[str, dict[str, str]] = {
    "no .git": {},
    "an empty repository": {"HEAD": "ref: refs/heads/main"},
    "nonsense": {"HEAD": "ref: refs/heads/main", "refs/heads/main": "hello"},
    "an unknown branch": {"HEAD": "ref: refs/heads/main", "packed-refs": f"{OTHER_COMMIT} refs/heads/other"},
}


@pytest.mark.parametrize("files", WITHOUT_COMMIT.values(), ids=WITHOUT_COMMIT.keys())
def test_without_a_commit_there_is_none(tmp_path: Path, files: dict[str, str]) -> None:
    assert record.git_commit(checkout(tmp_path, files)) is None


def test_a_worktree_s_commit_is_that_of_its_own_branch(tmp_path: Path) -> None:
    shared = {"HEAD": "ref: refs/heads/main", "refs/heads/main": OTHER_COMMIT, "refs/heads/side": COMMIT}
    own = {"worktrees/side/HEAD": "ref: refs/heads/side", "worktrees/side/commondir": "../.."}
    checkout(tmp_path / "main", shared | own)
    (tmp_path / "side").mkdir()
    (tmp_path / "side" / ".git").write_text("gitdir: ../main/.git/worktrees/side\n")
    assert record.git_commit(tmp_path / "side") == COMMIT


@pytest.mark.skipif(shutil.which("git") is None, reason="machine: no git")
def test_git_says_the_same(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()

    git("init")
    git("commit", "--allow-empty", "--message", "first")
    assert record.git_commit(tmp_path) == git("rev-parse", "HEAD")
    git("pack-refs", "--all")
    assert record.git_commit(tmp_path) == git("rev-parse", "HEAD")


def test_the_image_says_what_it_is_and_where_it_was_started_from(tmp_path: Path) -> None:
    (tmp_path / "image.json").write_text(json.dumps({"version": "1.0"}))
    environ = {"APPTAINER_CONTAINER": "/images/train.sif", "ENTRYPOINT_IMAGE_DIGEST": "sha256:ab"}
    expected = {"version": "1.0", "started_from": "/images/train.sif", "digest": "sha256:ab"}
    assert record.image_facts(environ, tmp_path / "image.json") == expected


def test_outside_an_image_there_is_none(tmp_path: Path) -> None:
    assert record.image_facts({}, tmp_path / "image.json") is None


@pytest.mark.parametrize("text", ["", "[1]", "{", "3", "\xff"])
def test_an_unreadable_image_file_is_passed_over(tmp_path: Path, text: str) -> None:
    (tmp_path / "image.json").write_text(text, encoding="latin-1")
    facts = record.image_facts({"ENTRYPOINT_IMAGE": "train@sha256:ab"}, tmp_path / "image.json")
    assert facts == {"started_from": "train@sha256:ab"}
