"""What `train eval` starts, and what it leaves behind."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from entrypoint import ExitCode, Failure, SupervisionPolicy
from train import __main__ as front
from train.checkpoint import manifest
from train.cli import evaluate, launch
from train.config import load

CPU = ("--device", "cpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint whose training was on two ranks of the CPU; without tensors."""
    config = dataclasses.asdict(load.load_config(None, ["launch.device=cpu", "launch.procs_per_node=2"]))
    state = json.dumps({"config": config}).encode()
    path = tmp_path / "run" / "checkpoints" / "step-00000007"
    path.mkdir(parents=True)
    (path / "state.json").write_bytes(state)
    listed = manifest.Manifest(format=1, step=7, torch="2.0", files={"state.json": manifest.make_file_entry(state)})
    (path / manifest.FILE_NAME).write_bytes(manifest.to_bytes(listed))
    return path


def test_eval_starts_the_ranks_of_the_checkpoints_configuration(launched: dict[str, Any], checkpoint: Path) -> None:
    environ = {"TMPDIR": str(checkpoint.parents[2])}
    assert front.run_command(["eval", "run", "--json", "eval.batch_size=9"], environ) == 7
    command, scratch = launched["command"], launched["log_dir"].parent
    assert command[1:] == [
        *("-m", "train.worker", "--evaluate", str(checkpoint), "--scratch", str(scratch), "--json", "eval.batch_size=9")
    ]
    assert launched["plan"].spawn == 2
    assert scratch.parent == checkpoint.parents[2]


@pytest.mark.parametrize(("code", "stays"), [(0, False), (75, False), (65, True)])
def test_eval_leaves_logs_only_where_it_failed(
    launched: dict[str, Any], checkpoint: Path, monkeypatch: pytest.MonkeyPatch, code: int, stays: bool
) -> None:
    monkeypatch.setattr(launch, "run_plan", lambda *arguments, **options: code)
    assert front.run_command(["eval", str(checkpoint)], {"TMPDIR": "."}) == code
    assert bool(list(Path().glob("train-*"))) == stays


def test_eval_that_cannot_start_leaves_nothing(
    launched: dict[str, Any], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> int:
        raise Failure("no such host", fix="name another", code=ExitCode.PEER)

    monkeypatch.setattr(launch, "run_plan", refuse)
    assert front.run_command(["eval", str(checkpoint)], {"TMPDIR": "."}) == 69
    assert list(Path().glob("train-*")) == []


def test_eval_says_what_was_passed_over(launched: dict[str, Any], checkpoint: Path) -> None:
    shutil.copytree(checkpoint, checkpoint.with_name("step-00000008"))  # its manifest belongs to step 7
    front.run_command(["eval", "run", "data.image_size=48"], {"TMPDIR": "."})
    assert launched["command"][4] == str(checkpoint)
    warnings = "\n".join(launched["plan"].warnings)
    assert "skipped a damaged checkpoint: step-00000008" in warnings
    assert "data.image_size: 32 -> 48" in warnings


@pytest.mark.parametrize("line", [["eval", "run", "--all"], ["eval", "--all", "run"], ["--all", "eval", "run"]])
def test_eval_of_all_images_is_handed_to_the_ranks(launched: dict[str, Any], checkpoint: Path, line: list[str]) -> None:
    assert front.run_command(line, {"TMPDIR": "."}) == 7
    assert launched["command"][7:] == ["--split", "all"]


def test_eval_of_the_test_split_is_handed_to_the_ranks(launched: dict[str, Any], checkpoint: Path) -> None:
    assert front.run_command(["eval", "run", "--split", "test"], {"TMPDIR": "."}) == 7
    assert launched["command"][7:] == ["--split", "test"]


def test_eval_takes_one_split(launched: dict[str, Any], checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["eval", "run", "--all", "--split", "test"], {"TMPDIR": "."}) == 64
    assert "not allowed with" in capsys.readouterr().err


def test_the_table_of_images_is_written_by_the_ranks_where_the_user_stands(
    launched: dict[str, Any], checkpoint: Path
) -> None:
    assert front.run_command(["eval", "run", "--per-image", "images.csv"], {"TMPDIR": "."}) == 7
    assert launched["command"][7:] == ["--per-image", str(Path.cwd() / "images.csv")]


@pytest.mark.parametrize(("file", "code"), [("images.txt", 64), ("none/images.csv", 73)])
def test_a_table_that_cannot_be_written_is_refused_before_anything_starts(
    launched: dict[str, Any], checkpoint: Path, file: str, code: int
) -> None:
    assert front.run_command(["eval", "run", "--per-image", file], {"TMPDIR": "."}) == code
    assert "command" not in launched


def test_what_the_report_shows_is_kept_by_the_ranks(
    launched: dict[str, Any], checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert front.run_command(["eval", "run", "--report"], {"TMPDIR": "."}) == 7
    assert launched["command"][7:] == ["--report"]
    assert "next:" not in capsys.readouterr().err
    monkeypatch.setattr(launch, "run_plan", lambda *arguments, **options: 0)
    assert front.run_command(["eval", "run", "--report"], {"TMPDIR": "."}) == 0
    assert f"next: train report {Path.cwd() / 'run'}" in capsys.readouterr().err


def test_eval_promises_no_save_to_who_stops_it(
    launched: dict[str, Any], checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SupervisionPolicy] = []
    monkeypatch.setattr(launch, "run_plan", lambda *arguments, policy, **options: seen.append(policy) or 75)
    assert front.run_command(["eval", "run"], {"TMPDIR": "."}) == 75
    assert not [word for word in ("save", "step") if word in " ".join(seen[0].promise)]


def test_eval_takes_the_local_rank_of_an_old_launcher(launched: dict[str, Any], checkpoint: Path) -> None:
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "TMPDIR": "."}
    for line in (["--local-rank=0", "eval", "run"], ["eval", "--local-rank=0", "run"]):
        assert front.run_command([*line, "--procs-per-node", "1"], {**alone, "LOCAL_WORLD_SIZE": "1"}) == 7


def test_the_help_of_eval_is_its_own_with_an_example_of_each_kind(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        front.run_command(["eval", "--help"], {})
    printed = capsys.readouterr().out
    assert left.value.code == 0
    assert printed.startswith("usage: train eval RUN [--all | --split NAME] [--json]")
    examples = [line.partition("  train eval ")[2] for line in printed.splitlines() if line.startswith("  train eval ")]
    assert all(
        any(word in line for line in examples) for word in ("step-", "--all", "data.root=", "--json", "--device")
    )


def test_each_option_of_eval_is_explained_in_its_own_line() -> None:
    options = [line for line in evaluate.build_parser().format_help().splitlines() if line.startswith("  -")]
    assert len(options) == 14
    assert all(len(line) <= 100 and re.match(r"  --?[a-z].*?  +[a-z]", line) for line in options)


def test_what_belongs_to_a_training_is_refused(launched: dict[str, Any], checkpoint: Path) -> None:
    assert front.run_command(["eval", "run", "--time-limit", "10"], {"TMPDIR": "."}) == 64
    assert "command" not in launched
