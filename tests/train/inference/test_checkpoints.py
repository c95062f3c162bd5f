"""Which checkpoint is meant, with which configuration it is measured, and whether the data is that of its training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoints import flip, plant, reseal
from images import write_classes, write_image
from jobs import after, built, forget_accelerate, trained
from jobs import trained as train
from processes import python
from worlds import ALONE

from entrypoint import ExitCode, Failure
from entrypoint.run_errors import RunErrors
from train import __main__ as front
from train.checkpoint import format
from train.config import load
from train.config.schema import DataConfig
from train.inference import checkpoints, evaluate, export
from train.inference.checkpoints import DatasetFacts
from train.run import record
from train.trainer import Trainer

PETS = DatasetFacts(data=DataConfig(name="folder", root="pets"), classes=("cat", "dog"), training=80, validation=20)
ENDLESS = {"classes": ["a", "b"], "training": float("inf"), "held_out": 1}
COUNTED = {"classes": ["a", "b"], "training": 64, "held_out": 16}
DRAWN = DatasetFacts(data=DataConfig(samples=100), classes=("outline-0", "outline-1"), training=80, validation=20)
TRAINED = ("model.args.width=4", "data.samples=80", "optim.lr=0.01")
CPU = {"ENTRYPOINT_DEVICE": "cpu"}
WARNING = "this run ended with exit code 90: training diverged at or before step 6. Its weights may be useless"


@pytest.fixture
def pets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two classes, which data.val_fraction splits."""
    monkeypatch.chdir(tmp_path)
    return write_classes(tmp_path / "pets", cat=1, dog=1)


def other(facts: DatasetFacts, **changes: Any) -> DatasetFacts:
    """The same with other data, as far as named: `root` and the like are the data's."""
    own = ("classes", "training", "validation", "digests", "has_own_validation")
    own_changes = {name: changes.pop(name) for name in own if name in changes}
    return replace(facts, data=replace(facts.data, **changes), **own_changes)


def refusal(before: DatasetFacts, current: DatasetFacts) -> str:
    with pytest.raises(Failure) as caught:
        checkpoints.refuse_other_classes(before, current)
    assert caught.value.code == 65
    return str(caught.value)


