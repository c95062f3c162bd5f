"""`train export` from a shell."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from jobs import trained

from train import __main__ as front
from train.inference import export


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    trained(folder)
    return folder


def test_it_says_where_the_model_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["export", str(run), "--output", "model"], {}) == 0
    assert str(Path("model").resolve()) in capsys.readouterr().out
    assert export.load_exported("model").classes == ("outline-0", "outline-1")


def test_a_second_time_it_refuses_with_one_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["export", str(run), "--output", "model"], {}) == 0
    capsys.readouterr()
    assert front.run_command(["export", str(run), "--output", "model"], {}) == 73
    out, err = capsys.readouterr()
    assert (out, err.count("ERROR["), err.count("  fix: ")) == ("", 1, 1)


@pytest.mark.parametrize(
    ("words", "code"),
    [(["gone", "--output", "model"], 66), (["RUN"], 64), (["RUN", "train.epochs=3", "--output", "m"], 64)],
)
def test_a_wrong_command_line_writes_nothing(run: Path, words: list[str], code: int) -> None:
    assert front.run_command(["export", *(str(run) if word == "RUN" else word for word in words)], {}) == code
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "written"),
    [
        (["--format", "safetensors"], set()),
        (["--format", "torch,onnx"], {"model.pt2", "model.onnx"}),
        (["--format", "onnx", "--format", "safetensors"], {"model.onnx"}),
    ],
)
def test_the_formats_that_were_asked_for_are_written_and_nothing_else_is_printed(
    run: Path, capfd: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], written: set[str]
) -> None:
    assert front.run_command(["export", str(run), "--output", str(tmp_path / "model"), *words], {}) == 0
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"model.safetensors", "model.json", "model.py", "README.md"} | written
    out, err = capfd.readouterr()
    assert [line.split(maxsplit=1)[0] for line in out.splitlines()] == ["model", "folder", "in"]
    assert (all(name in out for name in names), err) == (True, "")


OWN = """
import torch
from torch import nn

class Pictures(torch.utils.data.Dataset):
    def __init__(self, count):
        self.targets = [number % 2 for number in range(count)]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        return torch.full((3, 8, 8), float(number % 2)), number % 2

def load(data):
    return Pictures(64), Pictures(16)

def make(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, classes))
"""
NAMES = ("model.name=code_to_export:make", "data.name=code_to_export:load")


@pytest.mark.parametrize("named", [NAMES, ("--config", "cfg.yaml")], ids=["typed", "by a file"])
@pytest.mark.parametrize("formats", [(), ("--format", "torch")])
def test_a_network_and_data_of_ones_own_are_exported_as_the_docs_say(
    named: tuple[str, ...], formats: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("code_to_export.py").write_text(OWN)
    Path("cfg.yaml").write_text("model: {name: code_to_export:make}\ndata: {name: code_to_export:load}\n")
    monkeypatch.delitem(sys.modules, "code_to_export", raising=False)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(Path.cwd()))
        trained(Path("run"), *NAMES, "model.args={}", "train.max_steps=2")
    sys.modules.pop("code_to_export")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert front.run_command(["export", "run", "--output", "model", *formats, *named], {}) == 0
    exported = export.load_exported("model", factory=sys.modules["code_to_export"].make)
    assert exported.network(torch.zeros(1, 3, 8, 8)).shape == (1, 2)
    assert Path("model/model.pt2").exists() == bool(formats)


def test_a_network_of_ones_own_that_is_not_named_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("code_to_export.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "code_to_export", raising=False)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(str(Path.cwd()))
        trained(Path("run"), *NAMES, "model.args={}", "train.max_steps=2")
    sys.modules.pop("code_to_export")
    assert front.run_command(["export", "run", "--output", "model"], {}) == 77
    assert "code_to_export" not in sys.modules
