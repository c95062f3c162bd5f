"""Command lines that cannot be read."""

from __future__ import annotations

import argparse
import re

import pytest

from entrypoint import ExitCode, Failure
from train.cli import evaluate, export, predict
from train.cli.launch import TrainArgumentParser


def test_a_bad_command_line_is_a_failure_with_our_code() -> None:
    with pytest.raises(Failure, match="--nothing") as refused:
        TrainArgumentParser(prog="train report").parse_args(["--nothing"])
    assert refused.value.code == ExitCode.USAGE
    assert refused.value.fix is not None
    assert refused.value.fix.startswith("see `train report --help`")


USAGES: dict[str, tuple[TrainArgumentParser, str]] = {
    "eval": (
        evaluate.build_parser(),
        "RUN [--all | --split NAME] [--json] [--per-image FILE.csv] [--report [--explain]] [--config FILE] [options] "
        "[section.key=value ...]",
    ),
    "export": (export.build_parser(), "RUN --output DIR [--format NAME,...] [--config FILE] [section.key=value ...]"),
    "predict": (
        predict.build_parser(),
        "RUN IMAGES... [--top K] [--json | --csv FILE [--all-classes]] [--explain DIR] [--device auto|cpu|cuda] "
        "[--config FILE] [section.key=value ...]",
    ),
}


@pytest.mark.parametrize("name", USAGES)
def test_what_may_be_left_out_stands_in_brackets(name: str) -> None:
    parser, words = USAGES[name]
    assert parser.format_usage() == f"usage: train {name} {words}\n"


@pytest.mark.parametrize("name", USAGES)
def test_every_option_of_a_usage_line_is_explained_and_none_is_left_out(name: str) -> None:
    parser, words = USAGES[name]
    explained = {
        option for action in parser._actions if action.help != argparse.SUPPRESS for option in action.option_strings
    }
    named = set(re.findall(r"--[a-z-]+", words))
    assert named <= explained
    assert "[options]" in words or explained - {"-h", "--help"} == named
