"""Command lines that cannot be read."""

from __future__ import annotations

import pytest

from entrypoint import ExitCode, Failure
from train.commands.words import Parser


def test_a_bad_command_line_is_a_failure_with_our_code() -> None:
    with pytest.raises(Failure, match="--nothing") as refused:
        Parser(prog="train report").parse_args(["--nothing"])
    assert refused.value.code == ExitCode.USAGE
    assert refused.value.fix is not None
    assert refused.value.fix.startswith("see `train report --help`")
