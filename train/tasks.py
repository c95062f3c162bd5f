"""This table holds every task that a model can learn: what the labels are, and who computes with them.

An entry names the functions that need torch by module, so that this module can be read without it.
A new task is one entry here, its metrics in `train.metrics`, and the functions that the entry names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

CLASSIFICATION, MULTI_LABEL, REGRESSION = "classification", "multi_label", "regression"
AUTO: Final = "auto"
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
class Task:
    """One kind of labels.

    outputs: what the model's outputs are, in words, with the number of them, or with their name. noun: for their names.
    keys: the settings of loss and evaluation that act on this task, of those that act on some tasks only.
    losses: what optim.loss may say beside auto.
    default_metric: of eval.metric. example: lines of Python that print what `outputs`, a tensor of one image's outputs,
    mean; `description` is the exported model's model.json. numpy_example: the same for an array of numpy's.

    The functions, as MODULE:NAME in the package `train`:
        labels: (LabelTable, rows, DataConfig) -> TableLabels, which reads the column of a table.
        label_format: the LabelFormat of labels in arrays and in a user's own data set.
        balance: (training labels, validation labels, classes, class_weights) -> lines for the banner.
        criterion: (OptimConfig, DataSplits) -> the training loss.
        averaged: (TargetScale | None) -> what a line of the training log holds.
        counter: (classes, device, criterion, eval.threshold) -> what an evaluation counts.
        predictions: (InputSpec, outputs, paths, top) -> a prediction for each image; None if an output is not finite.
        image_results: the class of what an evaluation keeps of each image, as `inference.per_image.ImageResults`.
        mistakes: (these results, classes, EvaluationResult) -> what the report shows of an evaluation.
    """

    name: str
    outputs: str
    noun: str
    keys: frozenset[str]
    losses: tuple[str, ...] = ()
    default_metric: str
    example: str
    numpy_example: str
    labels: str
    label_format: str
    balance: str
    criterion: str
    averaged: str
    counter: str
    predictions: str
    image_results: str
    mistakes: str

    def load(self, function: str) -> Any:
        """Import the module of one of the entry's functions, and return the function."""
        module, _, name = getattr(self, function).partition(":")
        return getattr(import_module(f"train.{module}"), name)

    def describe_outputs(self, classes: tuple[str, ...] | list[str]) -> str:
        """3 classes; 3 labels, each image has any of them; one number (age)."""
        return self.outputs.format(count=f"{len(classes):,}", name=", ".join(classes[:1]))


def _table(*entries: Task) -> dict[str, Task]:
    return {entry.name: entry for entry in entries}


TASKS: Final[Mapping[str, Task]] = _table(
    Task(
        name=CLASSIFICATION,
        outputs="{count} classes",
        noun="classes",
        keys=frozenset({"optim.label_smoothing", "optim.class_weights", "optim.loss", "optim.target_threshold"}),
        losses=("bce",),
        default_metric="accuracy",
        example="probabilities = outputs.softmax(0)\n"
        'print(description["classes"][probabilities.argmax()], probabilities.max().item())\n',
        numpy_example='print(description["classes"][outputs.argmax()])\n',
        labels="data.labels:read_classes",
        label_format="data.array_labels:CLASS_LABELS",
        balance="data.statistics:describe_class_balance",
        criterion="optim.loss:build_classification_criterion",
        averaged="logging.running_mean:classification_values",
        counter="evaluation.scores:build_confusion_counter",
        predictions="inference.predict:predict_classes",
        image_results="inference.per_image:ClassResults",
        mistakes="inference.mistakes:find_class_mistakes",
    ),
    Task(
        name=MULTI_LABEL,
        outputs="{count} labels, any number of them for each image",
        noun="labels",
        keys=frozenset({"eval.threshold"}),
        default_metric="map",
        example='labels = zip(description["classes"], outputs.sigmoid(), description["thresholds"])\n'
        "print([label for label, probability, threshold in labels if probability >= threshold])\n",
        numpy_example='labels = zip(description["classes"], 1 / (1 + numpy.exp(-outputs)), description["thresholds"])\n'
        "print([label for label, probability, threshold in labels if probability >= threshold])\n",
        labels="data.labels:read_label_sets",
        label_format="data.array_labels:LABEL_SETS",
        balance="data.statistics:describe_label_balance",
        criterion="optim.loss:build_multi_label_criterion",
        averaged="logging.running_mean:multi_label_values",
        counter="evaluation.scores:MultiLabelCounter",
        predictions="inference.predict:predict_labels",
        image_results="inference.per_image:LabelResults",
        mistakes="inference.mistakes:find_label_mistakes",
    ),
    Task(
        name=REGRESSION,
        outputs="one number for each image ({name})",
        noun="number",
        keys=frozenset({"optim.loss"}),
        losses=("l1", "l2", "huber"),
        default_metric="mae",
        example='print(outputs.item() * description["target"]["std"] + description["target"]["mean"])\n',
        numpy_example='print(outputs.item() * description["target"]["std"] + description["target"]["mean"])\n',
        labels="data.labels:read_numbers",
        label_format="data.array_labels:NUMBERS",
        balance="data.statistics:describe_numbers",
        criterion="optim.loss:build_regression_criterion",
        averaged="logging.running_mean:regression_values",
        counter="evaluation.scores:ErrorCounter",
        predictions="inference.predict:predict_numbers",
        image_results="inference.per_image:NumberResults",
        mistakes="inference.mistakes:find_number_mistakes",
    ),
)
