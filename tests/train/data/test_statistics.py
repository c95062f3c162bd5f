"""A fingerprint tells the data of one rank, or of one start, from that of another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hosts import together
from images import write_classes, write_image
from jobs import TINY, trained
from made_up import pixels
from processes import python
from worlds import ALONE

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig, RunConfig
from train.data import registry, statistics
from train.data.splits import DataSplits, ImageFileSource
from train.distributed.shared_memory import HostRanks
from train.inference import checkpoints, evaluate

FEW = DataConfig(samples=40, classes=4, image_size=8)
OWN = "mine:make"


def fingerprint(root: Path, **settings: Any) -> dict[str, Any]:
    data = DataConfig(name="folder", root=str(root), image_size=8, **settings)
    return statistics.data_fingerprint(registry.open_splits(data), data.root)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_classes(tmp_path / "photos", ant=10, bee=10)


def test_the_same_files_at_another_place_are_the_same(photos: Path) -> None:
    before = fingerprint(photos)
    assert fingerprint(photos.rename(photos.with_name("moved"))) == before
    assert (before["classes"], before["training"], before["held_out"]) == (["ant", "bee"], 16, 4)


def renamed(photos: Path) -> None:
    (photos / "ant/003.png").rename(photos / "ant/zzz.png")


def swapped(photos: Path) -> None:
    (photos / "ant/003.png").rename(photos / "bee/100.png")
    (photos / "bee/003.png").rename(photos / "ant/100.png")


def replaced(photos: Path) -> None:
    (photos / "ant/003.png").unlink()
    write_image(photos / "ant/100.png")


@pytest.mark.parametrize("change", [renamed, swapped, replaced])
def test_as_many_files_that_are_not_the_same_are_others(photos: Path, change: Any) -> None:
    before = fingerprint(photos)
    change(photos)
    now = fingerprint(photos)
    assert {name for name in before if now[name] != before[name]} == {"digests"}
    assert now["digests"]["all"] != before["digests"]["all"]


def test_another_split_of_the_same_files_is_another_on_both_sides_and_the_same_on_the_whole(photos: Path) -> None:
    before, after = fingerprint(photos)["digests"], fingerprint(photos, val_fraction=0.5)["digests"]
    assert {part for part in before if before[part] == after[part]} == {"all", "weights"}


def test_a_side_of_its_own_changes_alone(tmp_path: Path) -> None:
    for side in ("train", "val"):
        write_classes(tmp_path / side, ant=2, bee=2)
    before = fingerprint(tmp_path)["digests"]
    (tmp_path / "val/ant/000.png").rename(tmp_path / "val/ant/zzz.png")
    now = fingerprint(tmp_path)["digests"]
    assert {side: now[side] == before[side] for side in before} == {
        "training": True,
        "held_out": False,
        "weights": True,
    }


def test_paths_that_a_factory_lists_count_below_the_folder() -> None:
    def listed(root: str) -> dict[str, Any]:
        files = ImageFileSource([f"{root}/a.png", f"{root}/b.png"], torch.tensor([0, 1]), 8)
        return statistics.data_fingerprint(replace(registry.open_splits(FEW), training=files, validation=files), root)

    assert listed("here") == listed("there")


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_arrays_in_another_order_are_others_though_their_labels_are_the_same(tmp_path: Path, kind: type) -> None:
    data = DataConfig(name="npz", root=str(tmp_path / "a.npz"))
    fingerprints = []
    for images in (drawn := pixels(20, 9, 9, 1).astype(kind), drawn[::-1]):
        np.savez(data.root, images=images, labels=np.zeros(20, int) + np.arange(20) // 19)
        fingerprints.append(statistics.data_fingerprint(registry.open_splits(data), data.root))
    assert fingerprints[0]["digests"]["training"] != fingerprints[1]["digests"]["training"]


def test_a_side_without_samples_has_a_digest() -> None:
    assert statistics.data_fingerprint(registry.open_splits(replace(FEW, val_fraction=0.0)), "")["held_out"] == 0


def refusals(*ranks: DataSplits, name: str = OWN) -> list[str]:
    """What each rank is told, where it sees these data; one rank on each of two machines by turns."""

    def run(host: HostRanks) -> str:
        try:
            statistics.refuse_different_data(statistics.data_fingerprint(ranks[host.rank], ""), name, host.all_gather)
        except Failure as failure:
            return str(failure)
        return ""

    return together(run, [0] * len(ranks))


def turned(sets: DataSplits) -> DataSplits:
    return replace(sets, validation=ImageFileSource([], sets.validation.labels.flip(0), 8))


def test_ranks_that_see_the_same_go_on() -> None:
    assert refusals(registry.open_splits(FEW), registry.open_splits(FEW)) == ["", ""]


def test_all_ranks_are_told_which_of_them_see_another_number_of_samples() -> None:
    same, more = registry.open_splits(FEW), registry.open_splits(replace(FEW, samples=50))
    texts = refusals(same, more, same)
    assert len(set(texts)) == 1
    assert f"[{ExitCode.DATA.value}]" in texts[0]
    assert "found: training samples: 32 on rank 0 (" in texts[0]
    assert ", 40 on rank 1 (" in texts[0]
    assert "on rank 2" not in texts[0]


def test_as_many_samples_in_another_order_are_refused() -> None:
    sets = registry.open_splits(FEW)
    (text, _) = refusals(replace(sets, validation=ImageFileSource([], sets.validation.labels, 8)), turned(sets))
    assert "validation samples: 8 on rank 0" in text
    assert "others, or in another order" in text


def test_the_same_classes_in_another_order_are_refused() -> None:
    sets = registry.open_splits(FEW)
    assert "found: classes: 4 on rank 0" in refusals(sets, replace(sets, classes=sets.classes[::-1]))[0]


def test_ranks_whose_samples_count_with_other_weights_are_refused() -> None:
    sets = registry.open_splits(FEW)
    texts = refusals(*[replace(sets, weights=torch.full((32,), weight)) for weight in (1.0, 2.0)])
    assert "weights of training samples: 32 on rank 0" in texts[0]


def test_very_many_other_ranks_are_counted() -> None:
    splits = registry.open_splits(FEW)
    assert "on rank 3 (" in (text := refusals(splits, *[turned(splits)] * 7)[0])
    assert "and 3 more" in text


@pytest.mark.parametrize(("name", "fix"), [(OWN, "os.listdir"), ("folder", "all nodes the same files")])
def test_the_fix_is_that_of_the_kind_of_data(name: str, fix: str) -> None:
    splits = registry.open_splits(FEW)
    assert fix in refusals(splits, turned(splits), name=name)[0].rpartition("fix: ")[2]


def test_an_evaluation_whose_ranks_see_different_data_is_refused(photos: Path) -> None:
    config = RunConfig(data=DataConfig(name="folder", root=str(photos), image_size=8))
    before = fingerprint(photos)
    renamed(photos)
    trainer = trained(photos.with_name("run"), "data.name=folder", f"data.root={photos}", "train.global_batch_size=8")
    ready: Any = SimpleNamespace(world=ALONE, all_gather=lambda value: [value, gathered(before)])
    with pytest.raises(Failure, match="the ranks see different data") as caught:
        evaluate.open_evaluation_data(
            config, checkpoints.choose_checkpoint(str(trainer.checkpointer.newest)), ready, split="validation"
        )
    assert caught.value.code == ExitCode.DATA


def gathered(facts: dict[str, Any]) -> Any:
    """What a rank with these facts tells the others."""
    values: list[Any] = []
    statistics.refuse_different_data(facts, OWN, lambda value: values.append(value) or [value])
    return values[0]


SHUFFLED = """
import os, random
import numpy as np

def make(data):
    items = [(np.full((8, 8, 3), 3 * row, np.uint8), row % 2) for row in range(80)]
    random.Random(os.getpid()).shuffle(items)
    return items, None
"""


def test_a_training_whose_ranks_shuffle_their_data_each_by_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SHUFFLED)
    (tmp_path / "cfg.yaml").write_text("data: {name: mine:make}\n")
    line = ("-m", "train", "--config", "cfg.yaml", "--device", "cpu", "--procs-per-node", "2")
    settings = [setting for setting in TINY if not setting.startswith("data.")]
    done = python(*line, *settings, cwd=tmp_path)
    assert (done.returncode, "the ranks see different data" in done.stderr) == (65, True), done.stderr
    assert not list((tmp_path / "runs").glob("*/checkpoints/*"))
