"""What is trained in a comparison: the same on both sides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from train.bench import loads
from train.bench.loads import Load
from train.config import load as schema

ALL = {
    "reference": loads.REFERENCE,
    "compiled": replace(loads.REFERENCE, compile="default"),
    "small": loads.SMALL,
    "loop": loads.LOOP,
    "epochs": loads.EPOCHS,
    "together": loads.TOGETHER,
}


def said(words: list[str], name: str) -> str:
    """The value of an argument."""
    return words[words.index(name) + 1]


@pytest.mark.parametrize("load", ALL.values(), ids=ALL)
def test_both_sides_are_given_the_same_work(load: Load) -> None:
    config, words = schema.load_config(None, load.settings()), load.words()
    assert said(words, "--batch") == str(config.train.global_batch_size)
    assert said(words, "--samples") == str(config.data.samples)
    assert said(words, "--precision") == config.train.precision
    assert ("--augment" in words) == (config.data.augment == "standard")
    assert ("--compile" in words) == (config.train.compile == "default")


def test_each_process_has_the_batch_of_one() -> None:
    config = schema.load_config(None, loads.TOGETHER.settings(procs=2))
    assert config.train.global_batch_size == 2 * loads.TOGETHER.batch
    assert config.train.micro_batch_size == loads.TOGETHER.batch
