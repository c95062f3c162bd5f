"""What data.augment may say: names, arguments, order, presets."""

from __future__ import annotations

from typing import Any

import pytest

from entrypoint import Failure
from train.config import augmentations
from train.config.load import YamlDocument, build_config

WRONG: dict[str, tuple[Any, str, str]] = {
    "a misspelled name": (["horizontl_flip"], "one of none", "write horizontal_flip instead of horizontl_flip"),
    "a misspelled argument": ([{"color_jitter": {"contast": 1}}], "arguments of color_jitter", "write contrast"),
    "an argument where there is none": ([{"rotate90": {"k": 1}}], "arguments of rotate90: none", "remove k"),
    "a probability above 1": ([{"grayscale": {"p": 2}}], "a number from 0 to 1", "the default is 0.2"),
    "true for a number": ([{"grayscale": {"p": True}}], "a number from 0 to 1", "the default is 0.2"),
    "a scale that falls": ([{"random_resized_crop": {"scale": [1, 0.1]}}], "[least, most]", "leave it out"),
    "a scale of 0": ([{"random_resized_crop": {"scale": [0, 1]}}], "above 0", "leave it out"),
    "a fraction of an operation": ([{"rand_augment": {"num_ops": 1.5}}], "whole number", "the default is 2"),
    "an unknown word": ([{"random_erasing": {"mode": "noise"}}], "one of const, color, pixel", "the default is const"),
    "a colour of one number": ([{"rand_augment_timm": {"fill": 128}}], "[red, green, blue]", "[128, 128, 128]"),
    "yes for true": ([{"rand_augment_timm": {"increasing": 1}}], "true or false", "the default is True"),
    "two names in one entry": ([{"mixup": {}, "cutmix": {}}], "one name with its arguments", "write - name"),
    "arguments that are no mapping": ([{"mixup": 0.2}], "one name with its arguments", "write - name"),
    "an empty entry": ([{}], "one name with its arguments", "write - name"),
    "an empty list": ([], "a list of operations", "name an operation"),
    "none beside others": (["none", "cutout"], "none alone", "remove none"),
    "the same twice": (["grayscale", "grayscale"], "do the same", "remove grayscale or grayscale"),
    "two that mirror": (["horizontal_flip", "standard"], "do the same", "remove horizontal_flip or standard"),
    "two policies": (["rand_augment", "trivial_augment"], "do the same", "remove rand_augment"),
    "a preset and a part of it": (["imagenet", "horizontal_flip"], "do the same", "remove horizontal_flip"),
    "another order": (["random_erasing", "grayscale"], "in which they act", "grayscale, random_erasing"),
}


@pytest.mark.parametrize(("value", "expected", "fix"), WRONG.values(), ids=WRONG.keys())
def test_what_cannot_be_used_is_refused_with_what_to_write(value: Any, expected: str, fix: str) -> None:
    with pytest.raises(Failure) as caught:
        build_config(YamlDocument(value={"data": {"augment": value}}, lines={}), "cfg.yaml")
    assert caught.value.code == 64
    assert expected in str(caught.value.expected)
    assert fix in str(caught.value.fix)


@pytest.mark.parametrize("preset", augmentations.PRESETS)
def test_every_preset_can_be_used(preset: str) -> None:
    assert augmentations.find_problem(preset) is None
    assert augmentations.expand(preset) == augmentations.expand([*augmentations.PRESETS[preset]])


@pytest.mark.parametrize("name", augmentations.OPERATIONS)
def test_every_operation_can_be_used_with_its_defaults(name: str) -> None:
    (step,) = augmentations.expand([name])
    assert augmentations.find_problem([{name: dict(step.arguments)} if step.arguments else name]) is None


def test_a_preset_and_more_operations_make_one_list() -> None:
    steps = augmentations.expand(["imagenet", "random_erasing", {"mixup": {"alpha": 0.1}}])
    assert [step.name for step in steps] == ["random_resized_crop", "horizontal_flip", "random_erasing", "mixup"]
    assert steps[-1].arguments == {"alpha": 0.1, "p": 1.0}


def test_none_is_an_empty_list() -> None:
    assert augmentations.expand("none") == augmentations.expand(["none"]) == ()
