"""Other ranks and batch scripts read why a run ended, also of a rank that could not write it itself."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from disks import fill, mounted

from entrypoint import ExitCode, Failure, supervise
from entrypoint.run_errors import ExitRecord, RunError, RunErrors, cause, decide_requeue

FAILURE = Failure("the disk is full", fix="free space", found="0 MB", code=ExitCode.IO)

ENDLESS = '{"code": 1e999, "step": 1, "cause": ""}'


def test_the_ending_is_the_json_that_batch_scripts_read(tmp_path: Path) -> None:
    assert RunErrors.in_run(tmp_path).write_exit(code=ExitCode.STOPPED, step=812, cause="SIGUSR1")
    record = json.loads((tmp_path / "errors" / "exit.json").read_text())
    assert record == {"code": 75, "step": 812, "cause": "SIGUSR1"}


def test_the_ending_comes_back(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).write_exit(code=0, step=None, cause="done")
    assert RunErrors.in_run(tmp_path).read_exit() == ExitRecord(code=0, step=None, cause="done")


@pytest.mark.parametrize(
    "text", [None, "", "{", "[]", '{"code": 75}', '{"code": "x", "step": 1, "cause": ""}', ENDLESS]
)
def test_an_unreadable_ending_is_none(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "errors").mkdir()
        (tmp_path / "errors" / "exit.json").write_text(text)
    assert RunErrors.in_run(tmp_path).read_exit() is None


def test_a_failure_is_kept_with_its_rank_and_host(tmp_path: Path) -> None:
    assert RunErrors.in_run(tmp_path).write(RunError(failure=FAILURE, rank=3, host="node02"))
    record = json.loads((tmp_path / "errors" / "rank-0003.json").read_text())
    assert record == FAILURE.as_json() | {"rank": 3, "host": "node02", "killed": False, "symptom": False}


def test_a_full_disk_is_no_further_failure(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=64k") as disk:
        (disk / "errors").mkdir()
        fill(disk)
        assert not RunErrors.in_run(disk).write_exit(code=74, step=3, cause="disk full")
        assert not RunErrors.in_run(disk).write(RunError(failure=FAILURE, rank=0, host="node01"))


def test_a_folder_that_cannot_be_made_is_no_further_failure(tmp_path: Path) -> None:
    (tmp_path / "errors").write_text("")
    assert not RunErrors.in_run(tmp_path).write_exit(code=74, step=3, cause="disk full")


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "errors").iterdir())


def test_rank_0_clears_the_ending_its_own_failure_and_those_of_ranks_that_are_no_more(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).write_exit(code=74, step=3, cause="disk full")
    for rank in range(4):
        RunErrors.in_run(tmp_path).write(RunError(failure=FAILURE, rank=rank, host="node01"))
    RunErrors.in_run(tmp_path).clear_rank(rank=0, world_size=2)
    assert files(tmp_path) == ["rank-0001.json"]


def test_another_rank_clears_its_own_failure_only(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).write_exit(code=74, step=3, cause="disk full")
    for rank in range(3):
        RunErrors.in_run(tmp_path).write(RunError(failure=FAILURE, rank=rank, host="node01"))
    RunErrors.in_run(tmp_path).clear_rank(rank=1, world_size=2)
    assert files(tmp_path) == ["exit.json", "rank-0000.json", "rank-0002.json"]


def test_clearing_a_new_run_is_nothing(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).clear_rank(rank=0, world_size=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("takes", "ahead"), [(0.2, 60), (8.0, 60), (25.0, 120), (100.0, 360)])
def test_a_note_of_a_stop_without_an_ending_says_how_much_earlier_to_ask(
    tmp_path: Path, takes: float, ahead: int
) -> None:
    assert RunErrors.in_run(tmp_path).write_stopping(by="SIGUSR1", save_s=takes, clock=lambda: 5.0)
    description = RunErrors.in_run(tmp_path).describe_unfinished_save()
    assert description is not None
    assert "asked to stop by SIGUSR1" in description
    assert f"a save may take {takes} s: set #SBATCH --signal=USR1@{ahead}," in description


def test_who_pressed_ctrl_c_twice_is_given_no_advice_about_schedulers(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).write_stopping(by="SIGINT", save_s=1.0)
    assert "SBATCH" not in (RunErrors.in_run(tmp_path).describe_unfinished_save() or "SBATCH")


def test_an_ending_takes_the_note_away(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).write_stopping(by="SIGUSR1", save_s=1.0)
    RunErrors.in_run(tmp_path).write_exit(code=75, step=3, cause="SIGUSR1")
    assert RunErrors.in_run(tmp_path).describe_unfinished_save() is None


def test_the_note_is_said_once(tmp_path: Path) -> None:
    RunErrors.in_run(tmp_path).write_stopping(by="SIGUSR1", save_s=1.0)
    RunErrors.in_run(tmp_path).clear_rank(rank=0, world_size=1)
    assert RunErrors.in_run(tmp_path).describe_unfinished_save() is None


STRANGE = ["", "{", "[]", '{"by": "x"}', '{"by": "x", "save_s": "y"}', '{"by": "x", "save_s": Infinity}']


@pytest.mark.parametrize("text", STRANGE)
def test_a_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "errors").mkdir()
    (tmp_path / "errors" / "stopping.json").write_text(text)
    assert RunErrors.in_run(tmp_path).describe_unfinished_save() is None


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "errors").symlink_to(tmp_path / "elsewhere")
    assert not RunErrors.in_run(tmp_path / "run").write_exit(code=69, step=3, cause="a rank is gone")
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- Who is to blame ---
OOM = Failure("out of GPU memory", fix="halve it", code=ExitCode.RESOURCE)
GONE = Failure("another rank is gone", fix="look there", code=ExitCode.PEER)
OWN = RunError(failure=OOM, host="node01", rank=2)
LOST = RunError(failure=GONE, host="node01", rank=0, symptom=True)
KILLED = RunError(failure=GONE, host="node02", rank=3, killed=True)
LEFT = RunError(failure=GONE, host="node02", rank=1)  # sys.exit was called there


@pytest.mark.parametrize(
    ("errors", "blamed"),
    [
        ((LOST, OWN, KILLED), KILLED),
        ((LOST, OWN), OWN),
        ((LOST, LEFT), LEFT),
        ((OWN, LEFT), LEFT),
        ((LOST,), LOST),
        ((), None),
    ],
)
def test_a_killed_rank_is_blamed_then_an_own_error_then_a_lost_peer(
    errors: tuple[RunError, ...], blamed: RunError | None
) -> None:
    assert all(cause(order) == blamed for order in permutations(errors))


@pytest.mark.parametrize("order", list(permutations([LOST, replace(LOST, rank=1), OWN])))
def test_the_run_ends_with_an_own_error_in_whatever_order_ranks_report(
    tmp_path: Path, order: tuple[RunError, ...]
) -> None:
    for error in order:
        RunErrors.in_run(tmp_path).write_cause(error)
    assert RunErrors.in_run(tmp_path).read_exit() == ExitRecord(code=71, step=None, cause="out of GPU memory")


def test_a_symptom_does_not_replace_a_cause_that_this_host_does_not_see_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = RunErrors.in_run(tmp_path)
    errors.write_cause(OWN)
    monkeypatch.setattr("os.path.lexists", lambda path: False)
    monkeypatch.setattr(RunErrors, "read_exit", lambda self: None)
    errors.write_cause(LOST)
    assert json.loads((tmp_path / "errors" / "exit.json").read_text())["code"] == 71
    assert sorted(path.name for path in errors.folder.iterdir()) == ["exit.json", "rank-0000.json", "rank-0002.json"]


def test_a_symptom_is_the_end_where_no_cause_is_known_also_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(errno.EPERM, "no links here")

    monkeypatch.setattr("os.link", refuse)
    errors = RunErrors.in_run(tmp_path)
    for error in (LOST, OWN, LOST):
        errors.write_cause(error)
        assert errors.read_exit() is not None
    assert json.loads((tmp_path / "errors" / "exit.json").read_text())["code"] == 71


def test_an_error_comes_back(tmp_path: Path) -> None:
    errors = RunErrors.in_run(tmp_path)
    for error in (LOST, LEFT, OWN, KILLED):
        assert errors.write(error)
    facts = [(error.rank, error.host, error.failure.what, error.killed, error.symptom) for error in errors.read()]
    assert facts == [
        (0, "node01", "another rank is gone", False, True),
        (1, "node02", "another rank is gone", False, False),
        (2, "node01", "out of GPU memory", False, False),
        (3, "node02", "another rank is gone", True, False),
    ]


@pytest.mark.parametrize(("code", "symptom"), [(69, True), (75, True), (71, False), (91, False)])
def test_in_a_file_of_an_earlier_version_the_code_tells_a_symptom(tmp_path: Path, code: int, symptom: bool) -> None:
    (tmp_path / "rank-0001.json").write_text(json.dumps({"code": code, "what": "x", "rank": 1, "host": "node01"}))
    assert [error.symptom for error in RunErrors(tmp_path).read()] == [symptom]


# --- Whether a job is requeued, decided from srun's exit code and the files that a start left ---
def decide(folder: Path, srun_code: int, **files: object) -> str:
    """The decision about files such as exit={"code": 75}; a text is written as it is."""
    paths = []
    for name, value in files.items():
        path = folder / f"{name.replace('_', '-')}.json"
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        paths.append(path)
    return str(decide_requeue(srun_code, paths))


@pytest.mark.parametrize(
    ("code", "decision"), [(0, "exit"), (65, "exit"), (75, "requeue"), (137, "exit"), (91, "requeue")]
)
def test_the_exit_code_says_whether_a_job_is_requeued(tmp_path: Path, code: int, decision: str) -> None:
    assert decide(tmp_path, code) == f"{code} {decision}"


def test_the_run_s_code_wins_over_srun_s(tmp_path: Path) -> None:
    assert decide(tmp_path, 137, exit={"code": 75}) == "75 requeue"


def test_the_code_of_a_node_without_ranks_counts_if_the_run_wrote_none(tmp_path: Path) -> None:
    assert decide(tmp_path, 1, node_n1={"code": 78, "host": "n1.site"}) == "78 requeue n1"


def test_the_rank_to_blame_counts_if_the_run_wrote_no_code(tmp_path: Path) -> None:
    lost = {"code": 69, "host": "n1", "rank": 0, "symptom": True}
    assert decide(tmp_path, 1, rank_0000=lost) == "69 requeue"
    assert decide(tmp_path, 1, rank_0000=lost, rank_0001={"code": 71, "host": "n1", "rank": 1}) == "71 exit"


def test_a_rank_s_file_without_its_host_does_not_count(tmp_path: Path) -> None:
    assert decide(tmp_path, 1, rank_0001={"code": 75}) == "1 exit"


def test_a_locked_run_folder_keeps_its_code_when_the_other_start_ends_meanwhile(tmp_path: Path) -> None:
    assert decide(tmp_path, 73, exit={"code": 75}) == "73 exit"


@pytest.mark.parametrize("text", ["", "{", '{"code": ', '{"code": "75"}', '{"code": null}', "[75]", '{"code": true}'])
def test_a_file_that_holds_no_code_is_passed_over(tmp_path: Path, text: str) -> None:
    assert decide(tmp_path, 9, exit=text) == "9 exit"


def test_every_broken_host_is_named_once_and_only_if_the_job_is_requeued(tmp_path: Path) -> None:
    broken = {
        "rank_0000": {"code": 78, "host": "b"},
        "rank_0001": {"code": 78, "host": "b"},
        "node_a": {"code": 78, "host": "a"},
    }
    assert decide(tmp_path, 78, **broken, rank_0002={"code": 69, "host": "c"}) == "78 requeue a,b"
    assert decide(tmp_path, 65, exit={"code": 65}, **broken) == "65 exit"


def test_a_forged_host_does_not_become_words_of_a_command(tmp_path: Path) -> None:
    assert decide(tmp_path, 78, node_n1={"code": 78, "host": "n1 $(rm) JobId=8"}) == "78 requeue n1"


PEER_LOST = {"code": 69, "what": "another rank is gone", "found": "Connection closed by peer [10.0.0.2]:4117"}
KILLED_RANK = {
    "code": 69,
    "what": "rank 3 of 4 (node02, pid 7) was killed by SIGKILL",
    "killed": True,
    "symptom": False,
}


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
    leave(tmp_path, 0, PEER_LOST)
    leave(tmp_path, 3, KILLED_RANK)
    assert (
        supervise.describe_remote_cause(RunErrors(tmp_path), {0, 1})
        == f"the cause is on node02, rank 3: {KILLED_RANK['what']}"
    )


def test_who_only_lost_a_peer_is_no_cause(tmp_path: Path) -> None:
    leave(tmp_path, 2, PEER_LOST)
    assert supervise.describe_remote_cause(RunErrors(tmp_path), {0, 1}) is None


def test_a_file_that_is_being_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "rank-0002.json").write_text('{"code": 6')
    assert supervise.describe_remote_cause(RunErrors(tmp_path), {0, 1}) is None


def test_a_silent_host_is_named_by_the_address_that_was_lost(tmp_path: Path) -> None:
    leave(tmp_path, 0, PEER_LOST)
    addresses = {"node01": "10.0.0.1", "node02": "10.0.0.2"}
    description = supervise.describe_lost_host(RunErrors(tmp_path), [0, 1], addresses, addresses.__getitem__)
    assert description == "the lost rank is on node02, which reported nothing"
