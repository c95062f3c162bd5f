"""`train find-lr` trains with a growing learning rate and suggests one."""

from __future__ import annotations

import csv
import math
from itertools import pairwise
from pathlib import Path

import pytest
from jobs import TINY, forget_accelerate

from train import __main__ as front
from train.cli import learning_rate_finder
from train.cli.learning_rate_finder import MAX_RATE, MIN_RATE, NUM_STEPS, GrowingRate, LossCurve, has_diverged
from train.config.load import keep_last_overrides

RATES = [GrowingRate(name="growing", peak=MAX_RATE, warmup=0, total=NUM_STEPS, args={})(step) for step in range(100)]


def curve(losses: list[float], *, scale: float = 1.0, diverged: bool = True) -> LossCurve:
    return LossCurve(
        name="run", rates=RATES[: len(losses)], losses=losses, has_diverged=diverged, images=16, scale=scale
    )


def fall(at: float) -> list[float]:
    """A loss that falls around a rate, and grows from a hundred times this rate on."""
    return [2 - 1 / (1 + (at / rate) ** 2) + (rate / at / 100) ** 2 for rate in RATES]


def find(capsys: pytest.CaptureFixture[str], *settings: str) -> str:
    forget_accelerate()
    words = keep_last_overrides([*TINY, "run.name=tiny", "optim.lr=0.1", *settings])
    words = ["find-lr", "--device", "cpu", *words]
    assert front.run_command(words, {}) == 0
    forget_accelerate()
    return capsys.readouterr().out


def test_an_optimizer_without_a_usual_rate_is_swept_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "suggestion     " in find(capsys, "optim.lr=auto", "optim.name=ASGD")


def test_the_rates_grow_by_the_same_factor_in_each_step() -> None:
    assert (RATES[0], RATES[-1]) == (MIN_RATE, MAX_RATE)
    factors = {round(later / earlier, 9) for earlier, later in pairwise(RATES)}
    assert len(factors) == 1


@pytest.mark.parametrize("at", [1e-5, 1e-3, 0.03])
def test_the_suggestion_is_where_the_loss_falls_fastest(at: float) -> None:
    suggestion = curve(fall(at)).suggestion
    assert suggestion is not None
    assert 0.5 < suggestion / at < 2


def test_the_suggestion_is_the_setting_that_gives_the_rate() -> None:
    alone, scaled = curve(fall(1e-3)).suggestion, curve(fall(1e-3), scale=4.0).suggestion
    assert alone is not None
    assert scaled == pytest.approx(alone / 4, rel=0.05)


@pytest.mark.parametrize("losses", [[2.0] * 100, [2.0 + step for step in range(100)], [2.0] * 3, [2.0]])
def test_a_loss_that_never_falls_gives_no_suggestion(losses: list[float]) -> None:
    assert curve(losses).suggestion is None
    assert "suggestion     none" in curve(losses).as_text()


@pytest.mark.parametrize(
    ("losses", "diverged"),
    [
        ([], False),
        ([2.0] * 9, False),
        ([math.nan], True),
        ([2.0] * 9 + [math.inf], True),
        ([2.0] * 9 + [9.0] * 9, True),
    ],
)
def test_a_loss_that_is_not_finite_or_many_times_the_lowest_has_diverged(losses: list[float], diverged: bool) -> None:
    assert has_diverged(losses) == diverged


def test_the_command_writes_a_picture_and_the_numbers_and_nothing_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = find(capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny-find-lr.csv", "tiny-find-lr.png"]
    rows = list(csv.DictReader(Path("tiny-find-lr.csv").read_text().splitlines()))
    losses = [float(row["loss"]) for row in rows]
    suggestion = float(shown.partition("suggestion     optim.lr=")[2].partition(":")[0])
    assert MIN_RATE < suggestion < float(rows[-1]["learning_rate"])
    assert losses[-1] > 2 * min(losses)
    assert "; there the loss had grown\n" in shown
    assert Path("tiny-find-lr.png").read_bytes().startswith(b"\x89PNG")


def test_the_same_config_gives_the_same_curve(capsys: pytest.CaptureFixture[str]) -> None:
    curves = []
    for seed in (0, 0, 1):
        find(capsys, f"run.seed={seed}", "--output", "a.png")
        curves.append(Path("a.csv").read_text())
    assert curves[0] == curves[1] != curves[2]


@pytest.mark.parametrize(
    ("words", "environ", "code", "message"),
    [
        (["--output", "a.txt"], {}, 64, "--output takes the name of a .png file"),
        (["optim.lr=fast"], {}, 64, "optim.lr"),
        (["data.name=folder", "data.root=none"], {}, 66, "data.root"),
    ],
)
def test_what_a_training_refuses_is_refused(
    words: list[str], environ: dict[str, str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run_command(["find-lr", "--device", "cpu", *words], environ) == code
    assert message in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_a_launcher_of_several_processes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environ = dict(zip(names, ("0", "2", "0", "2", "localhost", "29500"), strict=True))
    assert front.run_command(["find-lr", "--device", "cpu"], environ) == 64
    assert "`train find-lr` is one process" in capsys.readouterr().err


def test_the_picture_marks_the_suggestion() -> None:
    assert learning_rate_finder.draw(curve(fall(1e-3))).startswith(b"\x89PNG")
