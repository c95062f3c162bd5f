"""train.reproducible bitwise: 1, 2 and 4 ranks end with the same bits, and so does a run that went from 4 to 2 to 1."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from processes import python, unmeasured
from runs import Run

from train.logging.metrics_logger import METRICS_FILE, read_events

WORLDS = (4, 2, 1)
EIGHT = ["train.reproducible=bitwise", "train.global_batch_size=64", "train.micro_batch_size=8"]
EIGHT += ["data.image_size=8", "eval.batch_size=25"]
CALM = ["optim.lr=0.002", "train.clip_grad_norm=0.05", "train.ema_decay=0.9"]
ROWS = {
    "sgd": ["model.args.width=8"],
    "adamw": ["optim.name=adamw", *CALM, "model.args.dropout=0.1"],
    "batchnorm": ["model.args.norm=batch", "train.ema_decay=0.9", "train.precision=bf16"],
    "mixed": ["data.augment=[random_resized_crop, rand_augment, color_jitter, random_erasing, mixup, cutmix]"],
    "fast": ["train.reproducible=fast", "train.micro_batch_size=16"],
}
STOPS = {4: 3, 2: 6, 1: 10}  # the steps at which the run of each world ends, and the next goes on


def train_all(place: Path, worlds: Iterable[int], table: Callable[[int], Mapping[str, Sequence[str]]]) -> Path:
    """Trains PLACE/ROW/WORLD_SIZE for every row of `table(world)`, one world after the other."""
    for ranks in worlds:
        (place / "grid.json").write_text(json.dumps(table(ranks)))
        script = str(Path(__file__).parents[1] / "support" / "grid.py")
        launch = ["-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", str(ranks), "--"]
        ended = python(*launch, sys.executable, script, str(place), cwd=place, env=unmeasured())
        assert ended.returncode == 0, ended.stderr[-2000:] + ended.stdout[-2000:]
    return place


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FOLDER/ROW/WORLD_SIZE for every row; all worlds of `resumed` are one run."""
    place = tmp_path_factory.mktemp("bits")
    (place / "resumed" / "4").mkdir(parents=True)
    for ranks in (2, 1):
        (place / "resumed" / str(ranks)).symlink_to("4")
    rows = {row: [*EIGHT, *settings] for row, settings in ROWS.items()}
    resumed = [*EIGHT, *ROWS["adamw"]]
    return train_all(place, WORLDS, lambda ranks: rows | {"resumed": [*resumed, f"train.max_steps={STOPS[ranks]}"]})


@pytest.fixture(scope="module")
def trained_quickly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """AdamW with dropout, clipping and EMA on one rank and on two."""
    return train_all(tmp_path_factory.mktemp("few"), (1, 2), lambda _: {"adamw": [*EIGHT, *ROWS["adamw"]]})


def bits(folder: Path) -> dict[str, str]:
    """sha256 of every tensor file after ten steps."""
    files = sorted((folder / "checkpoints" / "step-00000010").glob("*.safetensors"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def record(folder: Path) -> list[tuple[object, ...]]:
    """What every line of training and evaluation says, but for times."""
    events = read_events(folder / METRICS_FILE)
    told = [event for event in events if event["event"] in ("train", "eval")]
    return [(event["step"], event["loss"], event["accuracy"]) for event in told]


def test_two_ranks_end_with_the_bits_of_one(trained_quickly: Path) -> None:
    alone = bits(trained_quickly / "adamw" / "1")
    assert "model.safetensors" in alone
    assert bits(trained_quickly / "adamw" / "2") == alone


@pytest.mark.slow
@pytest.mark.together("same bits")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("row", [row for row in ROWS if row != "fast"])
def test_several_ranks_end_with_the_bits_of_one(trained: Path, row: str, ranks: int) -> None:
    alone = bits(trained / row / "1")
    assert "model.safetensors" in alone
    assert bits(trained / row / str(ranks)) == alone


@pytest.mark.slow
@pytest.mark.together("same bits")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("row", [row for row in ROWS if row != "fast"])
def test_their_record_tells_the_same_numbers(trained: Path, row: str, ranks: int) -> None:
    assert record(trained / row / str(ranks)) == record(trained / row / "1")


@pytest.mark.slow
@pytest.mark.together("same bits")
def test_a_run_that_went_from_four_ranks_to_two_to_one_ends_with_the_same_bits(trained: Path) -> None:
    assert bits(trained / "resumed" / "4") == bits(trained / "adamw" / "1")


@pytest.mark.slow
@pytest.mark.together("same bits")
def test_the_fast_mode_rounds_otherwise_on_four_ranks(trained: Path) -> None:
    weights = [Run(folder=trained / "fast" / ranks).weights(10) for ranks in ("1", "4")]
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])
