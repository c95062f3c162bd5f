"""The same samples with the same augmentation in the same global order, for any number of ranks and any reader."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_classes
from PIL import Image

from train.config.batches import compute_batch_sizes, count_steps
from train.config.schema import DataConfig
from train.data import registry
from train.data.batch import Batch
from train.data.loader import open_loader
from train.data.sampler import BatchSampler, MicroBatch

SEED = 3
SAMPLES = 40  # 2 steps of 16 in an epoch, 8 samples left out
LAST = 5  # steps: the third epoch begins
BROKEN = ("ant/003.png", "ant/004.png", "bee/023.png")  # two neighbours, and the last file of a class

EVERYTHING: list[str | dict[str, Any]] = [
    "random_resized_crop",
    "horizontal_flip",
    "vertical_flip",
    "rotate90",
    "rand_augment",
    "color_jitter",
    "grayscale",
    "cutout",
    {"random_erasing": {"mode": "pixel"}},
    {"mixup": {"p": 0.7}},
    "cutmix",
]

Stream = dict[tuple[int, int], str]
"""For each micro batch (step, number in the global batch) the sha256 of what reaches the model."""


def drawn(settings: DataConfig, *, ranks: int, first: int = 0) -> Stream:
    """What all ranks together see from step `first` on."""
    batch = compute_batch_sizes(16, 2, ranks)
    counted = count_steps(batch, SAMPLES, epochs=3, max_steps=LAST)
    stream: Stream = {}
    for rank in range(ranks):
        course = BatchSampler(
            batches=batch, steps=counted, samples=SAMPLES, rank=rank, seed=SEED, repeats=settings.repeats
        )
        sets = registry.open_splits(settings)
        assert len(sets.training.labels) == SAMPLES
        loader = open_loader(sets, settings, seed=SEED, device=torch.device("cpu"), cores=1, say=lambda line: None)
        for piece, given in loader.train(course.micro_batches(first)):
            assert (piece.step, piece.number) not in stream
            stream[piece.step, piece.number] = fingerprint(piece, given)
    return dict(sorted(stream.items()))


def fingerprint(piece: MicroBatch, given: Batch) -> str:
    parts = [piece.samples, given["image"].contiguous().numpy(), given["label"].numpy()]
    if "share" in given:
        parts += [given["other"].numpy(), given["share"].numpy()]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of noise, which no shift leaves as it is, in which three files are broken."""
    root, noise = tmp_path_factory.mktemp("damaged"), np.random.default_rng(0)
    for side, counts in {"train": {"ant": 16, "bee": 24}, "val": {"ant": 2, "bee": 2}}.items():
        for path in sorted(write_classes(root / side, **counts).rglob("*.png")):
            Image.fromarray(noise.integers(0, 256, (16, 16, 3), np.uint8)).save(path)
    for name in BROKEN:
        (root / "train" / name).write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def source(damaged: Path) -> Callable[..., DataConfig]:
    """Settings of each kind of data, with changes."""
    kinds: dict[str, dict[str, Any]] = {
        "images": {"samples": 50, "image_size": 16},
        "clips": {"samples": 50, "image_size": 16, "frames": 3, "classes": 4, "augment": ["translate", "cutout"]},
        "folder with broken files": {"name": "folder", "root": str(damaged), "image_size": 16, "max_bad_images": 3},
        "all operations": {"samples": 50, "image_size": 16, "augment": EVERYTHING},
        "images that a batch repeats and that grow": {
            "samples": 50,
            "image_size": 16,
            "augment": ["rand_augment_timm", {"random_erasing": {"mode": "color"}}, "mixup"],
            "repeats": 4,
            "progressive_size": {"start": 8, "epochs": 2},
        },
        "operations on clips": {"samples": 50, "image_size": 16, "frames": 3, "classes": 4, "augment": EVERYTHING},
    }
    return lambda kind, **changes: DataConfig(**kinds[kind] | changes)


@pytest.fixture(scope="module")
def reference(source: Callable[..., DataConfig]) -> Callable[[str], Stream]:
    """One rank, from memory, all steps."""
    return cache(lambda kind: drawn(source(kind, loader="memory"), ranks=1))


KINDS = (
    "images",
    "clips",
    "folder with broken files",
    "all operations",
    "images that a batch repeats and that grow",
    "operations on clips",
)
READERS = {
    "memory": {"loader": "memory"},
    "in the rank": {"loader": "workers", "workers": 0},
    "2 workers": {"loader": "workers", "workers": 2},
}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_and_readers_change_nothing(
    source: Callable[..., DataConfig], reference: Callable[[str], Stream], kind: str, reader: dict[str, Any], ranks: int
) -> None:
    assert drawn(source(kind, **reader), ranks=ranks) == reference(kind)


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_readers_begin_where_a_resumed_run_does(
    source: Callable[..., DataConfig], reference: Callable[[str], Stream], kind: str, reader: dict[str, Any]
) -> None:
    rest = {key: value for key, value in reference(kind).items() if key[0] >= 3}  # in the middle of the second epoch
    assert drawn(source(kind, **reader), ranks=2, first=3) == rest


@pytest.fixture(scope="module")
def whole_files(damaged: Path) -> DataConfig:
    """Crops of whole image files, which are never kept in memory."""
    return DataConfig(name="folder", root=str(damaged), image_size=12, max_bad_images=3, augment=EVERYTHING)


def test_crops_of_whole_files_are_the_same_on_any_number_of_ranks_and_workers(whole_files: DataConfig) -> None:
    alone = drawn(replace(whole_files, loader="workers", workers=0), ranks=1)
    assert drawn(replace(whole_files, loader="workers", workers=2), ranks=2) == alone
    assert drawn(replace(whole_files, loader="auto", workers=0), ranks=4) == alone
    rest = {key: value for key, value in alone.items() if key[0] >= 3}
    assert drawn(replace(whole_files, workers=1), ranks=2, first=3) == rest


@pytest.mark.parametrize("kind", ["all operations", "operations on clips"])
def test_another_micro_batch_size_changes_no_pixel(source: Callable[..., DataConfig], kind: str) -> None:
    settings = source(kind, loader="memory")
    small, large = (
        torch.cat([batch["image"] for batch in batches(settings, micro=micro)]).reshape(LAST * 16, -1)
        for micro in (2, 8)
    )
    assert torch.equal(small, large)


def batches(settings: DataConfig, *, micro: int) -> list[Batch]:
    """The batches of one rank, in order."""
    batch = compute_batch_sizes(16, micro, 1)
    counted = count_steps(batch, SAMPLES, epochs=3, max_steps=LAST)
    course = BatchSampler(batches=batch, steps=counted, samples=SAMPLES, rank=0, seed=SEED)
    loader = open_loader(registry.open_splits(settings), settings, seed=SEED, device=torch.device("cpu"), cores=1)
    return [given for _, given in loader.train(course.micro_batches(0))]


@pytest.mark.parametrize("kind", KINDS)
def test_every_micro_batch_is_another_one(reference: Callable[[str], Stream], kind: str) -> None:
    assert list(reference(kind)) == [(step, number) for step in range(LAST) for number in range(8)]
    assert len(set(reference(kind).values())) == LAST * 8


@pytest.mark.parametrize("kind", KINDS)
def test_augmentation_is_in_the_comparison(
    source: Callable[..., DataConfig], reference: Callable[[str], Stream], kind: str
) -> None:
    still = drawn(source(kind, loader="memory", augment="none"), ranks=1)
    assert not set(still.values()) & set(reference(kind).values())
