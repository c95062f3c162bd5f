"""A path with ~ or a variable that no shell has replaced is refused, in every setting and option that names a path."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure, StrictArgumentParser
from train.cli import export, predict, report, weights
from train.config import load, schema

PATH_KEYS = ("run.output_dir", "run.name", "data.root", "data.images", "data.stage", "data.cache", "model.weights")


def refusal(key: str, path: str, tmp_path: Path) -> Failure:
    """Of a file that sets the key."""
    section, name = key.split(".")
    (tmp_path / "my.yaml").write_text(f"{section}:\n  {name}: {path}\n")
    with pytest.raises(Failure, match=key) as refused:
        load.load_config(str(tmp_path / "my.yaml"))
    assert refused.value.code == ExitCode.USAGE
    return refused.value


@pytest.mark.parametrize("key", PATH_KEYS)
@pytest.mark.parametrize("path", ["$SCRATCH/runs", "${SCRATCH}/runs"])
def test_a_variable_in_a_file_is_refused_with_the_path_to_write(
    key: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    name = "scratch-me-runs" if key == "run.name" else "/scratch/me/runs"  # a plain folder name
    assert refusal(key, path, tmp_path).fix == f"write {key}: {name}"


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_refused_by_its_name(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("SCRATCH", raising=False)
    else:
        monkeypatch.setenv("SCRATCH", value)  # "$SCRATCH/runs" would be /runs
    assert "SCRATCH is not set" in refusal("run.output_dir", "$SCRATCH/runs", tmp_path).fix


def test_what_only_a_shell_can_do_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    for path in ("${SCRATCH:-/tmp}/runs", "$(pwd)/runs", "~nobody-of-this-name/runs"):
        refusal("run.output_dir", path, tmp_path)


def test_the_home_folder_is_refused_with_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert refusal("data.root", "~/photos", tmp_path).fix == "write data.root: /home/me/photos"


def test_the_rule_is_that_of_the_command_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    with pytest.raises(Failure) as refused:
        load.load_config(None, ["run.output_dir=$SCRATCH/my runs"])
    assert refused.value.fix == "write 'run.output_dir=/scratch/me/my runs'"


def test_what_is_there_by_such_a_name_may_be_read_but_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "$old").mkdir()
    assert load.load_config(None, ["data.root=$old"]).data.root == "$old"
    with pytest.raises(Failure):
        load.load_config(None, ["run.output_dir=$old"])


def test_every_key_with_a_folder_or_file_has_the_rule() -> None:
    with_rule = {path for path, key in schema.KEYS.items() if key.rule.find_problem is schema.PATH.find_problem}
    assert with_rule == set(PATH_KEYS)


def test_the_address_of_a_mirror_has_no_variable() -> None:
    with pytest.raises(Failure, match=r"data\.mirror"):
        load.load_config(None, ["data.mirror=file:///$HOME/mirror"])


OPTIONS: dict[str, tuple[argparse.ArgumentParser, list[str]]] = {
    "export": (export.build_parser(), ["runs/x", "--output"]),
    "predict": (predict.build_parser(), ["runs/x", "a.jpg", "--csv"]),
    "heat-maps": (predict.build_parser(), ["runs/x", "a.jpg", "--explain"]),
    "report": (report.build_parser(), ["runs/x", "--output"]),
    "weights": (weights.build_parser(), ["fetch", "resnet18", "--to"]),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("path", ["$SCRATCH/out.csv", "~/out.csv"])
def test_an_option_of_any_command_makes_no_such_folder(name: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    monkeypatch.setenv("HOME", "/scratch/me")
    parser, words = OPTIONS[name]
    with pytest.raises(Failure, match="only a shell") as refused:
        parser.parse_args([*words, path])
    assert refused.value.fix.startswith("write /scratch/me/out.csv")


def test_an_option_that_is_no_path_keeps_its_dollar() -> None:
    parser = StrictArgumentParser()
    parser.add_argument("--text", metavar="TEXT")
    assert parser.parse_args(["--text", "$5"]).text == "$5"
