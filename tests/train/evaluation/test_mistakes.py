"""A bounded number of the most telling images is chosen, for each task."""

from __future__ import annotations

import numpy as np
import torch

from train.evaluation.mistakes import LabelScore
from train.evaluation.results import EvaluationResult
from train.tasks.classification import confident_mistakes, find_class_mistakes, hardest_images
from train.tasks.multi_label import LabelResults, MultiLabel
from train.tasks.regression import evenly, find_number_mistakes


def test_the_most_confident_mistake_comes_first_and_what_is_right_or_no_number_is_none() -> None:
    correct = np.array([False, True, False, False, False])
    assert confident_mistakes(correct, np.array([0.6, 0.99, 0.9, np.nan, 0.6])).tolist() == [2, 0, 4]


def test_of_many_mistakes_24_are_shown() -> None:
    assert len(confident_mistakes(np.zeros(99, bool), np.full(99, 0.7))) == 24


def test_each_class_shows_its_three_images_with_the_highest_loss() -> None:
    losses = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, np.nan])
    assert hardest_images(np.array([0, 1] * 5), np.ones(10, bool), losses).tolist() == [8, 6, 4, 7, 5, 3]


def test_a_mistake_shows_both_classes_its_confidence_and_its_loss() -> None:
    arrays = (np.array([0, 1]), np.array([0, 0]), np.array([0.9, 0.75]), np.array([0.105, 1.386]))
    by_confidence, by_class = find_class_mistakes(("cat", "dog"), *arrays).selections
    assert (by_confidence.rows, by_confidence.cells) == ([1], [["dog", "cat", "75.0%", "1.39"]])
    assert by_confidence.title == "The most confident mistakes, 1 of 1:"
    assert by_class.rows == [0, 1]


def test_of_many_classes_the_ten_with_the_lowest_recall_are_shown() -> None:
    labels = list(range(40)) * 5
    wrong = set(range(20, 30))
    predictions = [0 if label in wrong else label for label in labels]
    mistakes = hardest_images(np.array(labels), np.equal(labels, predictions), np.ones(200))
    assert len(mistakes) == 30
    assert {labels[row] for row in mistakes} == wrong


CLASSES = ("dark", "striped")


def label_results(labels: list[list[int]], logits: list[list[float]]) -> LabelResults:
    rows = {"label": np.array(labels, bool), "output": np.array(logits, np.float32)}
    task = MultiLabel(classes=CLASSES if len(labels[0]) == 2 else tuple(map(str, range(len(labels[0])))))
    return task.label_results(rows, [0.5] * len(labels[0]))


def measured(*average_precision: float | None) -> EvaluationResult:
    thresholds = (0.5,) * len(average_precision)
    return EvaluationResult(samples=4, values={}, average_precision=average_precision, thresholds=thresholds)


LABELS = label_results([[1, 0], [0, 1], [1, 1], [0, 0]], [[-3, -3], [2, 4], [1, 5], [-1, torch.nan]])


def test_the_image_with_the_highest_loss_over_its_labels_comes_first() -> None:
    by_image, _ = LABELS.find_mistakes(measured(0.5, 1.0)).selections
    assert by_image.rows == [0, 1, 2]  # the loss of image 3 is no number
    assert by_image.cells[1] == ["striped", "dark, striped", "1.07"]
    assert by_image.cells[0] == ["dark", "none", "1.55"]


def test_each_label_shows_where_it_is_missed_or_given_without_reason() -> None:
    _, each = LABELS.find_mistakes(measured(0.5, 1.0)).selections
    assert each.title == "The worst images of each label:"
    assert [cells[:3] for cells in each.cells[:3]] == [
        ["dark", "yes", "4.7%"],
        ["dark", "no", "88.1%"],
        ["dark", "yes", "73.1%"],
    ]
    assert each.rows[3:] == [0, 1, 2]


def test_of_many_labels_the_ten_with_the_lowest_average_precision_are_shown() -> None:
    mistakes = label_results([[1, 0] * 20] * 4, [[0.0] * 40] * 4)
    precision = [0.9] * 40
    precision[5:15] = [0.1] * 10
    shown = mistakes.worst_of_each_label([*precision[:39], None])
    assert [*shown] == list(range(5, 15))
    assert {len(rows) for rows in shown.values()} == {3}


def test_each_label_has_its_counts() -> None:
    mistakes = LABELS.find_mistakes(measured(0.5, None)).labels
    assert mistakes[0] == LabelScore(
        name="dark", images=2, predicted=2, correct=1, average_precision=0.5, threshold=0.5
    )
    assert (mistakes[1].images, mistakes[1].predicted, mistakes[1].correct, mistakes[1].average_precision) == (
        2,
        2,
        2,
        None,
    )


def test_the_largest_error_in_either_direction_comes_first() -> None:
    mistakes = find_number_mistakes("age", np.array([1.0, 2, 3, 4]), np.array([1.5, 0, 9, np.nan]))
    assert mistakes.selections[0].rows == [2, 1, 0]
    assert mistakes.selections[0].cells[:2] == [["3", "9", "+6"], ["2", "0", "-2"]]
    assert mistakes.numbers is not None
    assert (mistakes.numbers.true, mistakes.numbers.predicted) == ((1, 2, 3), (1.5, 0, 9))
    assert (mistakes.numbers.name, mistakes.numbers.images, mistakes.numbers.mean_error) == ("age", 3, 1.5)


def test_of_many_images_a_diagram_draws_2000_at_even_distances() -> None:
    rows = evenly(np.arange(50_500), 2000)
    assert (len(rows), rows[0]) == (2000, 0)
    assert set(np.diff(rows)) == {25, 26}
    assert evenly(np.arange(3), 2000).tolist() == [0, 1, 2]
