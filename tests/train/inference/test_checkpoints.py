"""What the training's data was, held against the data that is measured."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoints import plant
from images import write_classes
from jobs import trained as train
from worlds import ALONE

from entrypoint import Failure
from train.config.schema import DataConfig
from train.inference import checkpoints, evaluate
from train.inference.checkpoints import DatasetFacts

PETS = DatasetFacts(data=DataConfig(name="folder", root="pets"), classes=("cat", "dog"), training=80, validation=20)
ENDLESS = {"classes": ["a", "b"], "training": float("inf"), "held_out": 1}
COUNTED = {"classes": ["a", "b"], "training": 64, "held_out": 16}
DRAWN = DatasetFacts(data=DataConfig(samples=100), classes=("outline-0", "outline-1"), training=80, validation=20)


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two classes, which data.val_fraction splits."""
    monkeypatch.chdir(tmp_path)
    return write_classes(tmp_path / "pets", cat=1, dog=1)


def other(facts: DatasetFacts, **changes: Any) -> DatasetFacts:
    """The same with other data, as far as named: `root` and the like are the data's."""
    own = ("classes", "training", "validation", "digests", "has_own_validation")
    mine = {name: changes.pop(name) for name in own if name in changes}
    return replace(facts, data=replace(facts.data, **changes), **mine)


def refusal(before: DatasetFacts, there: DatasetFacts) -> str:
    with pytest.raises(Failure) as caught:
        checkpoints.refuse_other_classes(before, there)
    assert caught.value.code == 65
    return str(caught.value)


