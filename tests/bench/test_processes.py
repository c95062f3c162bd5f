"""Programs that run a block of steps on request: real processes, ours and a peer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import stand_ins
from processes import alive, unmeasured, wait_until

from bench import harness, processes, training
from bench.processes import BenchOptions, Program, RunningProgram
from entrypoint import ExitCode, Failure

TINY = ("--model", "tiny", "--size", "8", "--classes", "2", "--samples", "64", "--batch", "8", "--warm-up", "2")
OURS = (
    "data.name=synthetic",
    "data.samples=64",
    "data.image_size=8",
    "data.classes=2",
    "model.name=workload:tiny",
    "train.global_batch_size=8",
    "train.epochs=1000",
    "eval.every_epochs=1000",
)
# A peer that tells its pid and then answers.
TALKS = """
import json, os, socket, sys
port, _, token = sys.argv[-1].partition(":")
talk = socket.create_connection(("127.0.0.1", int(port))).makefile("rw")
print(json.dumps({"token": token, "pid": os.getpid()}), file=talk, flush=True)
for line in talk:
    print(json.dumps({"seconds": 2.0 * json.loads(line)["steps"], "cpu": 0.0}), file=talk, flush=True)
"""


def on_cpu(folder: Path) -> BenchOptions:
    """Options of a benchmark on the CPU."""
    return stand_ins.on_cpu(folder, environ=unmeasured())


def python(code: str, **more: str) -> Program:
    """A program that runs this code."""
    return Program(name="side", command=[sys.executable, "-c", code], environ=unmeasured() | more)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningProgram]]:
    """Our own training and the bare loop, both on two ranks, waiting."""
    with_files = replace(on_cpu(tmp_path_factory.mktemp("pair")), compares=True)
    ours = training.training_program(with_files, "ours", *OURS, procs=2)
    bare = harness.peer_program(with_files, "bare", *TINY, ranks=2)
    with processes.start_programs(with_files, ours, bare) as both:
        yield both


@pytest.mark.slow
@pytest.mark.together("pair")
def test_both_train_the_same_number_of_ranks_and_images(pair: list[RunningProgram]) -> None:
    ours, bare = pair
    assert ours.facts["ranks"] == bare.facts["ranks"] == 2
    assert ours.facts["batch"] * 2 == bare.facts["batch"]


@pytest.mark.slow
@pytest.mark.together("pair")
@pytest.mark.parametrize("which", [0, 1], ids=["ours", "bare"])
def test_each_does_its_block_when_it_is_told_to(pair: list[RunningProgram], which: int) -> None:
    pair[which].steps = 3
    assert pair[which].step_seconds() > 0


@pytest.mark.slow
@pytest.mark.together("pair")
def test_ours_tells_how_long_each_step_took(pair: list[RunningProgram]) -> None:
    times = pair[0].request(steps=4, stamps=True)
    assert len(times["stamps"]) == 4
    assert sum(times["stamps"]) <= times["seconds"]


def test_the_time_of_a_block_is_told_by_step(tmp_path: Path) -> None:
    with processes.start_programs(on_cpu(tmp_path), python(TALKS)) as (side,):
        side.steps = 5
        assert side.step_seconds() == 2.0
        assert side.steps_in(8.0) == 4


def test_at_the_end_all_processes_are_gone(tmp_path: Path) -> None:
    with processes.start_programs(on_cpu(tmp_path), python(TALKS)) as (side,):
        pid = side.facts["pid"]
        assert alive(pid)
    wait_until(lambda: not alive(pid), "the side is gone")


def test_a_side_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="side") as failed, processes.start_programs(on_cpu(tmp_path), python("1/0")):
        pass
    assert failed.value.code == ExitCode.PEER
    assert "ZeroDivisionError" in str(failed.value)


def test_on_a_gpu_which_is_not_had_for_long_less_is_waited(tmp_path: Path) -> None:
    options = on_cpu(tmp_path)
    on_gpu = replace(options, device="cuda")
    assert processes._limit(on_gpu) < processes._limit(options) == processes._limit(replace(on_gpu, config="cfg.yaml"))


SILENT = TALKS.partition("for line in talk")[0] + "import time; time.sleep(600)"


@pytest.mark.parametrize(("code", "why"), [("import time; time.sleep(600)", "no word in 2 s"), (SILENT, "timed out")])
def test_a_side_that_hangs_is_given_up_with_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    monkeypatch.setattr(processes, "LIMIT_S", 2.0)
    with (
        pytest.raises(Failure, match=why) as failed,
        processes.start_programs(on_cpu(tmp_path), python(code)) as (side,),
    ):
        side.step_seconds()
    assert failed.value.code == ExitCode.PEER


def test_the_number_of_pairs_is_the_requested_one_or_two_in_a_hurry_or_the_rows_own(tmp_path: Path) -> None:
    assert on_cpu(tmp_path).num_pairs(30) == 30
    assert replace(on_cpu(tmp_path), quick=True).num_pairs(30) == 2
    assert replace(on_cpu(tmp_path), quick=True, pairs=7).num_pairs(30) == 7


def test_coverage_is_not_measured_too(tmp_path: Path) -> None:
    options = stand_ins.on_cpu(tmp_path, environ={"PATH": "/bin", "COVERAGE_PROCESS_START": "x"})
    assert "COVERAGE_PROCESS_START" not in options.child_environ()
    assert options.child_environ(RANK="0")["RANK"] == "0"


def test_counts_are_sorted_and_at_least_one() -> None:
    assert processes.parse_counts("4,1,4") == [1, 4]
    with pytest.raises(ValueError, match=r"^$"):
        processes.parse_counts("0,1")


def test_the_main_of_a_module_gets_the_words_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "echo.py").write_text("def main(words, environ): print(words, environ['A'])")
    monkeypatch.setattr(processes, "ROOT", tmp_path)
    command = processes.module_command("echo", "one", "two")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**unmeasured(), "A": "b"}, cwd="/")
    assert (done.stdout, done.stderr) == ("['one', 'two'] b\n", "")


# Leaves a child that keeps its output open, as a launcher does that hangs.
PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open("pid", "w").write(str(child.pid))
print("so far", flush=True)
child.wait()
"""


def test_a_program_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no such luck") as caught:
        processes.run_to_end([sys.executable, "-c", "raise SystemExit('no such luck')"], {}, tmp_path, 60)
    assert caught.value.code == ExitCode.PEER


def test_a_program_that_hangs_is_told_and_killed_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"not done in 3 s.*so far") as caught:
        processes.run_to_end([sys.executable, "-c", PARENT], {}, tmp_path, 3)
    assert caught.value.code == ExitCode.PEER
    wait_until(lambda: not alive(int((tmp_path / "pid").read_text())), "the child is gone")


def test_a_script_that_runs_alone_is_read_from_its_last_line(tmp_path: Path) -> None:
    code = "print('note'); print('{\"step_s\": [1.0]}'); print('bye')"
    assert processes.run_for_json([sys.executable, "-c", code], {}, tmp_path, 60) == {"step_s": [1.0]}


def test_a_script_without_a_result_is_a_failure_of_the_peer(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no luck") as caught:
        processes.run_for_json([sys.executable, "-c", "print('no luck')"], {}, tmp_path, 60)
    assert caught.value.code == ExitCode.PEER
