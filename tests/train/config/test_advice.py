"""Words and nearest names for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from entrypoint import Failure
from train import names
from train.config import load
from train.config.schema import KEYS


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (int, "a whole number"),
        (int | Literal["auto"], "a whole number or auto"),
        (float | None, "a number or null"),
        (Literal["a", "b"], "one of a, b"),
        (list[str], "a list of texts"),
        (list[int] | None, "a list of whole numbers or null"),
        (dict[str, Any], "a mapping"),
    ],
)
def test_a_type_has_words(kind: Any, said: str) -> None:
    assert load.describe_type(kind) == said


@pytest.mark.parametrize(
    ("key", "section", "siblings", "nearest"),
    [
        ("lrr", "optim", ("lr", "args"), "optim.lr"),
        ("epochs", "", ("run", "train"), "train.epochs"),
        ("epochs", "optim", ("lr",), "train.epochs"),
        ("batchsize", "train", ("global_batch_size",), "train.global_batch_size"),
        ("zzz", "optim", ("lr",), None),
        ("save", "launch", ("device",), "launch.timeouts.save"),
    ],
)
def test_the_nearest_key_is_found(key: str, section: str, siblings: tuple[str, ...], nearest: str | None) -> None:
    assert load.nearest_key(key, section, siblings) == nearest


def test_a_long_value_is_cut() -> None:
    assert len(load.format_value("x" * 500)) == 80


def test_a_long_address_is_cut_after_its_password_was_taken_out() -> None:
    assert load.format_value(f"ftp://me:{'hunter2' * 20}@host") == "ftp://(not shown)@host"


def test_text_of_several_lines_is_shown_on_one() -> None:
    assert load.format_value("a\nb") == repr("a\nb")


@pytest.mark.parametrize(
    ("kind", "value", "advised"),
    [
        (int, 1e3, "write 1000, a whole number without point or exponent"),
        (int, 2.5, "correct it, or leave it out: the default is 5"),
        (float | None, [], "correct it, or leave it out: the default is 5"),
    ],
)
def test_a_wrong_value_is_not_replaced_by_another_meaning(kind: Any, value: Any, advised: str) -> None:
    assert load.suggest_fix(kind, value, 5) == advised


def test_of_two_names_that_differ_in_case_the_first_is_the_nearest() -> None:
    assert names.nearest_name("agamw", ["adamw", "AdamW"]) == "adamw"


def test_case_does_not_hide_the_nearest_name() -> None:
    assert names.nearest_name("ResNet18", ["small_cnn", "resnet18"]) == "resnet18"


@pytest.mark.parametrize(("key", "ours"), load.KEYS_OF_OTHER_TOOLS.items(), ids=load.KEYS_OF_OTHER_TOOLS)
def test_another_tools_name_leads_to_a_key_that_exists(key: str, ours: str) -> None:
    assert ours in KEYS
    assert load.nearest_key(key, "train", ("epochs",)) == ours


def fix_for(setting: str) -> str:
    """The fix for one setting of the command line."""
    with pytest.raises(Failure) as caught:
        load.load_config(None, [setting])
    return caught.value.fix


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("data.path=/x", "write data.root instead of data.path"),
        ("optim.betas=[0.9, 0.95]", "write optim.args.betas=[0.9, 0.95]"),
        ("train.dropout=0.1", "write model.args.dropout=0.1"),
        ("train.amp=true", "write train.precision: bf16, fp16 or fp32"),
        ("model.pretrained=true", "set model.weights to the file of pretrained weights"),
        ("train.accumulation=4", "set train.global_batch_size and train.micro_batch_size"),
        ("train.early_stopping=4", "write eval.early_stop instead of train.early_stopping"),
        ("optim.lr=0,1", "write 0.1, with a point instead of the comma"),
        ("data.val_fraction=0,25", "write 0.25, with a point instead of the comma"),
        ("optim.lr=1,5e-4", "write 1.5e-4, with a point instead of the comma"),
        ("train.epochs=1,5", "write a plain number, such as 5"),
        ("data.root=~/photos", "write data.root=/"),
        ("data.root=~", "write text, or leave it out: the default is data; in YAML, ~ means null"),
        ("optim.beta1=0.95", "write optim.args: {betas: [0.9, 0.999]}"),
        ("train.gradient_accumulation=4", "set train.global_batch_size and train.micro_batch_size"),
        ("train.freeze=backbone", "write model.freeze instead of train.freeze"),
        ("model.freeze_backbone=true", "write model.freeze instead of model.freeze_backbone"),
        ("model.freeze=true", "write model.freeze=backbone"),
        ("train.precision=16", "write train.precision=fp16"),
        ("train.precision=bf16-mixed", "write train.precision=bf16"),
        ("model.drop_path=0.1", "write model.args.drop_path_rate for timm's models"),
        ("model.drop_path_rate=0.1", "write model.args.drop_path_rate=0.1"),
        ("model.in_chans=1", "leave it out: the network gets the channels of the data"),
        ("model.load_from=x.pth", "write model.weights instead of model.load_from"),
        ("data.mixup_alpha=0.2", "write it in data.augment"),
        ("data.mean=[0.5]", "write data.normalize"),
        ("data.val_dir=photos/val", "set data.root to the folder above them"),
        ("data.csv=labels.csv", "set data.name to table"),
        ("data.balanced=true", "write data.sampling instead of data.balanced"),
        ("train.steps=100", "write train.max_steps instead of train.steps"),
        ("train.patience=3", "write eval.early_stop instead of train.patience"),
        ("optim.milestones=[30]", "set optim.schedule to step"),
        ("optim.min_lr=1e-6", "write optim.schedule_args: {end: 0.01}"),
        ("checkpoint.path=x", "write run.output_dir instead of checkpoint.path"),
        ("checkpoint.save_top_k=2", "write checkpoint.keep instead of checkpoint.save_top_k"),
        ("train.find_lr=true", "leave it out, and run `train find-lr`"),
        ("wandb=true", "write log.trackers: [wandb]"),
        ("model.name=resnet9", "write model.name=resnet18"),
        ("model.name=timm/resnet", "write model.name=timm/resnet10t"),
    ],
)
def test_what_users_of_other_tools_write_leads_to_the_setting_that_does_it(setting: str, fix: str) -> None:
    assert fix_for(setting).startswith(fix)


def test_an_argument_written_as_a_key_of_a_file_is_shown_as_the_file_would_hold_it(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("optim:\n  betas: [0.9, 0.95]\n")
    with pytest.raises(Failure) as caught:
        load.load_config(str(tmp_path / "my.yaml"))
    assert caught.value.fix == "write optim.args: {betas: [0.9, 0.95]}"


@pytest.mark.parametrize("key", ["data.root", "run.output_dir", "model.weights"])
def test_a_path_from_home_is_written_out(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert fix_for(f"{key}=~/photos") == f"write {key}=/home/me/photos"


def test_the_home_of_nobody_is_not_guessed() -> None:
    assert fix_for("data.root=~nobody-of-this-name/photos").startswith("correct it")


@pytest.mark.parametrize("key", [*load.FIXES_FOR_OTHER_TOOLS, *load.ARGUMENTS_WRITTEN_AS_KEYS])
def test_what_has_a_fix_of_its_own_is_no_key_of_ours(key: str) -> None:
    assert key not in {path.rpartition(".")[2] for path in KEYS}


@pytest.mark.parametrize("key", sorted(set(load.ARGUMENTS_WRITTEN_AS_KEYS.values())))
def test_the_key_that_holds_arguments_exists(key: str) -> None:
    assert key in KEYS
