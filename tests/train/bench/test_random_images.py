"""Random bytes as a data set."""

from __future__ import annotations

import numpy as np

from train.bench.random_images import random_images
from train.bench.training import RANDOM_IMAGES
from train.config.schema import DataConfig
from train.data import registry

DATA = DataConfig(name=RANDOM_IMAGES, samples=80, image_size=8, classes=3)


def test_it_is_a_data_set_that_a_config_can_name() -> None:
    sets = registry.open_splits(DATA)
    assert (len(sets.training.labels), len(sets.validation.labels), len(sets.classes)) == (80, 10, 3)
    assert sets.training.read(np.arange(4)).shape == (4, 8, 8, 3)


def test_it_is_the_same_each_time_and_its_sides_differ() -> None:
    one, two = random_images(DATA), random_images(DATA)
    some = np.arange(10)
    assert one.training.read(some).equal(two.training.read(some))
    assert not one.training.read(some).equal(one.validation.read(some))
