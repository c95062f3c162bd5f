"""train --profile-lines: which lines are timed, and where that is written."""

from __future__ import annotations

import importlib
import sys
from operator import attrgetter
from pathlib import Path

import pytest
from jobs import TINY
from processes import python

from entrypoint import ExitCode, Failure
from train import line_profiling
from train.config import load

RUN = ("--device", "cpu", "run.output_dir=.", "run.name=run")
MODEL = """
from torch import nn

def make(classes):
    return Mine(classes)

class Mine(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.last = nn.Linear(3 * 8 * 8, classes)

    def forward(self, images):
        return self.last(images.flatten(1))  # my line
"""


@pytest.mark.parametrize(("module", "name"), [(m, name) for m, names in line_profiling.OWN.items() for name in names])
def test_every_function_of_the_table_is_there(module: str, name: str) -> None:
    assert callable(attrgetter(name)(importlib.import_module(module)))


@pytest.mark.slow
def test_a_training_writes_the_time_of_its_lines_and_says_where(tmp_path: Path) -> None:
    done = python("-m", "train", *RUN, "--procs-per-node", "2", "--profile-lines", *TINY, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("lines          run/profile/rank-0000-lines.txt") == 1
    text = (tmp_path / "run/profile/rank-0000-lines.txt").read_text()
    assert [
        words
        for words in ("self.train_step(batches)", 'outputs = model(batch["image"])', "next(batches)")
        if words not in text
    ] == []
    assert [path.name for path in (tmp_path / "run/profile").iterdir()] == ["rank-0000-lines.txt"]


@pytest.mark.slow
def test_the_users_own_model_is_timed_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    settings = [word for word in TINY if "model" not in word]
    done = python("-m", "train", *RUN, "--profile-lines", *settings, "model.name=mine:make", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (line,) = [
        line for line in (tmp_path / "run" / line_profiling.FILE).read_text().splitlines() if "# my line" in line
    ]
    assert int(line.split()[1]) >= 16  # calls: 8 steps, 2 micro batches each


def test_without_the_option_the_package_is_not_loaded() -> None:
    loads = "import sys; import train.worker, train.cli.run; print('line_profiler' in sys.modules)"
    assert python("-c", loads).stdout == "False\n"


def test_a_package_that_cannot_be_loaded_is_one_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "line_profiler", None)
    with pytest.raises(Failure) as refused:
        line_profiling.load()
    assert refused.value.code == ExitCode.USAGE
    assert "pip install line_profiler" in str(refused.value)


def test_a_file_that_cannot_be_written_is_said_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "profile").write_text("in the way")
    messages: list[str] = []
    with line_profiling.timed(load.load_config(None), tmp_path, messages.append):
        pass
    assert [line.startswith("warning: ") and "rank-0000-lines.txt was not written" in line for line in messages] == [
        True
    ]


def test_an_error_inside_passes_and_its_lines_are_kept(tmp_path: Path) -> None:
    with pytest.raises(KeyError), line_profiling.timed(load.load_config(None), tmp_path, print):
        raise KeyError
    assert (tmp_path / line_profiling.FILE).exists()
