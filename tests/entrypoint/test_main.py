"""The command `entrypoint`, typed as a user types it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from machines import captured
from processes import TIMEOUT_S, python, unmeasured

CPU = ("--device", "cpu")


def show(*options: str, **environ: str):  # type: ignore[no-untyped-def]
    return python("-m", "entrypoint", "show", *options, environ=environ)


def test_show_json_is_the_promised_object() -> None:
    record = json.loads(show("--json", *CPU, **captured("per-gpu/task-3@node02")).stdout)
    world = record["world"]
    assert record["launcher"] == "slurm-task"
    assert 20_000 <= world.pop("master_port") < 32_768
    assert world == {
        "rank": 3,
        "local_rank": 1,
        "world_size": 4,
        "local_world_size": 2,
        "node_rank": 1,
        "num_nodes": 2,
        "master_addr": "node01",
    }
    assert (record["hosts"], record["spawn"], record["warnings"]) == (["node01", "node02"], 1, [])
    assert record["sources"]["rank"] == "SLURM_PROCID"


def test_show_tells_a_person_where_each_value_came_from() -> None:
    lines = show(*CPU, **captured("per-node/task-1@node02")).stdout.splitlines()
    assert any(line.split() == ["rank", "1", "SLURM_PROCID"] for line in lines)


def test_show_counts_ranks_from_the_variable() -> None:
    record = json.loads(show("--json", ENTRYPOINT_DEVICE="cpu", ENTRYPOINT_PROCS_PER_NODE="3").stdout)
    assert (record["spawn"], record["hosts"]) == (3, [socket.gethostname().split(".")[0]])


def test_a_refusal_in_json_holds_code_what_and_fix() -> None:
    done = show("--json", *CPU, **captured("no-srun-two-nodes/batch-0@node01"))
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (76, 76)
    assert "srun" in error["fix"]
    assert error["what"]


def test_a_refusal_for_a_person_is_one_block_without_a_traceback() -> None:
    done = show(*CPU, RANK="0")
    assert done.returncode == 76
    assert done.stderr.startswith("ERROR[76] incomplete torchrun variables")
    assert "Traceback" not in done.stderr


# More lines: tests/support/bad/commands.py.
@pytest.mark.parametrize("line", [["show", "--device", "tpu"], ["run", "--"]], ids=" ".join)
def test_a_bad_command_line_is_64_with_a_fix(line: list[str]) -> None:
    done = python("-m", "entrypoint", *line)
    assert done.returncode == 64
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "fix"), [("docter", "write `entrypoint doctor`"), ("x", "use one of: show, doctor, run, job-script")]
)
def test_an_unknown_command_is_answered_with_the_nearest_one(name: str, fix: str) -> None:
    done = python("-m", "entrypoint", name)
    assert done.returncode == 64
    what, shown_fix = done.stderr.splitlines()
    assert what == f"ERROR[64] `entrypoint {name}` is no command"
    assert shown_fix.replace(f"{sys.executable} -m ", "") == f"  fix: {fix}"


@pytest.mark.parametrize(
    "line",
    [
        ["doctor", "--output", "a", "--output=b"],
        ["run", "--logs", "a", "--logs", "b", "true"],
    ],
    ids=" ".join,
)
def test_an_option_that_is_given_twice_is_64_and_both_are_named(line: list[str]) -> None:
    done = python("-m", "entrypoint", *line)
    assert (done.returncode, "Traceback" in done.stderr) == (64, False)
    option, values = line[1].partition("=")[0], (line[2], line[-1 if "true" not in line else -2].rpartition("=")[2])
    assert f"{option} is given twice\n  found: `{option} {values[0]}` and `{option} {values[1]}`" in done.stderr


def test_a_program_s_own_options_may_be_repeated(tmp_path: Path) -> None:
    line = ("run", "--device", "cpu", "--", "echo", "--device", "a", "--device", "b")
    done = python("-m", "entrypoint", *line, cwd=tmp_path)
    assert (done.returncode, "--device a --device b" in done.stdout) == (0, True)


def test_showing_needs_neither_torch_nor_yaml_nor_numpy() -> None:
    code = "import sys, entrypoint.__main__ as m; m.main(['show', '--device', 'cpu']); print(sorted(sys.modules))"
    modules = python("-c", code).stdout
    assert not any(f"'{name}'" in modules for name in ("torch", "yaml", "numpy"))


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
def test_a_closed_or_full_console_does_not_change_the_code(closed: str, tmp_path: Path) -> None:
    line = f'"{sys.executable}" -m entrypoint run --device cpu -- sh -c "echo out; echo err >&2; exit 4" {closed}'
    assert subprocess.run(["sh", "-c", line], cwd=tmp_path, timeout=60, check=False).returncode == 4
    assert sorted((tmp_path / "logs/rank-0000.log").read_text().split()) == ["err", "out"]


def test_a_plan_that_a_full_disk_loses_is_74() -> None:
    line = f'"{sys.executable}" -m entrypoint show --device cpu >/dev/full'
    assert subprocess.run(["sh", "-c", line], timeout=60, check=False).returncode == 74


@pytest.mark.parametrize("closed", [">&-", "2>&-", "| true"])
def test_showing_into_a_closed_console_is_no_failure(closed: str) -> None:
    line = f'"{sys.executable}" -m entrypoint show --device cpu {closed}'
    assert subprocess.run(["sh", "-c", line], timeout=60, check=False).returncode == 0


def test_a_bug_of_ours_is_70_with_a_traceback() -> None:
    code = "import sys, entrypoint.__main__ as m; m._COMMANDS['show'] = None; sys.exit(m.main(['show']))"
    done = python("-c", code)
    assert done.returncode == 70
    assert "Traceback" in done.stderr


def test_too_few_open_files_are_said_with_the_limit_to_raise(tmp_path: Path) -> None:
    line = ["sh", "-c", 'ulimit -n 9; exec "$0" -m entrypoint run --device cpu -- true', sys.executable]
    done = subprocess.run(line, cwd=tmp_path, env=unmeasured(), capture_output=True, text=True, timeout=TIMEOUT_S)
    assert (done.returncode, done.stdout) == (71, "")
    assert done.stderr.startswith("ERROR[71] the system opens no further file")
    assert "ulimit -n" in done.stderr


@pytest.mark.parametrize("command", [("show",), ("run", "true")])
def test_without_the_package_that_counts_gpus_there_is_an_error_and_no_traceback(command: tuple[str, ...]) -> None:
    script = "import sys; sys.modules['pynvml'] = None; from entrypoint import __main__ as m; sys.exit(m.main())"
    done = python("-c", script, *command)
    assert done.returncode == 78
    assert done.stderr.startswith("ERROR[78] GPUs cannot be counted: the package nvidia-ml-py")
    assert "  fix: " in done.stderr
