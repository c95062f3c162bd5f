"""One rank ends with one exit code, one block, and the reason in errors/."""

from __future__ import annotations

import errno
import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import ALONE, TINY, forget_accelerate, trained
from processes import python, start_python, wait_until
from worlds import CONTRACT

from entrypoint import ExitCode, Failure, world_from_environ
from entrypoint.run_errors import ExitRecord, RunErrors
from train import session, worker
from train.checkpoint import format
from train.config import load
from train.config.load import keep_last_overrides
from train.inference import evaluate
from train.rank_context import RankContext
from train.run.stop import StopSignals
from train.trainer import Trainer


def peer() -> Failure:
    return Failure("a rank is gone", fix="look there", code=ExitCode.PEER)


def run(folder: Path, *settings: str, environ: dict[str, str] | None = None) -> int:
    run_settings = (f"run.output_dir={folder.parent}", f"run.name={folder.name}")
    return worker.run(
        keep_last_overrides([*TINY, *run_settings, *settings]),
        dict(CONTRACT if environ is None else environ),
        StopSignals(),
    )


def raising(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def stand_in(*arguments: Any, **options: Any) -> int:
        raise error

    monkeypatch.setattr(session, "train_on_rank", stand_in)


def test_a_rank_trains_to_its_end(tmp_path: Path) -> None:
    forget_accelerate()
    assert run(tmp_path / "run") == 0
    forget_accelerate()
    assert (tmp_path / "run" / "checkpoints" / "step-00000008" / "manifest.json").exists()


LOADS = """
import os, sys
from train.run.stop import StopSignals
from train import worker
code = worker.run([*sys.argv[1:], "run.output_dir=.", "run.name=lean"], os.environ, StopSignals())
print()
print(code, *sys.modules)
"""
HEAVY = {"torch._dynamo", "torch.distributed.tensor", "sympy", "torchvision", "google.protobuf", "matplotlib"}


def test_a_whole_run_loads_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    """Each of these is a part of every rank's start that shows: docs/evidence/performance.md."""
    more = ("train.clip_grad_norm=1", "train.ema_decay=0.9")
    done = python("-c", LOADS, *TINY, *more, environ=CONTRACT, cwd=tmp_path)
    code, *loaded = done.stdout.splitlines()[-1].split()
    assert (code, "torch" in loaded, done.stderr) == ("0", True, "")
    assert not HEAVY & set(loaded)


@pytest.mark.parametrize(("settings", "text"), [(("profile.steps=[1,2]",), "99"), ((), None)])
def test_the_profilers_own_words_are_kept_from_the_console_where_it_is_used(
    settings: tuple[str, ...], text: str | None
) -> None:
    environ: dict[str, str] = {}
    worker.silence_profiler(environ, load.load_config(None, settings))
    assert environ.get("KINETO_LOG_LEVEL") == text


def error_of_torch_without_memory() -> RuntimeError:
    """What torch raises for more memory than any machine has."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    return caught.value


ERRORS = {
    "a-failure": (Failure("no data", fix="bring some", code=ExitCode.NO_INPUT), 66, "fix: bring some"),
    "gpu-memory": (torch.OutOfMemoryError("CUDA out of memory"), 71, "train.micro_batch_size"),
    "host-memory": (MemoryError(), 71, "train.micro_batch_size"),
    "host-memory-of-a-system-call": (OSError(errno.ENOMEM, "Cannot allocate memory"), 71, "train.micro_batch_size"),
    "host-memory-of-torch": (error_of_torch_without_memory(), 71, "train.micro_batch_size"),
    "no-thread": (RuntimeError("can't start new thread"), 71, "ulimit -u"),
    "left": (SystemExit(75), 69, "sys.exit(75)"),
    "lost-peer": (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), 69, "resume"),
}


@pytest.mark.parametrize(("error", "code", "words"), ERRORS.values(), ids=ERRORS)
def test_a_known_error_ends_with_its_code_and_one_block(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    words: str,
) -> None:
    raising(monkeypatch, error)
    assert run(tmp_path / "run") == code
    printed = capsys.readouterr().err
    assert printed.startswith(f"ERROR[{code}] ")
    assert words in printed
    assert "Traceback" not in printed


def test_only_our_own_bug_shows_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(monkeypatch, KeyError("oops"))
    assert run(tmp_path / "run") == ExitCode.BUG
    assert "Traceback" in capsys.readouterr().err
    assert "KeyError" in json.loads((tmp_path / "run/errors/rank-0000.json").read_text())["what"]


def test_an_error_that_fails_to_say_what_it_is_is_told_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(Exception):
        __str__ = None  # type: ignore[assignment]

    raising(monkeypatch, Mute())
    assert run(tmp_path / "run") == ExitCode.BUG
    assert "Mute" in (RunErrors.in_run(tmp_path / "run").read_exit() or ExitRecord(code=0, step=0, cause="")).cause


def test_torch_for_which_there_is_no_room_is_told_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, ImportError("libtorch_cpu.so: failed to map segment from shared object"))
    monkeypatch.delattr("train.run.errors")
    monkeypatch.setitem(sys.modules, "train.run.errors", None)
    assert run(tmp_path / "run") == ExitCode.RESOURCE
    assert RunErrors.in_run(tmp_path / "run").read_exit() == ExitRecord(
        code=71, step=None, cause="torch cannot be loaded"
    )


def test_the_reason_is_left_in_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raising(monkeypatch, Failure("no data", fix="bring some", code=ExitCode.NO_INPUT))
    run(tmp_path / "run")
    assert RunErrors.in_run(tmp_path / "run").read_exit() == ExitRecord(code=66, step=None, cause="no data")
    assert json.loads((tmp_path / "run/errors/rank-0000.json").read_text())["rank"] == 0


@pytest.mark.parametrize("code", [ExitCode.PEER, ExitCode.STOPPED])
def test_who_lost_a_peer_or_was_stopped_for_it_does_not_hide_why_the_peer_left(tmp_path: Path, code: ExitCode) -> None:
    RunErrors.in_run(tmp_path).write_exit(code=66, step=None, cause="no data")
    assert (
        worker.write_exit_files(Failure("gone", fix="look there", code=code), RankContext(world=ALONE, folder=tmp_path))
        == code
    )
    assert RunErrors.in_run(tmp_path).read_exit() == ExitRecord(code=66, step=None, cause="no data")


def test_who_lost_a_peer_says_so_where_nobody_else_did(tmp_path: Path) -> None:
    worker.write_exit_files(peer(), RankContext(world=ALONE, folder=tmp_path))
    assert RunErrors.in_run(tmp_path).read_exit() == ExitRecord(code=69, step=None, cause="a rank is gone")


def test_the_ending_tells_how_far_the_run_had_come_and_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stand_in(trainer: Trainer) -> None:
        trainer.state.step = 3
        format.save_checkpoint(trainer.folder / "checkpoints", step=2, tensors={}, metadata={}, keep=1)
        raise peer()

    monkeypatch.setattr(Trainer, "fit", stand_in)
    forget_accelerate()
    run(tmp_path / "run")
    forget_accelerate()
    assert f"kept: {tmp_path}/run/checkpoints/step-00000002" in capsys.readouterr().err
    assert RunErrors.in_run(tmp_path / "run").read_exit() == ExitRecord(code=69, step=3, cause="a rank is gone")


@pytest.mark.parametrize(
    ("settings", "missing", "code"),
    [(("optim.lrr=1",), (), 64), (("train.global_batch_size=15",), (), 64), ((), ("RANK", "WORLD_SIZE"), 76)],
    ids=["unknown-key", "indivisible", "half-a-contract"],
)
def test_what_it_was_started_with_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: tuple[str, ...], missing: tuple[str, ...], code: int
) -> None:
    assert run(tmp_path / "run", *settings, environ={k: v for k, v in CONTRACT.items() if k not in missing}) == code
    assert "fix: " in capsys.readouterr().err


def seated(folder: Path, world_size: int = 2) -> RankContext:
    ranks = {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(world_size)}
    return RankContext(world=world_from_environ(CONTRACT | ranks), folder=folder)


def test_nccl_writes_its_warnings_beside_the_ranks_log(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    worker.redirect_nccl_warnings(environ, seated(tmp_path))
    assert environ == {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": f"{tmp_path}/logs/nccl-rank-0000.log"}


@pytest.mark.parametrize(("world_size", "given"), [(2, {"NCCL_DEBUG": "INFO"}), (1, {})])
def test_nccl_is_left_alone_where_the_user_says_or_nobody_is_to_be_met(
    tmp_path: Path, world_size: int, given: dict[str, str]
) -> None:
    environ = dict(given)
    worker.redirect_nccl_warnings(environ, seated(tmp_path, world_size))
    assert environ == given


def test_the_file_that_the_user_gives_nccl_is_kept(tmp_path: Path) -> None:
    environ, seat = {"NCCL_DEBUG_FILE": "/scratch/nccl"}, seated(tmp_path)
    worker.redirect_nccl_warnings(environ, seat)
    assert (environ["NCCL_DEBUG_FILE"], seat.nccl_log) == ("/scratch/nccl", None)


@pytest.mark.parametrize(("written", "code"), [("x NCCL WARN failed to extend /dev/shm/nccl-x", 71), (None, 69)])
def test_what_nccl_has_written_is_the_reason_of_its_error(tmp_path: Path, written: str | None, code: int) -> None:
    seat = seated(tmp_path)
    worker.redirect_nccl_warnings({}, seat)
    (tmp_path / "logs").mkdir()
    if written:
        (tmp_path / "logs" / "nccl-rank-0000.log").write_text(written)
    failure = worker.explain_error(RuntimeError("Failed to initialize NCCL communicator: unhandled system error"), seat)
    assert failure is not None
    assert failure.code == code


def test_an_old_ending_is_gone_as_soon_as_a_rank_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunErrors.in_run(tmp_path / "run").write_exit(code=75, step=3, cause="SIGTERM")
    monkeypatch.setattr(
        session, "train_on_rank", lambda *_, **__: int(RunErrors.in_run(tmp_path / "run").read_exit() is not None)
    )
    assert run(tmp_path / "run") == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_before_the_first_step_ends_with_75_and_saves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    endless = ["data.samples=1000000", "data.image_size=64", f"run.output_dir={tmp_path}", "run.name=run"]
    with start_python("-m", "train.worker", *endless, environ=CONTRACT, cwd=tmp_path) as process:
        wait_until(lambda: listens(process.pid, number), "a handler")
        process.send_signal(number)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == ExitCode.STOPPED, printed
    assert f"stopped by {number.name}" in printed
    assert (
        RunErrors.in_run(tmp_path / "run").read_exit() or ExitRecord(code=0, step=0, cause="")
    ).code == ExitCode.STOPPED
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_signal_that_an_import_swallowed_stops_the_run_all_the_same(tmp_path: Path) -> None:
    signals = StopSignals()
    signals.handle(signal.SIGTERM)
    run_settings = (f"run.output_dir={tmp_path}", "run.name=run")
    assert worker.run([*TINY, *run_settings], dict(CONTRACT), signals) == ExitCode.STOPPED
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_rank_that_has_saved_does_not_pass_through_the_interpreters_own_end(tmp_path: Path) -> None:
    script = tmp_path / "fragile.py"
    script.write_text(FRAGILE)
    ended = python(str(script), cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (75, "what was registered\n")


def listens(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_a_run_loads_all_that_it_needs_before_its_first_step(tmp_path: Path) -> None:
    script = tmp_path / "late.py"
    script.write_text(LATE)
    more = ("log.tensorboard=true", "train.clip_grad_norm=1", "train.ema_decay=0.9")
    ended = python(str(script), *keep_last_overrides([*TINY, *more]), "run.name=run", environ=CONTRACT, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "late.json").read_text()) == []


# As gloo's threads do now and then: whoever is there when the interpreter takes itself down dies.
FRAGILE = """
import atexit, os
from train import worker

class Dies:
    def __del__(self, abort=os.abort):
        abort()

dies = Dies()
atexit.register(print, "what was registered")
worker.run = lambda *_: 75
worker.main()
"""

# Which modules are first imported between the first step and the end of the process.
LATE = """
import json, os, sys
from train import trainer, worker
from train.run import stop
known, real = None, trainer.Trainer.train_step

def step(*arguments):
    global known
    known = known or set(sys.modules)
    return real(*arguments)

trainer.Trainer.train_step = step
code = worker.run(sys.argv[1:], os.environ, stop.StopSignals())
json.dump(sorted(set(sys.modules) - known), open("late.json", "w"))
sys.exit(code)
"""


def test_a_thread_of_the_users_does_not_keep_a_rank_from_ending() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    assert worker.user_threads_run_on(0.01)
    over.set()
    assert not worker.user_threads_run_on(60)


@pytest.fixture(scope="module")
def checkpoint_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last checkpoint of a tiny run."""
    trainer = trained(tmp_path_factory.mktemp("trained") / "run")
    assert trainer.checkpointer.newest is not None
    return trainer.checkpointer.newest


def test_a_rank_that_measures_writes_nothing_into_the_run(
    checkpoint_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(checkpoint_path.parents[1].rglob("*"))
    forget_accelerate()
    code = worker.run(["--evaluate", str(checkpoint_path), "--scratch", str(tmp_path)], dict(CONTRACT), StopSignals())
    forget_accelerate()
    assert (code, sorted(checkpoint_path.parents[1].rglob("*"))) == (0, before)
    assert "accuracy" in capsys.readouterr().out


def test_a_measurement_that_fails_says_why_outside_of_the_run(
    checkpoint_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(checkpoint_path.parents[1].rglob("*"))
    line = ["--evaluate", str(checkpoint_path), "--scratch", str(tmp_path), "data.classes=3"]
    forget_accelerate()
    code = worker.run(line, dict(CONTRACT), StopSignals())
    forget_accelerate()
    assert (code, sorted(checkpoint_path.parents[1].rglob("*"))) == (65, before)
    assert RunErrors.in_run(tmp_path).read_exit().code == 65  # type: ignore[union-attr]
    assert "other classes than the model was trained on" in capsys.readouterr().err


def test_a_measurement_that_is_stopped_promises_no_save(
    checkpoint_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signals = StopSignals()
    monkeypatch.setattr(evaluate, "evaluate_on_rank", lambda *arguments, **options: signals.handle(signal.SIGINT))
    code = worker.run(["--evaluate", str(checkpoint_path), "--scratch", str(tmp_path)], dict(CONTRACT), signals)
    assert code == ExitCode.STOPPED
    printed = capsys.readouterr().err
    assert printed == "stopped by SIGINT before the evaluation was over\n  next: start the same command again\n"
