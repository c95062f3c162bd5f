"""The published recipes in configs/recipes: each is checked with a few images, and has its table in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from images import write_classes

from train import __main__ as front
from train.config import load
from train.config.batches import compute_batch_sizes

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "configs" / "recipes").glob("*.yaml"))
# Few images, and a precision that a CPU has.
SMALL = ("train.global_batch_size=8", "train.micro_batch_size=4", "train.max_steps=2", "train.precision=fp32")


def write_images(name: str, root: Path) -> tuple[str, ...]:
    """Two classes in the place of ImageNet's. CIFAR-10 is checked without its files."""
    if name.startswith("cifar10"):
        return ()
    for split, count in (("train", 8), ("val", 2)):
        write_classes(root / split, ant=count, bee=count)
    return (f"data.root={root}",)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_train_check_accepts_every_recipe(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = (*write_images(path.stem, tmp_path / "images"), *SMALL)
    assert front.run_command(["check", "--config", str(path), "--device", "cpu", *settings], {}) == 0
    plan = capsys.readouterr().out
    assert "WARNING" not in plan
    assert "steps          " in plan


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_divides_among_one_two_and_four_gpus(path: Path) -> None:
    train = load.load_config(str(path), []).train
    for world_size in (1, 2, 4):
        assert compute_batch_sizes(train.global_batch_size, train.micro_batch_size, world_size).accumulation >= 1


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_has_a_table_in_the_docs_that_says_of_each_option_whether_it_is_equal(path: Path) -> None:
    page = (ROOT / "docs" / "evidence" / "recipes.md").read_text()
    section = page.partition(f"(../../configs/recipes/{path.name})")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \|$", section, re.MULTILINE)[2:]
    assert len(rows) >= 10
    for row in rows:
        *_, equal = (cell.strip() for cell in row.replace(r"\|", "/").split("|"))
        assert re.match(r"(yes|no)\b", equal), row
