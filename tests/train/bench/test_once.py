"""A program runs to its end, or is told with its last words; nothing of it is left."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from processes import alive, wait_until

from entrypoint import ExitCode, Failure
from train.bench import once

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
        once.done([sys.executable, "-c", "raise SystemExit('no such luck')"], {}, tmp_path, 60)
    assert caught.value.code == ExitCode.PEER


def test_a_program_that_hangs_is_told_and_killed_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"not done in 3 s.*so far") as caught:
        once.done([sys.executable, "-c", PARENT], {}, tmp_path, 3)
    assert caught.value.code == ExitCode.PEER
    wait_until(lambda: not alive(int((tmp_path / "pid").read_text())), "the child is gone")