def test_a_checkpoint_tells_classes_and_sizes_of_its_training(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run")
    assert trainer.checkpointer.newest is not None
    found = checkpoints.training_dataset_facts(checkpoints.choose_checkpoint(str(trainer.checkpointer.newest)))
    assert found is not None
    assert (found.classes, found.training, found.validation) == (("outline-0", "outline-1"), 64, 16)
    assert found.data.samples == 80
    assert set(found.digests) == {"training", "held_out", "weights"}


@pytest.mark.parametrize(
    "told",
    [None, 5, {}, {"classes": ["a"]}, {"classes": 3, "training": 1, "held_out": 1}, ENDLESS, {**COUNTED, "digests": 5}],
)
def test_an_older_checkpoint_tells_nothing(tmp_path: Path, told: object) -> None:
    trainer = train(tmp_path / "run")
    assert trainer.checkpointer.newest is not None
    state = json.loads((trainer.checkpointer.newest / "state.json").read_text()) | {"data": told}
    plant(trainer.checkpointer.newest, "state.json", json.dumps(state).encode())
    assert checkpoints.training_dataset_facts(checkpoints.choose_checkpoint(str(trainer.checkpointer.newest))) is None


def test_other_classes_are_refused_with_both_lists() -> None:
    said = refusal(PETS, other(PETS, root="birds", classes=("emu", "jay", "owl")))
    assert "found: 3: emu, jay, owl (in birds)" in said
    assert "expected: 2: cat, dog (of the training)" in said
    assert "\n  fix: measure it on data that has the training's classes" in said


def test_the_same_classes_in_another_order_are_refused() -> None:
    assert "found: 2: dog, cat" in refusal(PETS, other(PETS, classes=("dog", "cat")))


def test_long_lists_are_cut_and_still_show_what_differs() -> None:
    many = tuple(f"class-{number:03d}" for number in range(500))
    said = refusal(other(PETS, classes=many), other(PETS, classes=(*many[:-1], "z" * 200)))
    assert "500: class-000, class-001," in said
    assert "and 492 more; only here: class-499 (of the training)" in said
    assert f"only here: {'z' * 39}… (in pets)" in said
    assert len(said) < 1000


def test_very_many_classes_are_compared_one_by_one() -> None:
    asked = 0

    class Name(str):
        def __hash__(self) -> int:
            nonlocal asked
            asked += 1
            return super().__hash__()

    many = tuple(Name(number) for number in range(1000))
    refusal(other(PETS, classes=many), other(PETS, classes=(*many[:-1], "z")))
    assert asked < 10 * len(many)


def test_the_same_classes_pass() -> None:
    checkpoints.refuse_other_classes(PETS, other(PETS, root="moved"))


@pytest.mark.parametrize("turned", [False, True])
def test_arrays_whose_classes_have_no_names_are_compared_by_number_which_is_said(turned: bool) -> None:
    arrays = other(PETS, name="npz", root="pets.npz", classes=("0", "1"))
    before, there = (arrays, PETS) if turned else (PETS, arrays)
    checkpoints.refuse_other_classes(before, there)
    said, *_ = checkpoints.evaluation_caveats(before, there, split="all")
    assert "by number" in said


def test_arrays_of_another_number_of_classes_are_refused() -> None:
    assert "found: 3: 0, 1, 2" in refusal(PETS, other(PETS, name="npz", classes=("0", "1", "2")))


def test_folders_that_are_called_by_numbers_are_names() -> None:
    assert "other classes" in refusal(PETS, other(PETS, classes=("0", "1")))


def test_a_number_of_class_folders_is_no_claim_where_names_are_known() -> None:
    claims = DataConfig(name="folder", classes=7)
    assert checkpoints.without_class_count(claims, PETS).classes == DataConfig().classes
    assert checkpoints.without_class_count(claims, None).classes == 7
    assert checkpoints.without_class_count(DataConfig(classes=7), DRAWN).classes == 7


def test_the_same_split_says_nothing(pets: Path) -> None:
    assert checkpoints.evaluation_caveats(PETS, PETS, split="validation") == ()
    assert checkpoints.evaluation_caveats(PETS, other(PETS, root="moved"), split="validation") == ()


def test_a_folder_that_has_become_larger_is_split_otherwise(pets: Path) -> None:
    (said,) = checkpoints.evaluation_caveats(PETS, other(PETS, training=88, validation=22), split="validation")
    assert "images that the model was trained on are among these 22" in said
    assert "it had 20 of 100 images for validation" in said
    assert "\n" not in said


def test_another_share_is_counted(pets: Path) -> None:
    larger, smaller = other(PETS, training=50, validation=50), other(PETS, training=90, validation=10)
    assert checkpoints.evaluation_caveats(PETS, larger, split="validation")[0].startswith(
        "30 of these 50 images were trained on"
    )
    assert checkpoints.evaluation_caveats(PETS, smaller, split="validation") == ()  # a part of the former split


def test_another_grouping_is_another_split(pets: Path) -> None:
    (said,) = checkpoints.evaluation_caveats(PETS, other(PETS, group="^[^_]+"), split="validation")
    assert "are among these 20" in said


KNOWN = replace(PETS, digests={"training": "a", "held_out": "b", "all": "c"})
REPLACED = {"training": "d", "held_out": "e", "all": "f"}


def test_as_many_files_that_are_others_are_split_otherwise(pets: Path) -> None:
    (said,) = checkpoints.evaluation_caveats(KNOWN, other(KNOWN, digests=REPLACED), split="validation")
    assert "images that the model was trained on are among these 20" in said
    assert "files were added, removed or renamed since" in said
    (said,) = checkpoints.evaluation_caveats(KNOWN, other(KNOWN, digests=REPLACED), split="all")
    assert said.startswith("images that the model was trained on are among these 100")


def test_one_renamed_file_is_found_by_an_evaluation(tmp_path: Path) -> None:
    photos = write_classes(tmp_path / "photos", ant=40, bee=40)
    train(tmp_path / "run", "data.name=folder", f"data.root={photos}")
    found = checkpoints.choose_checkpoint(str(tmp_path / "run"))
    config, _ = checkpoints.load_config(found, None, ())
    ready: Any = SimpleNamespace(world=ALONE, all_gather=lambda mine: [mine])
    assert evaluate.open_evaluation_data(config, found, ready, split="validation").notes == ()
    (photos / "ant/007.png").rename(photos / "ant/100.png")
    (said,) = evaluate.open_evaluation_data(config, found, ready, split="validation").notes
    assert "images that the model was trained on are among these 16" in said


def test_copies_of_training_images_in_another_folder_are_found_by_an_evaluation(tmp_path: Path) -> None:
    photos = write_classes(tmp_path / "photos", ant=40, bee=40)
    train(tmp_path / "run", "data.name=folder", f"data.root={photos}")
    found = checkpoints.choose_checkpoint(str(tmp_path / "run"))
    ready: Any = SimpleNamespace(world=ALONE, all_gather=lambda mine: [mine])

    def notes(root: Path) -> tuple[str, ...]:
        config, _ = checkpoints.load_config(found, None, (f"data.root={root}",))
        return evaluate.open_evaluation_data(config, found, ready, split="all").notes

    copy = Path(shutil.copytree(photos, tmp_path / "copy"))
    for name in ("ant/000.png", "bee/000.png", "bee/001.png"):
        (copy / name).unlink()
    (caveat,) = notes(copy)
    assert f"of these 77 images are copies of images in {photos} that the model was trained on" in caveat
    for path in copy.rglob("*.png"):  # other images with the same names
        path.write_bytes(path.read_bytes() + b"other")
    assert notes(copy) == ()
    for path in copy.rglob("*.png"):  # the same images with other names cannot be known
        path.rename(path.with_stem(f"{path.stem}-new"))
    assert notes(copy) == ()
    photos.rename(tmp_path / "gone")
    assert notes(copy) == ()


def test_another_share_of_the_same_files_is_counted_and_of_others_is_not(pets: Path) -> None:
    larger = other(KNOWN, training=50, validation=50, val_fraction=0.5)
    (said,) = checkpoints.evaluation_caveats(
        KNOWN, replace(larger, digests=REPLACED | {"all": "c"}), split="validation"
    )
    assert said.startswith("30 of these 50 images were trained on")
    (said,) = checkpoints.evaluation_caveats(KNOWN, replace(larger, digests=REPLACED), split="validation")
    assert said.startswith("images that the model was trained on are among these 50")


def test_what_an_older_checkpoint_does_not_tell_is_no_difference(pets: Path) -> None:
    assert checkpoints.evaluation_caveats(PETS, KNOWN, split="validation") == ()


def test_the_same_files_at_another_place_are_known(pets: Path) -> None:
    (said,) = checkpoints.evaluation_caveats(KNOWN, other(KNOWN, root="copy"), split="all")
    assert said.startswith("80 of these 100 images were trained on")


def test_files_that_changed_sides_are_warned_of_though_there_are_as_many() -> None:
    before = other(PETS, has_own_validation=True, digests={"training": "a", "held_out": "b"})
    (said,) = checkpoints.evaluation_caveats(
        before, other(before, digests={"training": "c", "held_out": "d"}), split="validation"
    )
    assert "if they were moved to the validation split, some of these were trained on" in said
    assert (
        checkpoints.evaluation_caveats(
            before, other(before, digests={"training": "a", "held_out": "d"}), split="validation"
        )
        == ()
    )


@pytest.mark.parametrize(
    ("sizes", "said"), [((80, 30), None), ((90, 20), None), ((70, 30), "if they were moved to the validation split")]
)
def test_a_separate_validation_folder_may_grow(sizes: tuple[int, int], said: str | None) -> None:
    before = other(PETS, has_own_validation=True)
    found = checkpoints.evaluation_caveats(
        before, other(before, training=sizes[0], validation=sizes[1]), split="validation"
    )
    assert [said in one for one in found if said] == ([True] if said else [])
    assert bool(found) == bool(said)


@pytest.mark.parametrize(
    ("samples", "sizes", "split", "count"),
    [
        (60, (48, 12), "validation", "12 of these 12"),
        (200, (160, 40), "validation", ""),
        (200, (160, 40), "all", "80 of these 200"),
    ],
)
def test_drawn_images_are_counted(
    samples: int, sizes: tuple[int, int], split: checkpoints.EvaluatedSplit, count: str
) -> None:
    there = other(DRAWN, samples=samples, training=sizes[0], validation=sizes[1])
    assert [one[: len(count)] for one in checkpoints.evaluation_caveats(DRAWN, there, split=split)] == (
        [count] if count else []
    )


def test_all_of_the_trainings_own_data_is_said_to_be_trained_on(pets: Path) -> None:
    (said,) = checkpoints.evaluation_caveats(PETS, PETS, split="all")
    assert said.startswith("80 of these 100 images were trained on")
    (said,) = checkpoints.evaluation_caveats(PETS, other(PETS, root="copy"), split="all")
    assert said.startswith("as many images as in the training")
    (said,) = checkpoints.evaluation_caveats(PETS, other(PETS, training=88, validation=22), split="all")
    assert said.startswith("images that the model was trained on are among these 110")


def test_the_training_side_alone_is_known_by_its_place(pets: Path) -> None:
    (said,) = checkpoints.evaluation_caveats(
        PETS, other(PETS, root=str(pets / "train"), training=64, validation=16), split="all"
    )
    assert said.startswith("these are the images that the model was trained on")


def test_the_training_side_is_known_whatever_its_case(tmp_path: Path) -> None:
    write_classes(tmp_path / "Training", cat=2, dog=2)
    pets, there = str(tmp_path), str(tmp_path / "Training")
    (said,) = checkpoints.evaluation_caveats(
        other(PETS, root=pets), other(PETS, root=there, training=64, validation=16), split="all"
    )
    assert said.startswith("these are the images that the model was trained on")


def test_a_test_set_of_its_own_says_nothing_and_its_split_names_the_way_to_measure_all(pets: Path) -> None:
    mine = other(PETS, root=str(write_classes(pets.with_name("test"), cat=3, dog=2)), training=4, validation=1)
    assert checkpoints.evaluation_caveats(PETS, mine, split="all") == ()
    (said,) = checkpoints.evaluation_caveats(PETS, mine, split="validation")
    assert said.startswith(f"1 of the 5 images in {mine.data.root} are measured")
    assert "--all measures all" in said


def test_of_data_of_the_users_own_it_is_only_guessed_and_another_root_is_other_data() -> None:
    before = other(PETS, name="mine:animals")
    (said,) = checkpoints.evaluation_caveats(before, other(before, training=88, validation=22), split="all")
    assert said.startswith("images that the model was trained on may be among these 110")
    assert (
        checkpoints.evaluation_caveats(before, other(before, root="test", training=4, validation=1), split="all") == ()
    )


def test_what_is_measured_is_said_in_words() -> None:
    assert PETS.measured(split="all") == "all 100 images of pets"
    assert DRAWN.measured(split="validation") == "the 20 validation images of 100 images of synthetic"
