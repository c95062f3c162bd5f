"""The batch that a task makes for trials, warm-ups and the compiler."""

from __future__ import annotations

import pytest
import torch

from train.data import augment
from train.data.shape import Shape
from train.tasks import TargetScale
from train.tasks.registry import TASK_CLASSES, open_task

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [(8, 8), (4, 8, 8)], ids=["images", "clips"])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_images_of_the_example_lie_in_memory_as_the_loaders_do(channels: int, size: tuple[int, ...]) -> None:
    shape = Shape(channels=channels, size=size)
    example = open_task("classification", ("cat", "dog"), None).example(2, shape, CPU)
    pixels, rows = torch.zeros((5, *shape.stored), dtype=torch.uint8), torch.tensor([1, 2])
    for images in (augment.normalize(pixels[rows]), augment.normalize(pixels[rows].clone())):
        assert example["image"].stride() == images.stride()


@pytest.mark.parametrize("name", TASK_CLASSES)
def test_a_task_computes_with_its_example_in_training_and_in_evaluation(name: str) -> None:
    classes = ("number",) if name == "regression" else ("cat", "dog", "owl")
    task = open_task(name, classes, TargetScale(mean=1.0, std=2.0))
    example = task.example(4, Shape(channels=3, size=(2, 2)), CPU)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, len(classes)))
    step_loss = task.loss(network, example)
    step_loss.loss.backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert (step_loss.samples, *step_loss.values) == (4, *task.averaged)
    assert task.measure(network, example, details=True).loss.isfinite()


def test_classes_are_collated_as_the_loss_takes_them_in_whatever_width_they_are_kept() -> None:
    task = open_task("classification", ("cat", "dog"), None)
    labels = task.collate(torch.zeros(2, 1), torch.tensor([1, 0], dtype=torch.uint8))["label"]
    assert (labels.dtype, labels.tolist()) == (torch.int64, [1, 0])
