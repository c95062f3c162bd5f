"""`train data show` draws the first training images as the network gets them: decoded, cut, scaled and augmented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from train import files, plugin
from train.config.batches import compute_batch_sizes, count_steps
from train.config.schema import RunConfig
from train.data import augment, registry, statistics
from train.data.loader import open_loader
from train.data.sampler import BatchSampler
from train.data.shards import order as shard_order
from train.inference.explanation import displayable
from train.models.weights import fit_preprocessing
from train.report import plots, read
from train.run.folder import run_folder
from train.run.record import SAMPLES_FILE

NUM_IMAGES: Final = 32
OPTION: Final = "--output"
SUFFIX: Final = ".png"


def show_samples(config: RunConfig, *, config_file: str | None, output: str | None) -> str:
    """Draw a picture of the run's first training images, and return a line that says where it is.

    The images are those of the first steps, in their order, with the augmentation that the training will draw. By
    default the picture is written into the run's folder, if it exists: the report shows it; else into the current one.

    Raises:
        Failure: as opening and reading the data; USAGE or OUTPUT for a file that cannot be written.
    """
    folder = run_folder(config)
    default = folder / SAMPLES_FILE if folder.is_dir() else Path(f"{config.run.name}-{SAMPLES_FILE}")
    path = Path(output) if output is not None else default
    files.refuse_unusable_file(path, OPTION, SUFFIX)
    plugin.add_config_folder_to_path(config_file, config.data.name)
    config = replace(config, data=fit_preprocessing(config))
    shown = [(displayable(image), name) for image, name in first_samples(config)]
    note = f"data.augment: {read.format_value(config.data.augment)}; run.seed: {config.run.seed}"
    note += "" if config.data.sampling == "uniform" else f"; data.sampling: {config.data.sampling}"
    files.write_named_file(path, plots.draw_samples(shown, note), OPTION, SUFFIX)
    return f"samples        {path}: {len(shown)} training images as the network gets them"


def first_samples(config: RunConfig) -> list[tuple[Tensor, str]]:
    """The first NUM_IMAGES training images, [*size, channels] each, and the names of their classes.

    Whole micro batches of a single rank are read: an operation may mix the images of a micro batch.
    """
    splits = registry.open_splits(config.data)
    data = replace(config.data, loader="workers", workers=0, cache=None)  # reads what is shown, and nothing else
    loader = open_loader(splits, data, seed=config.run.seed, device=torch.device("cpu"), cores=1)
    batches = compute_batch_sizes(config.train.global_batch_size, config.train.micro_batch_size, 1)
    count = len(splits.training.labels)
    steps = count_steps(batches, count, epochs=config.train.epochs, max_steps=config.train.max_steps)
    sampler = BatchSampler(
        batches=batches,
        steps=steps,
        samples=count,
        rank=0,
        seed=config.run.seed,
        labels=statistics.labels_to_balance(config.data, splits),
        repeats=config.data.repeats,
        shard_order=shard_order.draw_orders(splits.training.runs(), config),
    )

    def each() -> Iterator[tuple[Tensor, str]]:
        for _, batch in loader.train(sampler.micro_batches(0)):
            images = batch["image"]
            images = images if splits.floats else augment.undo_normalization(images, loader.preprocessing)
            for image, label in zip(images.movedim(1, -1), batch["label"].tolist(), strict=True):
                yield image, describe_label(label, splits.classes)

    return [*islice(each(), NUM_IMAGES)]


def describe_label(label: int | float | list[float], classes: Sequence[str]) -> str:
    """The class of an image, its labels, or its number."""
    if isinstance(label, list):
        return ", ".join(name for name, has in zip(classes, label, strict=True) if has)
    return classes[label] if isinstance(label, int) else f"{label:g}"
