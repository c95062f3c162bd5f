"""This table holds what is known of each task without torch: its words, its settings, and what a report asks.

Config checks and reports read it. What computes with the labels is the task's class, one module for each task beside
this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from train.config.schema import DataConfig

CLASSIFICATION, MULTI_LABEL, REGRESSION = "classification", "multi_label", "regression"
AUTO: Final = "auto"
MAX_NUMBER: Final = (2 - 2**-23) * 2.0**127  # of float32, in which numbers are learnt
# What users ask for and is not here -> what they may do.
UNSUPPORTED_TASKS: Final[Mapping[str, str]] = {
    "segmentation": "train on one label per image, or use a program for masks of pixels",
    "detection": "cut the boxes out as images of their own and classify them, or use a program for boxes",
    "keypoints": "use a program for points; a single number per image is data.task=regression",
    "captioning": "train on classes or on several labels per image, or use a program for text",
    "ocr": "train on classes or on several labels per image, or use a program for text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScale:
    """The mean and the standard deviation of the training's numbers. The model learns (number - mean) / std."""

    mean: float
    std: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """One kind of labels, as far as it is known without torch."""

    name: str
    # What the model's outputs are, in words, with the number of them, or with their name.
    outputs: str
    # For the names of the outputs.
    noun: str
    # Whether the outputs are named and counted as classes are. A number has one name, which may be any.
    has_classes: bool = True
    # Of the settings of loss and evaluation that act on some tasks only, those that act on this one.
    keys: frozenset[str]
    # What optim.loss may say beside auto and a loss of the user's own.
    losses: tuple[str, ...] = ()
    # eval.metric, unless the config names another. It is the first of the task's metrics in `train.metrics`.
    default_metric: str
    # The metric that says whether a result is poor: 1 is perfect.
    telling_metric: str
    # Number of classes -> the value of that metric for answers that are guessed.
    guessed: Callable[[int], float] = lambda classes: 0.0
    # The values of a training log line that are shares, and are drawn beside the metrics.
    training_scores: tuple[str, ...] = ()
    # Lines of Python that print what `outputs`, a tensor of one image's outputs, mean; `description` is the exported
    # model's model.json.
    example: str
    # The same for an array of numpy's.
    numpy_example: str

    def describe_outputs(self, classes: tuple[str, ...] | list[str]) -> str:
        """3 classes; 3 labels, each image has any of them; one number (age)."""
        return self.outputs.format(count=f"{len(classes):,}", name=", ".join(classes[:1]))


def configured_task(data: DataConfig) -> str:
    """data.task where labels do not tell it: arrays and items have classes unless the config says otherwise."""
    return CLASSIFICATION if data.task == AUTO else data.task


def parse_number(text: str) -> float | None:
    """The number in a text; None if there is none, or none that 32 bits hold. 1_000 is one in Python's code only."""
    if "_" in text:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) <= MAX_NUMBER else None


def task_fact(task: str) -> dict[str, str]:
    """The task as records name it. The first versions named none, so a classification is recorded without it."""
    return {} if task == CLASSIFICATION else {"task": task}


def _table(*entries: TaskEntry) -> dict[str, TaskEntry]:
    return {entry.name: entry for entry in entries}


TASKS: Final[Mapping[str, TaskEntry]] = _table(
    TaskEntry(
        name=CLASSIFICATION,
        outputs="{count} classes",
        noun="classes",
        keys=frozenset({"optim.label_smoothing", "optim.class_weights", "optim.loss", "optim.target_threshold"}),
        losses=("bce",),
        default_metric="accuracy",
        telling_metric="balanced_accuracy",
        guessed=lambda classes: 1 / classes,
        training_scores=("accuracy",),
        example="probabilities = outputs.softmax(0)\n"
        'print(description["classes"][probabilities.argmax()], probabilities.max().item())\n',
        numpy_example='print(description["classes"][outputs.argmax()])\n',
    ),
    TaskEntry(
        name=MULTI_LABEL,
        outputs="{count} labels, any number of them for each image",
        noun="labels",
        keys=frozenset({"optim.loss", "eval.threshold"}),
        default_metric="map",
        telling_metric="map",
        training_scores=("label_accuracy",),
        example='labels = zip(description["classes"], outputs.sigmoid(), description["thresholds"])\n'
        "print([label for label, probability, threshold in labels if probability >= threshold])\n",
        numpy_example='labels = zip(description["classes"], 1 / (1 + numpy.exp(-outputs)), description["thresholds"])\n'
        "print([label for label, probability, threshold in labels if probability >= threshold])\n",
    ),
    TaskEntry(
        name=REGRESSION,
        outputs="one number for each image ({name})",
        noun="number",
        has_classes=False,
        keys=frozenset({"optim.loss"}),
        losses=("l1", "l2", "huber"),
        default_metric="mae",
        telling_metric="r2",
        example='print(outputs.item() * description["target"]["std"] + description["target"]["mean"])\n',
        numpy_example='print(outputs.item() * description["target"]["std"] + description["target"]["mean"])\n',
    ),
)
