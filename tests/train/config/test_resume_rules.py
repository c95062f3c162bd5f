"""A run goes on with what may differ, and refuses what would make it another training."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from entrypoint import ExitCode, Failure
from train.config.resume_rules import changed_keys, refuse_config_changes, refuse_data_changes
from train.config.schema import RunConfig


def config(**values: Any) -> dict[str, Any]:
    """The quickstart as a run records it, with `section__key=value` replaced."""
    made = asdict(RunConfig())
    made["optim"]["lr"] = 0.1
    for name, value in values.items():
        section, key = name.split("__")
        made[section][key] = value
    return made


ALLOWED = {
    "run__name": "moved",
    "run__output_dir": "/scratch/me",
    "launch__procs_per_node": 4,
    "launch__timeouts": {"start": 1.0, "step": 1.0, "save": 1.0, "evaluation": 1.0, "data": 1.0},
    "data__root": "/elsewhere",
    "data__workers": 3,
    "data__loader": "workers",
    "train__epochs": 50,
    "train__max_steps": 7,
    "train__micro_batch_size": 32,
    "eval__every_epochs": 2,
    "eval__batch_size": 512,
    "checkpoint__keep": 5,
    "checkpoint__resume": "never",
    "log__every_steps": 1,
}
REFUSED = {
    "run__seed": 1,
    "data__name": "folder",
    "data__samples": 96,
    "data__image_size": 64,
    "data__classes": 100,
    "data__val_fraction": 0.1,
    "data__augment": "none",
    "model__name": "resnet18",
    "model__args": {"width": 64},
    "optim__lr": 0.2,
    "optim__args": {"betas": [0.9, 0.99]},
    "optim__warmup_epochs": 2.0,
    "train__global_batch_size": 512,
    "train__precision": "bf16",
    "train__clip_grad_norm": 1.0,
    "eval__metric": "loss",
}


@pytest.mark.parametrize(("key", "value"), ALLOWED.items(), ids=ALLOWED.keys())
def test_a_run_goes_on_with_another(key: str, value: Any) -> None:
    assert changed_keys(config(), config(**{key: value})) == {}


@pytest.mark.parametrize(("key", "value"), REFUSED.items(), ids=REFUSED.keys())
def test_a_run_does_not_go_on_with_another(key: str, value: Any) -> None:
    now = config(**{key: value})
    section, name = key.split("__")
    assert changed_keys(config(), now) == {f"{section}.{name}": (config()[section][name], value)}


def test_the_micro_batch_stays_where_the_bits_must() -> None:
    before = config(train__reproducible="bitwise", train__micro_batch_size=16)
    now = config(train__reproducible="bitwise", train__micro_batch_size=32)
    assert changed_keys(before, now) == {"train.micro_batch_size": (16, 32)}


def test_the_difference_is_listed_with_both_values() -> None:
    with pytest.raises(Failure) as caught:
        refuse_config_changes(config(), config(optim__lr=0.2, model__name="resnet18"), Path("runs/a"))
    assert caught.value.code == ExitCode.DATA
    assert caught.value.found == 'model.name: "small_cnn" -> "resnet18"; optim.lr: 0.1 -> 0.2'
    assert "write model.name=small_cnn optim.lr=0.1;" in caught.value.fix
    assert "model.weights" not in caught.value.fix  # they are another network's
    assert "checkpoint.resume=never" in caught.value.fix


@pytest.mark.parametrize(
    ("changes", "undo", "redraws"),
    [
        ({"optim__lr": 0.2}, "optim.lr=0.1", False),
        ({"optim__args": {"nesterov": True}}, "'optim.args={}'", False),
        ({"train__clip_grad_norm": 1.0}, "train.clip_grad_norm=null", False),
        ({"data__image_size": [32, 64]}, "data.image_size=32", False),
        ({"run__seed": 3}, "run.seed=0", False),
        ({"data__val_fraction": 0.5}, "data.val_fraction=0.2", True),
        ({"data__image_size": 64, "data__group": "x"}, "data.image_size=32 data.group=null", True),
    ],
    ids=str,
)
def test_a_changed_setting_is_refused_with_every_way_on_ready_to_type(
    changes: dict[str, Any], undo: str, redraws: bool
) -> None:
    with pytest.raises(Failure) as caught:
        refuse_config_changes(config(), config(**changes), Path("runs/my pets"))
    assert f"to go on with this run, write {undo};" in caught.value.fix
    assert "'model.weights=runs/my pets' 'run.name=my pets-2'" in caught.value.fix
    assert ("that it was not trained on" in caught.value.fix) is redraws


@pytest.mark.parametrize(
    "saved",
    [{"optim": {"lookahead": 5}}, {"optim": {"class_weights": [1.5] * 100}}],
    ids=["of-a-later-version", "long"],
)
def test_what_cannot_be_typed_is_only_asked_for(saved: dict[str, Any]) -> None:
    with pytest.raises(Failure, match=r"the configuration is not the one") as caught:
        refuse_config_changes(saved, config(), Path("runs/a"))
    assert "to go on with this run, undo the change;" in caught.value.fix


@pytest.mark.parametrize(
    ("saved", "differs"),
    [
        ({}, {}),
        ({"optim__lr_scaling": "sqrt"}, {}),
        ({"optim__name": "adamw"}, {"optim.name": ("adamw", "sgd"), "optim.lr": (0.001, 0.1)}),
        ({"train__global_batch_size": 32}, {"train.global_batch_size": (32, 256), "optim.lr": (0.0125, 0.1)}),
        ({"model__weights": "w.pth"}, {"model.weights": ("w.pth", None), "optim.lr": (0.010000000000000002, 0.1)}),
    ],
    ids=str,
)
def test_the_word_auto_of_an_older_version_is_compared_as_the_rate_that_it_stood_for(
    saved: dict[str, Any], differs: dict[str, Any]
) -> None:
    assert changed_keys(config(optim__lr="auto", **saved), config()) == differs


def test_other_data_is_refused_with_every_way_on_ready_to_type() -> None:
    with pytest.raises(Failure) as caught:
        refuse_data_changes({"training": 65}, {"training": 64}, Path("runs/my pets"))
    assert (caught.value.found, caught.value.expected) == ("training: 64", "training: 65")
    assert "checkpoint.resume=never" in caught.value.fix
    assert "'model.weights=runs/my pets' 'run.name=my pets-2'" in caught.value.fix
    assert "data.root/val" in caught.value.fix


NOW = {"training": 64, "held_out": 16, "digests": {"training": "a", "held_out": "b", "all": "c"}}


@pytest.mark.parametrize(("key", "name"), [("training", "training"), ("held_out", "validation")])
def test_as_many_samples_that_are_others_are_refused(key: str, name: str) -> None:
    before = NOW | {"digests": {**NOW["digests"], key: "x"}}  # type: ignore[dict-item]
    with pytest.raises(Failure) as caught:
        refuse_data_changes(before, NOW, Path("run"))
    assert caught.value.code == ExitCode.DATA
    assert str(caught.value.found).startswith(f"{name}: {NOW[key]} as before, but others")


@pytest.mark.parametrize(("key", "words"), [("order", "in other shard files"), ("weights", "with other weights")])
def test_the_same_samples_in_another_order_or_with_other_weights_are_refused(key: str, words: str) -> None:
    before, after = (NOW | {"digests": {**NOW["digests"], key: digest}} for digest in "xy")  # type: ignore[dict-item]
    with pytest.raises(Failure) as caught:
        refuse_data_changes(before, after, Path("run"))
    assert (caught.value.code, words in str(caught.value.found)) == (ExitCode.DATA, True)
    refuse_data_changes(NOW, after, Path("run"))  # begun before these were compared


def test_what_an_older_version_or_a_check_does_not_know_is_not_compared() -> None:
    counts = {key: value for key, value in NOW.items() if key != "digests"}
    refuse_data_changes(counts, NOW, Path("run"))
    refuse_data_changes(NOW, counts, Path("run"))
    refuse_data_changes(NOW | {"digests": {}}, NOW, Path("run"))


def test_the_same_configuration_passes_through_json() -> None:
    refuse_config_changes(
        json.loads(json.dumps(config(optim__args={"betas": (0.9, 0.99)}))),
        config(optim__args={"betas": (0.9, 0.99)}),
        Path("runs/a"),
    )


def test_a_key_that_an_older_version_did_not_know_counts_as_its_default() -> None:
    older = config()
    del older["train"]["clip_grad_norm"]
    assert changed_keys(older, config()) == {}
    assert changed_keys(older, config(train__clip_grad_norm=1.0)) == {"train.clip_grad_norm": (None, 1.0)}


def test_a_key_that_this_version_no_longer_knows_is_a_difference() -> None:
    assert changed_keys(config(optim__lookahead=5), config()) == {"optim.lookahead": (5, None)}


def test_a_key_of_a_section_that_may_differ_may_be_one_that_this_version_does_not_know() -> None:
    assert changed_keys(config(log__colors=True), config()) == {}
