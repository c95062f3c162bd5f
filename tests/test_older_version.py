"""A run, a checkpoint and an export that the version of November 2026 wrote are still read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from images import write_image
from jobs import forget_accelerate
from processes import python

from train import __main__ as front

OLDER = Path(__file__).parent / "support" / "version-0.1.0"
CPU = {"ENTRYPOINT_DEVICE": "cpu"}
# As its config.yaml says; a start that changes one of them is refused.
SETTINGS = [
    "run.name=run",
    "run.output_dir=.",
    "data.samples=160",
    "data.image_size=8",
    "data.classes=4",
    "train.global_batch_size=32",
    "log.every_steps=2",
    "checkpoint.every_steps=2",
    "checkpoint.keep=1",
    "log.tensorboard=false",
    "optim.name=adamw",
    "optim.lr=0.001",
    "train.ema_decay=0.9",
]


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """A copy, which a test may write to."""
    return Path(shutil.copytree(OLDER, tmp_path / "older"))


@pytest.fixture(autouse=True)
def _own_accelerate() -> Iterator[None]:
    forget_accelerate()
    yield
    forget_accelerate()


def test_its_run_is_resumed(older: Path) -> None:
    done = python("-P", "-m", "train", *SETTINGS, "model.args={width: 2}", "train.epochs=2", environ=CPU, cwd=older)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at step 4 of 8" in done.stdout
    assert json.loads((older / "run" / "best.json").read_text())["step"] in (4, 8)


def test_its_checkpoint_is_evaluated_as_it_was_then(older: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["eval", str(older / "run"), "--json"], CPU) == 0
    assert json.loads(capfd.readouterr().out)["accuracy"] == 0.21875


@pytest.mark.parametrize("model", ["run", "export"])
def test_its_model_predicts(older: Path, tmp_path: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    image = write_image(tmp_path / "photo.png", 9)
    assert front.run_command(["predict", str(older / model), str(image)], CPU) == 0
    assert capsys.readouterr().out.split("\t")[1].startswith("outline-")


def test_its_run_is_reported(older: Path, tmp_path: Path) -> None:
    assert front.run_command(["report", str(older / "run"), "--output", str(tmp_path / "report")], {}) == 0
    assert "21.88" in (tmp_path / "report" / "report.md").read_text()
