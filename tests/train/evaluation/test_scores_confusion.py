"""Counts of answers, and the scores that they come to."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from entrypoint import Failure
from train.evaluation import scores
from train.evaluation.scores import ConfusionCounter

CPU = torch.device("cpu")
# Three samples of class 0, two of class 1, one of class 2, none of class 3.
DUE = torch.tensor([0, 0, 0, 1, 1, 2])
GIVEN = torch.tensor([0, 0, 1, 1, 0, 0])


def alone(sums: Tensor) -> Tensor:
    return sums


def only(losses: list[float]) -> list[list[float]]:
    return [losses]


def logits_for(given: Tensor, classes: int) -> Tensor:
    """Logits whose largest is at `given`."""
    return one_hot(given, classes).float() * 4


def add(counter: ConfusionCounter, logits: Tensor, labels: Tensor) -> None:
    counter.add(lambda images: images, {"image": logits, "label": labels})


def counted(given: Tensor = GIVEN, due: Tensor = DUE, classes: int = 4) -> ConfusionCounter:
    found = ConfusionCounter(classes, CPU)
    add(found, logits_for(given, classes), due)
    return found


def test_the_scores_are_those_computed_by_hand() -> None:
    result, _ = counted().read(alone, only)
    assert result.values["accuracy"] == 3 / 6
    assert result.recall == (2 / 3, 1 / 2, 0.0, None)
    # F1 = 2 right / (given + due): class 0: 4/7, class 1: 2/4, class 2: 0, class 3 does not occur
    assert result.values["macro_f1"] == pytest.approx((4 / 7 + 1 / 2 + 0) / 3, abs=1e-15)
    assert result.values["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3, abs=1e-15)
    assert (result.samples, result.values["top5_accuracy"]) == (6, 1.0)


def test_a_class_that_is_only_answered_counts_as_zero() -> None:
    result, _ = counted(given=torch.tensor([0, 3]), due=torch.tensor([0, 0])).read(alone, only)
    # class 0: 2/3; class 3 was answered and is not there: 0
    assert result.values["macro_f1"] == pytest.approx((2 / 3 + 0) / 2, abs=1e-15)


def test_the_confusion_matrix_has_a_row_for_each_label_and_a_column_for_each_answer() -> None:
    _, matrix = counted().read(alone, only)
    assert matrix is not None
    assert matrix.tolist() == [[2, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_the_top_five_of_seven_count() -> None:
    found = ConfusionCounter(7, CPU)
    add(found, torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]]).expand(7, 7), torch.arange(7))
    result, _ = found.read(alone, only)
    assert (result.values["accuracy"], result.values["top5_accuracy"]) == (1 / 7, 5 / 7)


def test_batches_and_ranks_add_up_to_the_whole() -> None:
    whole, matrix = counted().read(alone, only)
    parts = [ConfusionCounter(4, CPU) for _ in range(3)]  # the last one has no batch
    for part, rows in zip(parts, (slice(0, 4), slice(4, 6)), strict=False):
        add(part, logits_for(GIVEN[rows], 4), DUE[rows])
    sums: list[Tensor] = []
    losses: list[list[float]] = []
    for part in parts:
        part.read(lambda own: sums.append(own.clone()) or own.fill_(1), lambda own: losses.append(own) or [own])  # type: ignore[func-returns-value]
    result, total = parts[0].read(lambda own: own.copy_(sum(sums)), lambda own: losses)  # type: ignore[arg-type]
    assert (result, total is not None) == (whole, True)
    assert torch.equal(total, matrix)  # type: ignore[arg-type]


def test_many_classes_keep_no_matrix_and_no_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MAX_CONFUSION_CLASSES", 3)
    result, matrix = counted().read(alone, only)
    assert (result.recall, matrix) == (None, None)
    assert result.values["macro_f1"] == counted().read(alone, only)[0].values["macro_f1"]


def test_the_loss_does_not_depend_on_which_rank_measured_which_batch() -> None:
    def loss(*ranks: list[float]) -> float:
        return counted().read(alone, lambda own: ranks)[0].values["loss"]

    assert loss([1e16, 1.0], [1.0]) == loss([1.0, 1e16], [1.0]) == loss([1.0, 1.0, 1e16])


def test_an_undefined_logit_spoils_the_loss_and_nothing_else() -> None:
    found = ConfusionCounter(4, CPU)
    add(found, torch.full((1, 4), float("nan")), torch.tensor([2]))
    result, _ = found.read(alone, only)
    assert result.values["loss"] != result.values["loss"]
    assert result.samples == 1


@pytest.mark.parametrize("shape", [(2, 3), (2, 5), (1, 4), (2, 4, 1)])
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(Failure, match="do not fit the data") as caught:
        add(ConfusionCounter(4, CPU), torch.zeros(shape), torch.tensor([0, 1]))
    assert caught.value.code == 65


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(Failure, match="no validation image") as caught:
        ConfusionCounter(4, CPU).read(alone, only)
    assert caught.value.code == 65


@pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu: there is none that could be waited for")
def test_counting_a_batch_never_waits_for_the_gpu() -> None:
    device = torch.device("cuda")
    found, logits, labels = ConfusionCounter(4, device), logits_for(GIVEN, 4).to(device), DUE.to(device)
    add(found, logits, labels)  # the first use of a kernel may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        add(found, logits, labels)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert found.read(alone, only)[0].values["macro_f1"] == counted().read(alone, only)[0].values["macro_f1"]
