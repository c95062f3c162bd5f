"""A Prediction holds what a model says of one image file, and is printed as text or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from entrypoint import dump_json
from train.files import one_line
from train.inference import csv_table
from train.inference.csv_table import Cell


class Prediction(Protocol):
    """What a model says of one image."""

    @property
    def path(self) -> Path:
        """The image file."""

    def cells(self, top: int, classes: Sequence[str]) -> dict[str, Cell]:
        """The prediction as the cells of a table, by column."""

    def strongest(self) -> str:
        """The highest output in words, for people."""

    def as_text(self) -> str:
        """The path and the prediction, separated by tabs."""

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object, see `dump_json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPrediction:
    """The likeliest classes of one image and their probabilities, in falling order."""

    path: Path
    classes: tuple[str, ...]
    probabilities: tuple[float, ...]

    def as_text(self) -> str:
        """Path, class and probability, separated by tabs; further classes follow."""
        pairs = zip(self.classes, self.probabilities, strict=True)
        return "\t".join([one_line(str(self.path)), *(f"{one_line(name)}\t{share:.4f}" for name, share in pairs)])

    def strongest(self) -> str:
        """The likeliest class and its probability."""
        return f"{self.classes[0]} {self.probabilities[0]:.1%}"

    def cells(self, top: int, classes: Sequence[str]) -> dict[str, Cell]:
        """The `top` likeliest classes, then the probability of each of `classes`, which the prediction must hold."""
        pairs, row = list(zip(self.classes, self.probabilities, strict=True)), dict[str, Cell]()
        for number, (name, probability) in enumerate(pairs[:top], start=1):
            suffix = f" {number}" if number > 1 else ""
            row[f"prediction{suffix}"] = csv_table.text_cell(name)
            row[f"confidence{suffix}"] = csv_table.number_cell(probability)
        by_class = dict(pairs)
        return row | {f"probability of {name}": csv_table.number_cell(by_class[name]) for name in classes}

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object, see `dump_json`."""
        pairs = zip(self.classes, self.probabilities, strict=True)
        likeliest = [{"class": name, "probability": share} for name, share in pairs]
        return dump_json({"path": str(self.path), **likeliest[0], "top": likeliest}, ensure_ascii=ascii_)


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPrediction:
    """The probability of each label of one image, and the thresholds from which on the image has the label."""

    path: Path
    labels: tuple[str, ...]
    probabilities: tuple[float, ...]
    thresholds: tuple[float, ...]

    @property
    def likely(self) -> list[tuple[str, float]]:
        """The labels that the image has, and their probabilities, in falling order."""
        rows = zip(self.labels, self.probabilities, self.thresholds, strict=True)
        likely = [(name, probability) for name, probability, threshold in rows if probability >= threshold]
        return sorted(likely, key=lambda pair: -pair[1])

    def as_text(self) -> str:
        """Path, then each label with its probability, separated by tabs; only the path for an image without one."""
        pairs = (f"{one_line(name)}\t{probability:.4f}" for name, probability in self.likely)
        return "\t".join([one_line(str(self.path)), *pairs])

    def strongest(self) -> str:
        """The label with the highest probability, also below its threshold."""
        probability, name = max(zip(self.probabilities, self.labels, strict=True), key=lambda pair: pair[0])
        return f"{name} {probability:.1%}"

    def cells(self, top: int, classes: Sequence[str]) -> dict[str, Cell]:
        """The labels that the image has, with bars between them, then the probability of every label."""
        labels = csv_table.text_cell(csv_table.LABEL_SEPARATOR.join(name for name, _ in self.likely))
        pairs = zip(self.labels, self.probabilities, strict=True)
        return {"labels": labels} | {
            f"probability of {name}": csv_table.number_cell(probability) for name, probability in pairs
        }

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object with the labels, and the probability of every label; see `dump_json`."""
        probabilities = dict(zip(self.labels, self.probabilities, strict=True))
        labels = [name for name, _ in self.likely]
        return dump_json(
            {"path": str(self.path), "labels": labels, "probabilities": probabilities}, ensure_ascii=ascii_
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberPrediction:
    """The number of one image, in the unit of the training's labels. name: of the label column."""

    path: Path
    name: str
    value: float

    def as_text(self) -> str:
        """Path and number, separated by a tab."""
        return f"{one_line(str(self.path))}\t{self.value:.6g}"

    def strongest(self) -> str:
        """The number and its name."""
        return f"{self.name} {self.value:.4g}"

    def cells(self, top: int, classes: Sequence[str]) -> dict[str, Cell]:
        """The number, in the column of its name."""
        return {csv_table.text_cell(self.name): csv_table.number_cell(self.value)}

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object, see `dump_json`."""
        return dump_json({"path": str(self.path), "name": self.name, "value": self.value}, ensure_ascii=ascii_)


def encode_table(predictions: Sequence[Prediction], top: int, classes: Sequence[str] = ()) -> bytes:
    """The CSV table of `train predict --csv`: a row for each image.

    top, classes: as in `ClassPrediction.cells`, which other predictions ignore.
    """
    rows = [
        {"path": csv_table.path_cell(str(prediction.path)), **prediction.cells(top, classes)}
        for prediction in predictions
    ]
    return csv_table.encode([*rows[0]] if rows else ["path"], [[*row.values()] for row in rows])
