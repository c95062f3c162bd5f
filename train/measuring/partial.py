"""A test set may lack classes of the training: by their names, its images get the numbers that they had there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from train.data.folder import Files
from train.data.sets import Sets


def of(sets: Sets, classes: Sequence[str]) -> Sets:
    """The same images among the training's `classes`, where they are of some of these; else `sets` as it is.

    Class folders alone have names that somebody chose: elsewhere a class is a number.
    """
    training, held_out = sets.training, sets.held_out
    if not (isinstance(training, Files) and isinstance(held_out, Files) and set(sets.classes) < set(classes)):
        return sets
    there = {name: number for number, name in enumerate(classes)}
    numbers = torch.tensor([there[name] for name in sets.classes])
    return replace(
        sets,
        training=replace(training, labels=numbers[training.labels]),
        held_out=replace(held_out, labels=numbers[held_out.labels]),
        classes=tuple(classes),
    )
