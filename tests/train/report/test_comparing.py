"""What keeps speeds from being compared is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up_runs import make_run

from train.report import comparing, reading
from train.report.reading import Run

UNLIKE: dict[str, dict[str, Any]] = {
    "precision": {"training": {"precision": "bf16"}},
    "data": {"settings": ["data.samples=900"]},
    "input": {"training": {"loader": "4 workers"}},
    "model": {"settings": ["model.args.width=8"]},
    "global batch": {"settings": ["train.global_batch_size=128"]},
    "device": {"training": {"device": "NVIDIA H100"}},
    "way to take a step": {"settings": ["train.reproducible=bitwise"]},
}


def two(folder: Path, **changes: Any) -> list[Run]:
    """A run on one rank and one on two, which differs in `changes` too."""
    first, second = make_run(folder / "one", ranks=1), make_run(folder / "two", ranks=2, **changes)
    return [reading.read(first), reading.read(second)]


def test_runs_that_differ_in_their_ranks_alone_are_alike(tmp_path: Path) -> None:
    found = comparing.likeness(two(tmp_path, settings=["optim.lr=0.2", "train.epochs=9"]))
    assert found.alike
    assert not found.differs


@pytest.mark.parametrize(("name", "changes"), UNLIKE.items(), ids=UNLIKE.keys())
def test_what_is_computed_otherwise_is_not_alike(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    runs = two(tmp_path, **changes)
    found = comparing.likeness(runs)
    assert (list(found.differs), found.alike) == ([name], False)
    assert f"{name}: " in comparing.caution(runs, found)


def test_the_precision_in_effect_counts_and_not_what_was_asked_for(tmp_path: Path) -> None:
    runs = two(tmp_path, settings=["train.precision=auto"])
    assert comparing.likeness(runs).alike


def test_what_nobody_recorded_is_not_alike(tmp_path: Path) -> None:
    runs = two(tmp_path, training={"precision": None}, settings=["train.precision=auto"])
    assert comparing.likeness(runs).differs == {"precision": ["fp32", "not recorded"]}


def test_a_setting_that_an_older_version_did_not_know_is_at_its_default(tmp_path: Path) -> None:
    runs = two(tmp_path)
    path = tmp_path / "one/config.yaml"
    path.write_text("".join(line + "\n" for line in path.read_text().splitlines() if "gradient_exchange" not in line))
    assert comparing.likeness([reading.read(tmp_path / "one"), runs[1]]).alike


def test_a_batch_that_grows_with_the_ranks_is_weak_scaling(tmp_path: Path) -> None:
    found = comparing.likeness(two(tmp_path, settings=["train.global_batch_size=512"]))
    assert (found.weak, found.alike, list(found.differs)) == (True, True, ["global batch"])


def test_the_table_lists_what_differs_and_nothing_else(tmp_path: Path) -> None:
    table = comparing.table(two(tmp_path, settings=["optim.lr=0.2"]))
    assert (table.head, table.rows) == (["", "one", "two"], [["optim.lr", "0.1", "0.2"]])
