"""Real processes that are asked to stop, once, twice, at any moment, or killed before they have saved."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from jobs import TINY
from processes import python, start_python, wait_until
from runs import Run

from entrypoint import SIGNAL_REPEAT_WINDOW_S
from train.config.load import keep_last_overrides

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
AGAIN_S = SIGNAL_REPEAT_WINDOW_S + 0.5  # sooner, it is the same signal delivered twice
# The checkpoint of step 2 is committed. No later one, whether it comes on time (4) or for a signal (3).
STUCK = {"FAULT": "save:0:3:sleep,save:0:4:sleep", "OMP_NUM_THREADS": "1"}
SLOW = {"FAULT": "save:0:3:nap,save:0:4:nap", "OMP_NUM_THREADS": "1"}
LONG = ("checkpoint.every_steps=2", "data.val_fraction=0", "train.epochs=100000")


@contextmanager
def training(folder: Path, *settings: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """`train` on one rank, in `place`; ended at the end of the block."""
    words = keep_last_overrides([*TINY, f"run.output_dir={folder}", "run.name=run", *settings])
    with start_python("-m", "train", "--device", "cpu", *words, environ=environ, cwd=folder) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                process.kill()


def until_step_2_is_saved(folder: Path) -> Run:
    run = Run(folder=folder / "run")
    # Or a later one, where nothing holds up the saves: the folder of step 2 is deleted within milliseconds then.
    wait_until(lambda: any((run.folder / "checkpoints").glob("step-" + "[0-9]" * 8)), "a checkpoint")
    return run


def until_stopping(run: Run) -> None:
    wait_until(lambda: (run.folder / "errors" / "stopping.json").exists(), "a request to stop")


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def test_ctrl_c_again_aborts_a_save_that_is_under_way_and_leaves_the_last_one(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, **STUCK) as process:
        run = until_step_2_is_saved(tmp_path)
        process.send_signal(INT)
        until_stopping(run)  # or a busy machine takes both for one
        time.sleep(AGAIN_S)
        process.send_signal(INT)
        code, output = ended(process)
    assert code == 130, output
    assert run.committed() == 2


def test_a_signal_that_comes_again_and_again_changes_nothing(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, **SLOW) as process:
        run = until_step_2_is_saved(tmp_path)
        for pause in (0.01, AGAIN_S, 0.0):
            process.send_signal(TERM)
            time.sleep(pause)
        code, output = ended(process)
    assert code == 75, output
    assert run.ending is not None
    assert run.ending.step == run.committed()


def test_a_closed_terminal_is_called_a_hang_up(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, OMP_NUM_THREADS="1") as process:
        run = until_step_2_is_saved(tmp_path)
        process.send_signal(signal.SIGHUP)
        code, output = ended(process)
    assert code == 75, output
    assert "stopped by SIGHUP at step" in output
    assert run.ending is not None
    assert run.ending.cause == "SIGHUP"


def test_after_a_kill_in_the_last_save_the_next_start_says_what_was_too_short(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, **STUCK) as process:
        run = until_step_2_is_saved(tmp_path)
        process.send_signal(TERM)
        until_stopping(run)
        process.send_signal(KILL)
        process.wait(60)
    with training(tmp_path, *LONG[:2], "train.epochs=1") as process:
        code, output = ended(process)
    assert code == 0, output
    assert "was asked to stop by SIGTERM and was killed before its checkpoint was committed" in output
    assert "--signal=USR1@" in output
    assert "at step 2 of" in output


def test_a_request_while_the_save_before_is_waited_for_is_noted_too(tmp_path: Path) -> None:
    with training(tmp_path, *LONG, "log.every_steps=1", **STUCK) as process:
        run = until_step_2_is_saved(tmp_path)
        # The save of step 4 is stuck, and step 6 is the next to be saved.
        wait_until(lambda: 6 in run.logged(), "the log line of step 6")
        process.send_signal(TERM)
        until_stopping(run)


def stopped_after(seconds: float, folder: Path) -> tuple[int, str, list[str]]:
    """A signal so long after the front door has begun to listen: the code, what was said, and what was written.

    The data never come to be, so that there is no first step, however fast the machine is.
    """
    folder.mkdir()
    (folder / "config.yaml").write_text("data: {name: 'held:make'}\n")
    (folder / "held.py").write_text("import time\n\ndef make(data):\n    time.sleep(3600)\n")
    with training(folder, "--config", str(folder / "config.yaml")) as process:
        wait_until(lambda: listens(process.pid), "a handler")
        time.sleep(seconds)
        process.send_signal(TERM)
        code, output = ended(process)
    return code, output, sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def listens(pid: int) -> bool:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return bool(int(next(line for line in lines if line.startswith("SigCgt")).split()[1], 16) >> (TERM - 1) & 1)
    return False


def test_a_signal_at_any_time_before_the_first_step_ends_with_75_and_without_a_checkpoint(tmp_path: Path) -> None:
    times = [0.0, 0.2, 0.6, 1.5, 3.0]  # seconds: in the front door, its imports, those of the rank, its data
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda seconds: stopped_after(seconds, tmp_path / str(seconds)), times))
    assert [code for code, _, _ in results] == [75] * len(times), results
    for _, output, files in results:
        assert "Traceback" not in output, output
        assert not [name for name in files if "step-" in name or name.endswith(("metrics.jsonl", "best.json"))], files


ASKED_BEFORE = """
import os, signal, sys
from train import __main__ as front
front.run_command = lambda argv, environ: os.kill(os.getpid(), getattr(signal, sys.argv.pop()))
sys.exit(front.main())
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGINT", 130)])
def test_a_signal_before_the_command_line_is_read_ends_as_any_other(tmp_path: Path, name: str, code: int) -> None:
    done = python("-c", ASKED_BEFORE, name, cwd=tmp_path)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr


# The first rank asks the parent to stop, and is as deaf as a rank whose interpreter still loads.
LOADING = "#!/bin/sh\nkill -TERM $PPID\nexec sleep 3600\n"
WITH_RANKS_THAT_LOAD = "import sys; sys.executable = sys.argv.pop(1); from train.__main__ import main; sys.exit(main())"


def test_a_signal_while_the_ranks_are_loaded_is_written_down(tmp_path: Path) -> None:
    loading = tmp_path / "loading"
    loading.write_text(LOADING)
    loading.chmod(0o755)
    words = ("--device", "cpu", "--procs-per-node", "2", *TINY, f"run.output_dir={tmp_path}", "run.name=run")
    with start_python("-c", WITH_RANKS_THAT_LOAD, str(loading), *words, cwd=tmp_path) as process:
        code, output = ended(process)
    ending = Run(folder=tmp_path / "run").ending
    assert (code, ending and ending.cause) == (75, "stopped by SIGTERM before the first step"), output


ASKED_BETWEEN = """
import os, signal, sys
from train import __main__ as front
from train.cli import launch
real = launch.supervision_policy
def care(*given):
    os.kill(os.getpid(), signal.SIGTERM)
    return real(*given)
launch.supervision_policy = care
sys.exit(front.main())
"""


def test_a_signal_between_the_front_door_and_the_watch_over_the_ranks_is_not_lost(tmp_path: Path) -> None:
    words = ("--device", "cpu", *keep_last_overrides([*TINY, *LONG]), f"run.output_dir={tmp_path}", "run.name=run")
    with start_python("-c", ASKED_BETWEEN, *words, cwd=tmp_path) as process:
        code, output = ended(process)
    assert (code, Run(folder=tmp_path / "run").committed()) == (75, None), output
