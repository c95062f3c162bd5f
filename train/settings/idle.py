"""From a configuration to its keys that do nothing beside the others: said, so that nobody takes them for what acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Final

from train.settings import names
from train.settings.config import RunConfig


def warnings(config: RunConfig) -> tuple[str, ...]:
    """One line for each key that was set and does nothing. A key at its default claims nothing."""
    set_, defaults = asdict(config), asdict(RunConfig())
    told = []
    for key, (idle, why) in IDLE.items():
        section, name = key.split(".")
        value = set_[section][name]
        if value != defaults[section][name] and idle(config):
            told.append(f"{key}: {value} does nothing here. fix: {why}")
    return tuple(told)


def without_effect(config: RunConfig) -> frozenset[str]:
    """The keys that do nothing here, at their defaults too: what is told of a run is better told without them."""
    everything = {**{key: idle for key, (idle, _) in IDLE.items()}, **NOT_OURS}
    return frozenset(key for key, idle in everything.items() if idle(config))


def _is_synthetic(config: RunConfig) -> bool:
    return config.data.name == names.SYNTHETIC


def _has_own_number(config: RunConfig) -> bool:
    return not _is_synthetic(config) and not names.is_factory(config.data.name)


# What may be idle: when, and what to do about it.
IDLE: Final[Mapping[str, tuple[Callable[[RunConfig], bool], str]]] = {
    "data.root": (
        _is_synthetic,
        "set data.name to what lies there (folder, npz, cifar10, ...); synthetic reads nothing",
    ),
    "data.samples": (_has_own_number, "leave it out: all samples that are there are used"),
    "data.val_fraction": (
        lambda config: config.data.name in names.PUBLISHED,
        "leave it out: the published test images are held out",
    ),
    "data.cache": (
        lambda config: config.data.name != names.FOLDER and not names.is_factory(config.data.name),
        "leave it out: only image folders are decoded into it",
    ),
    "optim.momentum": (
        lambda config: config.optim.name.lower() != "sgd",
        "leave it out, or set what this optimizer calls it in optim.args",
    ),
    "optim.weight_decay": (lambda config: config.optim.name == "Rprop", "leave it out: Rprop has no weight decay"),
    "optim.base_batch_size": (
        lambda config: config.optim.lr_scaling == "none",
        "set optim.lr_scaling to linear or sqrt, or leave it out",
    ),
    "train.gradient_exchange": (
        lambda config: config.train.parallel != "ddp",
        "set train.parallel to ddp: one process exchanges nothing",
    ),
    "eval.patience": (
        lambda config: config.eval.target is None,
        "set eval.target, the value that ends the run once it was held so often, or leave it out",
    ),
}
# Refused, or a claim that is compared, where they are set for other data: only their defaults can be idle.
NOT_OURS: Final[Mapping[str, Callable[[RunConfig], bool]]] = {
    "data.classes": lambda config: _has_own_number(config) and config.data.classes == RunConfig().data.classes,
    "data.frames": lambda config: not _is_synthetic(config),
    "data.imbalance": lambda config: not _is_synthetic(config),
    "data.group": lambda config: config.data.name != names.FOLDER,
    "data.download": lambda config: config.data.name not in names.PUBLISHED,
    "data.mirror": lambda config: config.data.name not in names.PUBLISHED,
}