def test_a_checkpoint_tells_classes_and_sizes_of_its_training(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run")
    assert trainer.checkpointer.newest is not None
    facts = checkpoints.training_dataset_facts(checkpoints.choose_checkpoint(str(trainer.checkpointer.newest)))
    assert facts is not None
    assert (facts.classes, facts.training, facts.validation) == (("outline-0", "outline-1"), 64, 16)
    assert facts.data.samples == 80
    assert set(facts.digests) == {"training", "held_out", "weights"}


@pytest.mark.parametrize(
    "value",
    [None, 5, {}, {"classes": ["a"]}, {"classes": 3, "training": 1, "held_out": 1}, ENDLESS, {**COUNTED, "digests": 5}],
)
def test_an_older_checkpoint_tells_nothing(tmp_path: Path, value: object) -> None:
    trainer = train(tmp_path / "run")
    assert trainer.checkpointer.newest is not None
    state = json.loads((trainer.checkpointer.newest / "state.json").read_text()) | {"data": value}
    plant(trainer.checkpointer.newest, "state.json", json.dumps(state).encode())
    assert checkpoints.training_dataset_facts(checkpoints.choose_checkpoint(str(trainer.checkpointer.newest))) is None


def test_other_classes_are_refused_with_both_lists() -> None:
    refused = refusal(PETS, other(PETS, root="birds", classes=("emu", "jay", "owl")))
    assert "found: 3: emu, jay, owl (in birds)" in refused
    assert "expected: 2: cat, dog (of the training)" in refused
    assert "\n  fix: measure it on data that has the training's classes" in refused


def test_the_same_classes_in_another_order_are_refused() -> None:
    assert "found: 2: dog, cat" in refusal(PETS, other(PETS, classes=("dog", "cat")))


def test_long_lists_are_cut_and_still_show_what_differs() -> None:
    many = tuple(f"class-{number:03d}" for number in range(500))
    refused = refusal(other(PETS, classes=many), other(PETS, classes=(*many[:-1], "z" * 200)))
    assert "500: class-000, class-001," in refused
    assert "and 492 more; only here: class-499 (of the training)" in refused
    assert f"only here: {'z' * 39}… (in pets)" in refused
    assert len(refused) < 1000


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
    before, current = (arrays, PETS) if turned else (PETS, arrays)
    checkpoints.refuse_other_classes(before, current)
    caveats, *_ = checkpoints.evaluation_caveats(before, current, split="all")
    assert "by number" in caveats


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
    (caveat,) = checkpoints.evaluation_caveats(PETS, other(PETS, training=88, validation=22), split="validation")
    assert "images that the model was trained on are among these 22" in caveat
    assert "it had 20 of 100 images for validation" in caveat
    assert "\n" not in caveat


def test_another_share_is_counted(pets: Path) -> None:
    larger, smaller = other(PETS, training=50, validation=50), other(PETS, training=90, validation=10)
    assert checkpoints.evaluation_caveats(PETS, larger, split="validation")[0].startswith(
        "30 of these 50 images were trained on"
    )
    assert checkpoints.evaluation_caveats(PETS, smaller, split="validation") == ()  # a part of the former split


def test_another_grouping_is_another_split(pets: Path) -> None:
    (caveat,) = checkpoints.evaluation_caveats(PETS, other(PETS, group="^[^_]+"), split="validation")
    assert "are among these 20" in caveat


KNOWN = replace(PETS, digests={"training": "a", "held_out": "b", "all": "c"})
REPLACED = {"training": "d", "held_out": "e", "all": "f"}


def test_as_many_files_that_are_others_are_split_otherwise(pets: Path) -> None:
    (caveat,) = checkpoints.evaluation_caveats(KNOWN, other(KNOWN, digests=REPLACED), split="validation")
    assert "images that the model was trained on are among these 20" in caveat
    assert "files were added, removed or renamed since" in caveat
    (caveat,) = checkpoints.evaluation_caveats(KNOWN, other(KNOWN, digests=REPLACED), split="all")
    assert caveat.startswith("images that the model was trained on are among these 100")


def test_one_renamed_file_is_found_by_an_evaluation(tmp_path: Path) -> None:
    photos = write_classes(tmp_path / "photos", ant=40, bee=40)
    train(tmp_path / "run", "data.name=folder", f"data.root={photos}")
    checkpoint = checkpoints.choose_checkpoint(str(tmp_path / "run"))
    config, _ = checkpoints.load_config(checkpoint, None, ())
    ready: Any = SimpleNamespace(world=ALONE, all_gather=lambda counts: [counts])
    assert evaluate.open_evaluation_data(config, checkpoint, ready, split="validation").notes == ()
    (photos / "ant/007.png").rename(photos / "ant/100.png")
    (caveat,) = evaluate.open_evaluation_data(config, checkpoint, ready, split="validation").notes
    assert "images that the model was trained on are among these 16" in caveat


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
    (caveat,) = checkpoints.evaluation_caveats(
        KNOWN, replace(larger, digests=REPLACED | {"all": "c"}), split="validation"
    )
    assert caveat.startswith("30 of these 50 images were trained on")
    (caveat,) = checkpoints.evaluation_caveats(KNOWN, replace(larger, digests=REPLACED), split="validation")
    assert caveat.startswith("images that the model was trained on are among these 50")


def test_what_an_older_checkpoint_does_not_tell_is_no_difference(pets: Path) -> None:
    assert checkpoints.evaluation_caveats(PETS, KNOWN, split="validation") == ()


def test_the_same_files_at_another_place_are_known(pets: Path) -> None:
    (caveat,) = checkpoints.evaluation_caveats(KNOWN, other(KNOWN, root="copy"), split="all")
    assert caveat.startswith("80 of these 100 images were trained on")


def test_files_that_changed_sides_are_warned_of_though_there_are_as_many() -> None:
    before = other(PETS, has_own_validation=True, digests={"training": "a", "held_out": "b"})
    (caveat,) = checkpoints.evaluation_caveats(
        before, other(before, digests={"training": "c", "held_out": "d"}), split="validation"
    )
    assert "if they were moved to the validation split, some of these were trained on" in caveat
    assert (
        checkpoints.evaluation_caveats(
            before, other(before, digests={"training": "a", "held_out": "d"}), split="validation"
        )
        == ()
    )


@pytest.mark.parametrize(
    ("sizes", "text"), [((80, 30), None), ((90, 20), None), ((70, 30), "if they were moved to the validation split")]
)
def test_a_separate_validation_folder_may_grow(sizes: tuple[int, int], text: str | None) -> None:
    before = other(PETS, has_own_validation=True)
    caveats = checkpoints.evaluation_caveats(
        before, other(before, training=sizes[0], validation=sizes[1]), split="validation"
    )
    assert [text in line for line in caveats if text] == ([True] if text else [])
    assert bool(caveats) == bool(text)


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
    current = other(DRAWN, samples=samples, training=sizes[0], validation=sizes[1])
    assert [caveat[: len(count)] for caveat in checkpoints.evaluation_caveats(DRAWN, current, split=split)] == (
        [count] if count else []
    )


def test_all_of_the_trainings_own_data_is_said_to_be_trained_on(pets: Path) -> None:
    (caveat,) = checkpoints.evaluation_caveats(PETS, PETS, split="all")
    assert caveat.startswith("80 of these 100 images were trained on")
    (caveat,) = checkpoints.evaluation_caveats(PETS, other(PETS, root="copy"), split="all")
    assert caveat.startswith("as many images as in the training")
    (caveat,) = checkpoints.evaluation_caveats(PETS, other(PETS, training=88, validation=22), split="all")
    assert caveat.startswith("images that the model was trained on are among these 110")


def test_the_training_side_alone_is_known_by_its_place(pets: Path) -> None:
    (caveat,) = checkpoints.evaluation_caveats(
        PETS, other(PETS, root=str(pets / "train"), training=64, validation=16), split="all"
    )
    assert caveat.startswith("these are the images that the model was trained on")


def test_the_training_side_is_known_whatever_its_case(tmp_path: Path) -> None:
    write_classes(tmp_path / "Training", cat=2, dog=2)
    pets, current = str(tmp_path), str(tmp_path / "Training")
    (caveat,) = checkpoints.evaluation_caveats(
        other(PETS, root=pets), other(PETS, root=current, training=64, validation=16), split="all"
    )
    assert caveat.startswith("these are the images that the model was trained on")


def test_a_test_set_of_its_own_says_nothing_and_its_split_names_the_way_to_measure_all(pets: Path) -> None:
    facts = other(PETS, root=str(write_classes(pets.with_name("test"), cat=3, dog=2)), training=4, validation=1)
    assert checkpoints.evaluation_caveats(PETS, facts, split="all") == ()
    (caveat,) = checkpoints.evaluation_caveats(PETS, facts, split="validation")
    assert caveat.startswith(f"1 of the 5 images in {facts.data.root} are measured")
    assert "--all measures all" in caveat


def test_of_data_of_the_users_own_it_is_only_guessed_and_another_root_is_other_data() -> None:
    before = other(PETS, name="mine:animals")
    (caveat,) = checkpoints.evaluation_caveats(before, other(before, training=88, validation=22), split="all")
    assert caveat.startswith("images that the model was trained on may be among these 110")
    assert (
        checkpoints.evaluation_caveats(before, other(before, root="test", training=4, validation=1), split="all") == ()
    )


def test_what_is_measured_is_said_in_words() -> None:
    assert PETS.measured(split="all") == "all 100 images of pets"
    assert DRAWN.measured(split="validation") == "the 20 validation images of 100 images of synthetic"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's folder with checkpoints of steps 10, 20 and 30; the best is the first."""
    state = {"config": asdict(load.load_config(None, TRAINED))}
    tensors = {"model": {"w": torch.ones(4)}}
    for step in (10, 20, 30):
        format.save_checkpoint(tmp_path / "checkpoints", step=step, tensors=tensors, metadata=state, keep=9)
    (tmp_path / "best.json").write_text('{"step": 10}')
    return tmp_path


def at(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def configured(run: Path, *overrides: str, file: Path | None = None) -> Any:
    return checkpoints.load_config(
        checkpoints.choose_checkpoint(str(at(run, 10))), str(file) if file else None, overrides
    )


def test_a_checkpoint_is_itself(run: Path) -> None:
    assert checkpoints.choose_checkpoint(str(at(run, 20))).path == at(run, 20)
    assert checkpoints.choose_checkpoint(f"{at(run, 20)}/").contents.step == 20


def test_a_runs_folder_means_its_best(run: Path) -> None:
    assert checkpoints.choose_checkpoint(str(run)).path == at(run, 10)


@pytest.mark.parametrize("text", [None, "{", "[]", '{"step": 77}', '{"step": [1]}'])
def test_without_a_best_one_the_newest_is_meant(run: Path, text: str | None) -> None:
    (run / "best.json").unlink() if text is None else (run / "best.json").write_text(text)
    assert checkpoints.choose_checkpoint(str(run)).path == at(run, 30)


def test_damaged_ones_are_passed_over_and_said(run: Path) -> None:
    flip(at(run, 10) / "model.safetensors")
    flip(at(run, 30) / "state.json")
    checkpoint = checkpoints.choose_checkpoint(str(run))
    assert (checkpoint.path, len(checkpoint.notes)) == (at(run, 20), 2)
    assert "step-00000010: model.safetensors does not match its hash" in checkpoint.notes[0]


def test_the_folder_of_checkpoints_and_a_link_to_one_are_understood(run: Path) -> None:
    (run / "mine").symlink_to(at(run, 20))
    assert checkpoints.choose_checkpoint(str(run / "checkpoints")).path == at(run, 30)
    assert checkpoints.choose_checkpoint(str(run / "mine")).path == at(run, 20)


def all_damaged(run: Path) -> Path:
    for step in (10, 20, 30):
        flip(at(run, step) / "state.json")
    return run


def linked(run: Path) -> Path:
    (run / "checkpoints").rename(run / "elsewhere")
    (run / "checkpoints").symlink_to(run / "elsewhere")
    return run


def newer(run: Path) -> Path:
    reseal(at(run, 10), torch="99.0")
    return at(run, 10)


def empty(run: Path) -> Path:
    (run / "empty").mkdir()
    return run / "empty"


def exported(run: Path) -> Path:
    (empty(run) / "model.json").touch()
    return run / "empty"


WRONG: dict[str, tuple[Callable[[Path], Path], int, str]] = {
    "missing": (lambda run: run / "nothing", 66, "does not exist"),
    "a-file": (lambda run: run / "best.json", 66, "it is a file"),
    "no-checkpoints": (empty, 66, "without checkpoints"),
    "an-export": (exported, 66, "is an exported model, not a run"),
    "none-whole": (all_damaged, 65, "is whole"),
    "a-link-inside": (linked, 77, "symbolic link"),
    "newer-torch": (newer, 65, "newer version"),
}


@pytest.mark.parametrize(("make", "code", "text"), WRONG.values(), ids=WRONG)
def test_what_is_no_checkpoint_is_refused(run: Path, make: Callable[[Path], Path], code: int, text: str) -> None:
    with pytest.raises(Failure) as caught:
        checkpoints.choose_checkpoint(str(make(run)))
    assert caught.value.code == code
    assert text in str(caught.value)


def test_a_damaged_checkpoint_is_refused(run: Path) -> None:
    flip(at(run, 30) / "model.safetensors")
    with pytest.raises(Failure, match="is damaged") as caught:
        checkpoints.choose_checkpoint(str(at(run, 30)))
    assert caught.value.code == 65


@pytest.mark.parametrize("state", [b"{}", b"[]", b'{"config": 3}', b"{", b"\xff", b"[" * 5000])
def test_a_state_without_a_configuration_is_damage(run: Path, state: bytes) -> None:
    plant(at(run, 10), "state.json", state)
    with pytest.raises(Failure, match="is damaged") as caught:
        configured(run)
    assert caught.value.code == 65


def test_the_configuration_is_the_checkpoints_with_the_settings_on_top(run: Path) -> None:
    config, notes = configured(run, "data.root=elsewhere", "eval.batch_size=7", "train.precision=fp32")
    assert config.model.args == {"width": 4}
    assert (config.data.root, config.data.samples, config.eval.batch_size) == ("elsewhere", 80, 7)
    assert notes == ()


@pytest.mark.parametrize(
    "setting",
    ["model.name=resnet18", "model.args.width=8", "optim.lr=3", "train.epochs=9", "run.name=x", "eval.every_epochs=2"],
)
def test_settings_that_an_evaluation_cannot_change_are_refused(run: Path, setting: str) -> None:
    with pytest.raises(
        Failure, match=r"(model\.(name|args) is the checkpoint's)|does not change an evaluation"
    ) as caught:
        configured(run, setting)
    assert caught.value.code == 64


def test_a_setting_that_changes_nothing_is_no_mistake(run: Path) -> None:
    assert configured(run, "model.args.width=4")[0] == configured(run)[0]


def test_what_a_model_gets_otherwise_than_in_its_training_is_said(run: Path) -> None:
    (notes,) = configured(run, "data.image_size=48", "data.val_fraction=0.5", "data.augment=none")[1]
    assert notes == "the data is not as in the training: data.image_size: 32 -> 48"


@pytest.mark.parametrize(
    ("step", "best", "text"),
    [
        (10, '{"step": 10}', "the best"),
        (30, '{"step": 10}', "the last"),
        (30, '{"step": 30}', "the best and the last"),
        (20, '{"step": 10}', "neither the best nor the last"),
        (20, "{", "not the last"),
    ],
)
def test_a_checkpoint_stands_somewhere_in_its_run(run: Path, step: int, best: str, text: str) -> None:
    (run / "best.json").write_text(best)
    assert checkpoints.describe_standing(at(run, step)) == text


def test_a_checkpoint_that_was_copied_away_or_is_gone_stands_nowhere(run: Path) -> None:
    (run / "mine").mkdir()
    assert checkpoints.describe_standing(at(run, 10).rename(run / "mine" / "step-00000010")) is None
    assert checkpoints.describe_standing(linked(run) / "checkpoints" / "step-00000020") is None


def test_a_file_gives_the_data_and_leaves_the_training_alone(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("data: {root: there, samples: 80}\nmodel: {args: {width: 4}}\noptim: {lr: 7}\n")
    config, _ = configured(run, file=file)
    assert (config.data.root, config.optim.lr) == ("there", 0.01)


def test_a_file_without_the_threshold_of_the_training_leaves_it_and_a_typed_one_counts(
    run: Path, tmp_path: Path
) -> None:
    file = tmp_path / "cfg.yaml"
    file.write_text("data: {samples: 80}\nmodel: {args: {width: 4}}\neval: {threshold: 0.2}\n")
    assert configured(run, file=file)[0].eval.threshold == 0.5
    assert configured(run, "eval.threshold=auto", file=file)[0].eval.threshold == "auto"


def test_a_file_that_leaves_the_normalization_to_the_weights_means_that_of_the_training(
    run: Path, tmp_path: Path
) -> None:
    recorded = {"mean": [0.1], "std": [0.2]}
    state = {"config": asdict(load.load_config(None, (*TRAINED, "data.normalize={mean: [0.1], std: [0.2]}")))}
    tensors = {"model": {"w": torch.ones(4)}}
    format.save_checkpoint(run / "other", step=40, tensors=tensors, metadata=state, keep=9)
    file = tmp_path / "cfg.yaml"
    file.write_text("data: {samples: 80}\nmodel: {args: {width: 4}}\n")
    chosen = checkpoints.choose_checkpoint(str(run / "other"))
    config, _ = checkpoints.load_config(chosen, str(file), [])
    assert config.data.normalize == recorded


def test_a_file_with_another_model_is_refused(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("model: {args: {width: 5}}\n")
    with pytest.raises(Failure, match="is the checkpoint's") as caught:
        configured(run, file=file)
    assert caught.value.code == 64


def test_an_older_versions_configuration_is_completed(run: Path) -> None:
    plant(at(run, 10), "state.json", json.dumps({"config": {"data": {"samples": 80}}}).encode())
    assert configured(run)[0] == load.load_config(None, ["data.samples=80"])


def test_a_run_that_an_older_version_kept_in_a_folder_called_as_a_variable_is_measured(run: Path) -> None:
    plant(at(run, 10), "state.json", json.dumps({"config": {"run": {"output_dir": "$SCRATCH/runs"}}}).encode())
    assert configured(run)[0] == load.load_config(None)


@pytest.mark.parametrize("words", [[], ["data.root=x"], ["eval.batch_size=3", "runs/x"]])
def test_a_line_without_a_checkpoint_is_refused(words: list[str]) -> None:
    with pytest.raises(Failure, match="needs a checkpoint") as caught:
        checkpoints.split_arguments(words)
    assert caught.value.code == 64


def test_a_folder_may_have_an_equals_sign_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "lr=1").mkdir()
    assert checkpoints.split_arguments([str(tmp_path / "lr=1"), "a.b=c"]) == (str(tmp_path / "lr=1"), ["a.b=c"])


def test_choosing_loads_no_torch() -> None:
    script = "import sys; import train.inference.checkpoints; print('torch' in sys.modules or 'numpy' in sys.modules)"
    assert python("-c", script).stdout == "False\n"


def spoil(trainer: Trainer) -> None:
    with torch.no_grad():
        next(trainer.state.network.parameters()).fill_(float("nan"))


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that diverged, with checkpoints of finite weights; its worker has written its exit file."""
    folder = tmp_path_factory.mktemp("runs") / "diverged"
    with pytest.MonkeyPatch.context() as patch, built(folder, "checkpoint.every_steps=2") as trainer:
        after(5, spoil, patch)
        with pytest.raises(Failure) as caught:
            trainer.fit()
    RunErrors.in_run(folder).write_exit(code=caught.value.code, step=6, cause=caught.value.what)
    return folder


@pytest.mark.parametrize("name", [".", "checkpoints/step-00000004"])
def test_a_prediction_says_it_once(
    diverged: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_accelerate()
    image = write_image(tmp_path / "photo.png", 9)
    assert front.run_command(["predict", str(diverged / name), str(image)], CPU) == 0
    assert capsys.readouterr().err.count(f"WARNING: {WARNING}") == 1
    forget_accelerate()


def test_an_export_its_card_and_its_predictions_say_it(
    diverged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert front.run_command(["export", str(diverged), "--output", str(tmp_path / "model")], {}) == 0
    assert capsys.readouterr().err.count(f"WARNING: {WARNING}") == 1
    assert WARNING in (tmp_path / "model/README.md").read_text()
    image = write_image(tmp_path / "photo.png", 9)
    assert front.run_command(["predict", str(tmp_path / "model"), str(image)], CPU) == 0
    assert f"WARNING: {WARNING}" in capsys.readouterr().err


def test_a_caution_of_another_kind_is_refused(diverged: Path, tmp_path: Path) -> None:
    assert front.run_command(["export", str(diverged), "--output", str(tmp_path / "model")], {}) == 0
    description = tmp_path / "model" / export.DESCRIPTION_FILE
    for forged in ({"caution": 5}, []):
        description.write_text(json.dumps(json.loads(description.read_text()) | {"checkpoint": forged}))
        with pytest.raises(Failure, match="cannot be read back"):
            export.load_exported(tmp_path / "model")


def test_an_evaluation_says_it_and_keeps_it_with_the_scores(diverged: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert front.run_command(["eval", str(diverged), "--json"], CPU) == 0
    out, err = capfd.readouterr()
    assert err.count(WARNING) == 1
    assert json.loads(out)["notes"][0].startswith(WARNING)


def test_a_new_run_from_its_weights_says_it(diverged: Path, tmp_path: Path) -> None:
    with built(tmp_path, f"model.weights={diverged}") as trainer:
        assert [note for note in trainer.notes if WARNING in note]


def test_a_later_start_that_was_refused_does_not_hide_it(tmp_path: Path) -> None:
    starts = [
        {"step": 0, "world_size": 1, "ended": {"code": 90, "cause": "training diverged at or before step 6"}},
        {"step": 4, "ended": {"code": 65, "cause": "the configuration is not the one that this run began with"}},
    ]
    tmp_path.joinpath("run.json").write_text(json.dumps({"starts": starts}))
    RunErrors.in_run(tmp_path).write_exit(code=65, step=None, cause="the configuration is not the one")
    assert WARNING in str(record.describe_divergence(tmp_path))


def test_other_runs_say_nothing(tmp_path: Path) -> None:
    trained(tmp_path)
    assert record.describe_divergence(tmp_path) is None
    for code in (ExitCode.OK, ExitCode.STOPPED, ExitCode.IO):
        RunErrors.in_run(tmp_path).write_exit(code=code, step=8, cause="finished")
        assert record.describe_divergence(tmp_path / "checkpoints/step-00000008") is None
