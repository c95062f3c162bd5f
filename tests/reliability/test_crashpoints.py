"""A commit that dies or fails in any of its system calls: the smaller size of `make crashpoints`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import committer
import crashpoints
import pytest

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="machine: strace is not there")
# Every third case takes 12 s of two cores; the whole is `make crashpoints`.
SHARE = 3


def test_what_is_committed_survives_a_fault_in_every_third_of_the_calls() -> None:
    done = list(crashpoints.run(SHARE))
    assert [(trial.row, trial.lines) for trial in done if not trial.ok] == []
    assert len(done) > 500


def test_a_commit_needs_no_torch() -> None:
    code = "import committer, sys; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(committer.__file__).parent, timeout=60)
    assert done.returncode == 0


def test_a_commit_that_wrote_in_place_would_be_caught(tmp_path: Path) -> None:
    case = crashpoints.Case(scene="the same step again", call="write", k=1, fault="SIGKILL")
    with crashpoints.begun(tmp_path) as folder:
        for path in folder.glob("step-*/model.safetensors"):
            path.write_bytes(b"half")
        with pytest.raises(crashpoints.Failure, match="no checkpoint"):
            list(crashpoints._of_the_folder(case, -9, folder))
