"""What `train` starts for each rank."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from jobs import TINY
from processes import python

from entrypoint import ExitCode, Failure, Plan, SupervisionPolicy
from entrypoint.run_errors import ExitRecord, RunError, RunErrors
from train import __main__ as front
from train.cli import launch
from train.data import download
from train.run import lock, record

CPU = ("--device", "cpu")


def test_each_rank_runs_the_worker_with_what_was_given(launched: dict[str, Any], tmp_path: Path) -> None:
    Path("my.yaml").write_text("run: {name: mine}\n")
    assert front.run_command(["--config", "my.yaml", "optim.lr=1", *CPU, "train.epochs=2"], {"A": "b"}) == 7
    assert launched["command"][1:3] == ["-m", "train.worker"]
    assert launched["command"][5:] == ["--config", "my.yaml", "optim.lr=1", "train.epochs=2"]
    assert (launched["log_dir"], launched["foreign"]) == (Path("runs/mine/logs"), False)
    assert launched["environ"] == {"A": "b"}


def test_without_a_file_the_worker_gets_none(launched: dict[str, Any]) -> None:
    front.run_command(CPU, {})
    assert launched["command"] == [sys.executable, "-m", "train.worker", "--lease", "1"]


def test_the_stand_in_folder_reaches_the_workers_and_is_said(launched: dict[str, Any], tmp_path: Path) -> None:
    Path("runs").write_text("in the way")
    front.run_command(CPU, {"TMPDIR": str(tmp_path)})
    folder = launched["log_dir"].parents[1]
    assert launched["command"][-1] == f"run.output_dir={folder}"
    assert folder.parent == tmp_path
    assert "docker run -v" in launched["plan"].warnings[-1]


def test_no_key_is_given_to_the_workers_twice(launched: dict[str, Any], tmp_path: Path) -> None:
    Path("runs").write_text("in the way")
    front.run_command([*CPU, "run.output_dir=runs", "run.seed=1"], {"TMPDIR": str(tmp_path)})
    keys = [word.partition("=")[0] for word in launched["command"][5:]]
    assert keys == ["run.seed", "run.output_dir"]


def test_the_ranks_are_told_when_the_time_is_up(launched: dict[str, Any]) -> None:
    front.run_command([*CPU, "--time-limit", "10"], {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1"})
    assert 590 < float(launched["environ"]["ENTRYPOINT_DEADLINE"]) - time.time() <= 601


def test_a_run_that_another_start_is_at_work_in_is_refused_and_left_alone(
    launched: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs" / "quickstart"
    lock.lock_run_folder(folder, lock.this_start_as_holder({}, launch_id="another", started_at=0.0), None, print)
    before = sorted(tmp_path.rglob("*"))
    assert front.run_command(CPU, {}) == 73
    assert "runs/quickstart" in capsys.readouterr().err
    assert (launched, sorted(tmp_path.rglob("*"))) == ({}, before)


def test_a_run_whose_folder_leads_elsewhere_is_refused_and_left_alone(
    launched: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / "quickstart").mkdir(parents=True)
    (tmp_path / "runs" / "quickstart" / "logs").symlink_to(tmp_path / "elsewhere")
    before = sorted(tmp_path.rglob("*"))
    assert front.run_command(CPU, {}) == 77
    assert "logs is a symbolic link" in capsys.readouterr().err
    assert (launched, sorted(tmp_path.rglob("*"))) == ({}, before)


def test_the_lock_goes_when_the_run_ends(launched: dict[str, Any]) -> None:
    for _ in range(2):
        assert front.run_command(CPU, {}) == 7
    assert list(Path("runs/quickstart").glob(".*")) == []


def test_a_failing_start_is_in_the_record_with_its_code(launched: dict[str, Any]) -> None:
    front.run_command(CPU, {})
    assert [start["ended"]["code"] for start in record.read_starts(Path("runs/quickstart"))] == [7]


def test_a_requeued_job_does_not_begin_anew_without_a_word(
    launched: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {"SLURM_JOB_ID": "7", "HOME": str(tmp_path)}
    front.run_command(CPU, job | {"SLURM_RESTART_COUNT": "1"})
    assert "begins at step 0" in launched["plan"].warnings[-1]


RUN = Path("runs/quickstart")
ASKED = ExitRecord(code=75, step=None, cause="stopped by SIGTERM before the first step")


def stopped_at_once(*_: object, stop_signals: list[int], **__: object) -> int:
    """Ranks that a signal ends before they listen to it: none of them writes a word."""
    stop_signals.append(signal.SIGTERM)
    return ExitCode.STOPPED


@pytest.mark.parametrize("before", [None, 69], ids=["first start", "after another start"])
def test_a_stop_that_no_rank_could_write_down_is_in_the_runs_folder(
    before: int | None, launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if before:
        RunErrors.in_run(RUN).write_exit(code=before, step=3, cause="an earlier start's")
    monkeypatch.setattr(launch, "run_plan", stopped_at_once)
    assert front.run_command(CPU, {}) == 75
    assert RunErrors.in_run(RUN).read_exit() == ASKED


def test_what_a_rank_wrote_of_a_stop_is_kept(launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ending = ExitRecord(code=75, step=8, cause="SIGTERM")

    def saved(*given: object, stop_signals: list[int], **_: object) -> int:
        RunErrors.in_run(RUN).write_exit(code=ending.code, step=ending.step, cause=ending.cause)
        return stopped_at_once(*given, stop_signals=stop_signals)

    monkeypatch.setattr(launch, "run_plan", saved)
    front.run_command(CPU, {})
    assert RunErrors.in_run(RUN).read_exit() == ending


def test_a_stop_after_a_restart_in_place_is_not_taken_for_the_failure_before(
    launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def restarted(*given: object, policy: SupervisionPolicy, stop_signals: list[int], **_: object) -> int:
        failure = Failure("rank 1 was killed", fix="start again", code=ExitCode.PEER)
        policy.errors.write_cause(RunError(failure=failure, rank=1, host="node02", step=3, killed=True))
        policy.failed(ExitCode.PEER)
        return stopped_at_once(*given, stop_signals=stop_signals)

    monkeypatch.setattr(launch, "run_plan", restarted)
    front.run_command(CPU, {})
    assert RunErrors.in_run(RUN).read_exit() == ASKED


def test_a_signal_while_data_is_fetched_is_in_the_runs_folder(
    launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object) -> None:
        raise Failure("stopped by SIGTERM before the training began", fix="start again", code=ExitCode.STOPPED)

    monkeypatch.setattr(download, "ensure_downloaded", asked)
    assert front.run_command([*CPU, "data.name=cifar10", "data.download=true"], {}) == 75
    assert RunErrors.in_run(RUN).read_exit() == ExitRecord(
        code=75, step=None, cause="stopped by SIGTERM before the training began"
    )


def test_a_start_that_has_lost_the_folder_leaves_the_other_starts_ending_alone(
    launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken_over(*given: object, stop_signals: list[int], **_: object) -> int:
        monkeypatch.setattr(lock.RunLock, "is_lost", lambda self: True)
        return stopped_at_once(*given, stop_signals=stop_signals)

    monkeypatch.setattr(launch, "run_plan", taken_over)
    assert front.run_command(CPU, {}) == ExitCode.OUTPUT
    assert RunErrors.in_run(RUN).read_exit() is None


def refuse_as_ranks(plan: Plan, *_: object, log_dir: Path, policy: SupervisionPolicy, **__: object) -> int:
    """Ranks that refuse a setting before the first step, with what they and their parent write until then."""
    log_dir.mkdir(parents=True, exist_ok=True)
    (log_dir / "rank-0000.log").write_text("ERROR[64] optim.args do not fit sgd\n")
    failure = Failure("optim.args do not fit sgd", fix="correct optim.args", code=ExitCode.USAGE)
    policy.errors.write_cause(RunError(failure=failure, rank=0, host=plan.hostname))
    return ExitCode.USAGE


@pytest.fixture
def _refusing_ranks(launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "run_plan", refuse_as_ranks)


@pytest.mark.usefixtures("_refusing_ranks")
def test_a_new_folder_goes_when_the_ranks_refuse_a_setting(capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command([*CPU, "run.output_dir=new/runs"], {}) == ExitCode.USAGE
    assert list(Path().iterdir()) == []
    assert "note: new/runs/quickstart was removed" in capsys.readouterr().err


@pytest.mark.usefixtures("_refusing_ranks")
def test_the_folder_of_other_runs_stays_when_the_ranks_refuse_a_setting() -> None:
    Path("runs/other").mkdir(parents=True)
    assert front.run_command(CPU, {}) == ExitCode.USAGE
    assert list(Path("runs").iterdir()) == [Path("runs/other")]


@pytest.mark.usefixtures("_refusing_ranks")
def test_a_folder_that_was_there_before_stays_with_the_refusal_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    (RUN / "checkpoints" / "step-00000008").mkdir(parents=True)
    assert front.run_command(CPU, {}) == ExitCode.USAGE
    assert (RUN / "checkpoints" / "step-00000008").is_dir()
    assert RunErrors.in_run(RUN).read_exit() == ExitRecord(code=64, step=None, cause="optim.args do not fit sgd")
    assert [start["ended"]["code"] for start in record.read_starts(RUN)] == [ExitCode.USAGE]
    assert "was removed" not in capsys.readouterr().err


def test_a_new_folder_that_holds_more_than_a_beginning_stays(
    launched: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_more(*given: Any, **options: Any) -> int:
        RUN.joinpath("mine.txt").write_text("of the user's own dataset")
        return refuse_as_ranks(*given, **options)

    monkeypatch.setattr(launch, "run_plan", write_more)
    assert front.run_command(CPU, {}) == ExitCode.USAGE
    assert {"mine.txt", "errors", "logs", "run.json"} == {path.name for path in RUN.iterdir()}


@pytest.mark.usefixtures("_refusing_ranks")
def test_the_folder_of_two_nodes_stays_for_the_other_one_and_for_the_job_script() -> None:
    nodes = ("--nodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--procs-per-node", "1")
    assert front.run_command([*CPU, *nodes], {}) == ExitCode.USAGE
    assert RunErrors.in_run(RUN).read_exit() == ExitRecord(code=64, step=None, cause="optim.args do not fit sgd")


@pytest.mark.timeout(120)
def test_wrong_arguments_leave_nothing_but_their_refusal(tmp_path: Path) -> None:
    ended = python("-m", "train", "--device", "cpu", *TINY, "optim.args.nestrov=true", cwd=tmp_path)
    assert ended.returncode == ExitCode.USAGE
    assert "fix: write optim.args.nesterov instead of optim.args.nestrov" in ended.stderr
    assert list(tmp_path.iterdir()) == []
