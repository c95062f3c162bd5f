"""`train export` from a shell."""

from __future__ import annotations

from pathlib import Path

import pytest
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
