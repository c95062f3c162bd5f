"""bench/gpu.sh on a machine without a GPU: it says so, or what its Python lacks, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes import unmeasured

SCRIPT = Path(__file__).parents[2] / "bench" / "gpu.sh"


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """The script, started elsewhere than in the checkout."""
    environ = unmeasured() | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""} | variables
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=120, env=environ, cwd=folder)


def test_without_a_gpu_it_is_refused_with_a_fix(tmp_path: Path) -> None:
    ended = run(tmp_path, "out")
    assert ended.returncode == 78, ended.stderr
    assert "no GPU can be used here" in ended.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["first.txt"]


def test_what_this_python_lacks_is_named(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    ended = run(tmp_path, PYTHON=str(bare))
    assert ended.returncode == 66
    assert "ERROR[66] this python lacks torch" in ended.stderr


# Has every module, and a train that answers in the place of the real one.
STAND_IN = """\
#!/bin/bash
[[ $1 == - ]] && {{ cat >/dev/null; exit 0; }}
[[ $2 == train ]] && {{ echo "a first training"; exit {first}; }}
echo "asked: $* GPU ${{CUDA_VISIBLE_DEVICES}}"
while [[ $1 != --output ]]; do shift; done
echo "| a row |" >"$2/bench.md"
{then}
"""


def stand_in(folder: Path, then: str, first: int = 0) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(STAND_IN.format(then=then, first=first))
    (folder / "bin" / "python").chmod(0o755)


def test_a_python_is_found_by_a_relative_path_wherever_the_output_goes(tmp_path: Path) -> None:
    stand_in(tmp_path, "")
    ended = run(tmp_path, "deep/out", "--pairs", "2", PYTHON="bin/python", CUDA_VISIBLE_DEVICES="3")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"--rows 3,6,10,1 --output {tmp_path}/deep/out --pairs 2 GPU 3" in ended.stdout


@pytest.mark.parametrize(("code", "measured"), [(70, True), (72, False), (78, False)])
def test_rows_are_measured_after_a_failed_first_training_unless_there_is_no_gpu_for_it(
    tmp_path: Path, code: int, measured: bool
) -> None:
    stand_in(tmp_path, "", first=code)
    ended = run(tmp_path, "out", PYTHON="bin/python")
    assert (ended.returncode, "asked: -m bench" in ended.stdout) == (0 if measured else code, measured), ended.stderr
    assert (tmp_path / "out/first.txt").read_text() == "a first training\n"


def test_at_the_limit_it_prints_what_it_has(tmp_path: Path) -> None:
    stand_in(tmp_path, "exec sleep 600")
    ended = run(tmp_path, "out", PYTHON="bin/python", LIMIT_S="2")
    assert ended.returncode == 124
    assert "| a row |" in ended.stdout
    assert "stopped after 2 s" in ended.stderr


def test_a_torch_that_is_too_old_is_named(tmp_path: Path) -> None:
    needed = re.search(r"wanted = (\[.*\])", SCRIPT.read_text())
    assert needed is not None
    for name in json.loads(needed[1]):
        (tmp_path / f"{name}.py").write_text("__version__ = '2.9.1+cu128'\n")
    ended = run(tmp_path, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 66
    assert "lacks torch 2.10 (has 2.9.1+cu128)" in ended.stderr


@pytest.mark.parametrize("row", ["1", "3", "6", "10"])
def test_it_asks_for_rows_that_there_are(row: str) -> None:
    from bench import step

    assert row in step.ROWS
    assert re.search(rf"--rows \"(\d+,)*{row}[,\"]", SCRIPT.read_text())
