"""One class for each image: the loss that is trained on, the metrics, and how well confidence agrees with accuracy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from evaluations import as_batch, evaluate, measure
from timm.loss import BinaryCrossEntropy
from torch.nn.functional import cross_entropy, one_hot

from train.config.schema import OptimConfig
from train.data.batch import Batch
from train.tasks import classification
from train.tasks.class_balance import class_weights
from train.tasks.classification import NUM_BINS, Classification, measure_calibration

LOGITS = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0])
COUNTS = [90, 9, 1]


def trained(optim: OptimConfig) -> Classification:
    """The task of a training on COUNTS images of each class."""
    task = Classification(classes=("a", "b", "c"), optim=optim)
    return task.for_training(torch.arange(3).repeat_interleave(torch.tensor(COUNTS)), torch.device("cpu"))


def mean_loss(optim: OptimConfig, logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    return trained(optim).loss(lambda images: images, {"image": logits, **batch}).loss


def loss(optim: OptimConfig, part: slice = slice(None)) -> float:
    return mean_loss(optim, LOGITS[part], {"label": LABELS[part]}).item()


def test_without_weights_it_is_the_plain_cross_entropy() -> None:
    assert loss(OptimConfig()) == cross_entropy(LOGITS, LABELS).item()


def test_label_smoothing_is_torchs() -> None:
    smoothed = cross_entropy(LOGITS, LABELS, label_smoothing=0.2).item()
    assert loss(OptimConfig(label_smoothing=0.2)) == pytest.approx(smoothed)
    assert loss(OptimConfig(label_smoothing=0.2, class_weights=[1, 1, 1])) == pytest.approx(smoothed)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_mean_over_parts_is_the_mean_over_all_whatever_their_classes(smoothing: float) -> None:
    optim = OptimConfig(class_weights="balanced", label_smoothing=smoothing)
    parts = [loss(optim, slice(start, start + 3)) for start in range(0, 12, 3)]
    assert sum(parts) / 4 == pytest.approx(loss(optim))


def test_a_weight_counts_as_so_many_draws_of_the_image_also_with_smoothed_labels() -> None:
    """torch's weights are those of each class's part of the smoothed label, which is another loss."""
    weighted, plain = OptimConfig(class_weights=[1, 2, 4], label_smoothing=0.2), OptimConfig(label_smoothing=0.2)
    weights = class_weights(weighted, COUNTS)
    assert weights is not None
    times = torch.tensor([1, 2, 4])[LABELS]
    drawn = mean_loss(plain, LOGITS.repeat_interleave(times, 0), {"label": LABELS.repeat_interleave(times)})
    assert loss(weighted) == pytest.approx(drawn.item() * int(times.sum()) / len(LABELS) * float(weights[0]))
    smoothed_by_torch = cross_entropy(LOGITS, LABELS, weight=weights, label_smoothing=0.2, reduction="sum") / len(
        LABELS
    )
    assert loss(weighted) != pytest.approx(smoothed_by_torch.item(), rel=1e-3)


def binary(smoothing: float = 0.0, threshold: float | None = None, weights: list[float] | None = None) -> OptimConfig:
    return OptimConfig(
        loss="bce", label_smoothing=smoothing, target_threshold=threshold, class_weights=weights or "none"
    )


@pytest.mark.parametrize("threshold", [None, 0.2])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_binary_cross_entropy_of_classes_is_timms(smoothing: float, threshold: float | None) -> None:
    reference = BinaryCrossEntropy(smoothing=smoothing, target_threshold=threshold)
    computed = mean_loss(binary(smoothing, threshold), LOGITS, {"label": LABELS})
    torch.testing.assert_close(computed, reference(LOGITS, LABELS))


@pytest.mark.parametrize("threshold", [None, 0.2])
def test_binary_cross_entropy_of_mixed_labels_is_timms(threshold: float | None) -> None:
    share = torch.linspace(0, 1, len(LABELS))
    batch = {"label": LABELS, "other": LABELS.flip(0), "share": share}
    targets = one_hot(LABELS, 3) * share[:, None] + one_hot(LABELS.flip(0), 3) * (1 - share[:, None])
    expected = BinaryCrossEntropy(target_threshold=threshold)(LOGITS, targets)
    torch.testing.assert_close(mean_loss(binary(0.0, threshold), LOGITS, batch), expected)


def test_a_threshold_gives_a_mixed_image_both_labels() -> None:
    batch = {"label": torch.tensor([0, 0]), "other": torch.tensor([1, 1]), "share": torch.tensor([0.7, 0.9])}
    assert trained(binary(0.0, 0.2)).binary_targets(batch, 3).tolist() == [[1, 1, 0], [1, 0, 0]]


def test_weights_of_classes_act_on_the_binary_loss_of_mixed_labels_with_their_shares() -> None:
    weighted, batch = (
        binary(weights=[1, 2, 4]),
        {"label": LABELS, "other": LABELS.flip(0), "share": torch.full((12,), 0.25)},
    )
    weights = class_weights(weighted, COUNTS)
    assert weights is not None
    each = [
        mean_loss(binary(), LOGITS[n : n + 1], {name: entry[n : n + 1] for name, entry in batch.items()})
        for n in range(12)
    ]
    factors = weights[LABELS] * 0.25 + weights[batch["other"]] * 0.75
    torch.testing.assert_close(mean_loss(weighted, LOGITS, batch), (torch.stack(each) * factors).mean())


def by_the_paper(confidences: np.ndarray, correct: np.ndarray) -> float:
    """The expected calibration error: Guo et al. (2017), equation 3, bin by bin."""
    error = 0.0
    for number in range(15):
        inside = (confidences > number / 15) & (confidences <= (number + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(correct[inside].mean() - confidences[inside].mean())
    return error


def test_the_error_is_the_papers_formula() -> None:
    numbers = np.random.default_rng(0)
    confidences, correct = numbers.uniform(0.1, 1, 1000), numbers.uniform(size=1000) < 0.6
    assert measure_calibration(confidences, correct).error == pytest.approx(by_the_paper(confidences, correct))


def test_a_model_that_is_as_sure_as_it_is_right_has_no_error() -> None:
    assert measure_calibration(np.full(10, 0.5), np.arange(10) % 2 == 0).error == 0


def test_a_model_that_is_sure_and_always_wrong_has_the_error_one() -> None:
    calibration = measure_calibration(np.ones(4, np.float32), np.zeros(4, bool))
    assert calibration.error == 1
    assert [each.images for each in calibration.bins] == [0] * (NUM_BINS - 1) + [4]


def test_images_without_a_finite_confidence_are_left_out() -> None:
    calibration = measure_calibration(np.array([np.nan, 0.5]), np.array([True, True]))
    assert (sum(each.images for each in calibration.bins), calibration.error) == (1, 0.5)


def test_no_image_has_no_error() -> None:
    assert measure_calibration(np.empty(0), np.empty(0, bool)).error == 0


# Three samples of class 0, two of class 1, one of class 2, none of class 3.
TRUE = torch.tensor([0, 0, 0, 1, 1, 2])
PREDICTED = torch.tensor([0, 0, 1, 1, 0, 0])
FOUR = Classification(classes=("a", "b", "c", "d"))


def logits_for(predicted: torch.Tensor) -> torch.Tensor:
    """Logits whose largest is that of each class."""
    return one_hot(predicted, 4).float() * 4


def test_the_metrics_are_those_computed_by_hand() -> None:
    result, _ = evaluate(FOUR, logits_for(PREDICTED), TRUE)
    assert result.values["accuracy"] == 3 / 6
    assert result.recall == (2 / 3, 1 / 2, 0.0, None)
    # F1 = 2 correct / (predicted + support): class 0: 4/7, class 1: 2/4, class 2: 0, class 3 does not occur
    assert result.values["macro_f1"] == pytest.approx((4 / 7 + 1 / 2 + 0) / 3, abs=1e-15)
    assert result.values["balanced_accuracy"] == pytest.approx((2 / 3 + 1 / 2 + 0) / 3, abs=1e-15)
    assert (result.samples, result.values["top5_accuracy"]) == (6, 1.0)


def test_a_class_that_is_only_predicted_counts_as_zero() -> None:
    result, _ = evaluate(FOUR, logits_for(torch.tensor([0, 3])), torch.tensor([0, 0]))
    assert result.values["macro_f1"] == pytest.approx((2 / 3 + 0) / 2, abs=1e-15)


def test_the_confusion_matrix_has_a_row_for_each_label_and_a_column_for_each_prediction() -> None:
    _, matrix = evaluate(FOUR, logits_for(PREDICTED), TRUE)
    assert matrix == [[2, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]


def test_the_top_five_of_seven_count() -> None:
    logits = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]]).expand(7, 7)
    result, _ = evaluate(Classification(classes=tuple("abcdefg")), logits, torch.arange(7))
    assert (result.values["accuracy"], result.values["top5_accuracy"]) == (1 / 7, 5 / 7)


def test_many_classes_keep_no_matrix_and_no_recall(monkeypatch: pytest.MonkeyPatch) -> None:
    few, _ = evaluate(FOUR, logits_for(PREDICTED), TRUE)
    monkeypatch.setattr(classification, "MAX_CONFUSION_CLASSES", 3)
    result, matrix = evaluate(FOUR, logits_for(PREDICTED), TRUE)
    assert (result.recall, matrix) == (None, None)
    assert result.values["macro_f1"] == few.values["macro_f1"]


def test_an_undefined_logit_spoils_the_loss_and_nothing_else() -> None:
    result, _ = evaluate(FOUR, torch.full((1, 4), float("nan")), torch.tensor([2]))
    assert result.values["loss"] != result.values["loss"]
    assert result.samples == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="gpu: there is none that could be waited for")
def test_measuring_a_batch_never_waits_for_the_gpu() -> None:
    batch = as_batch(logits_for(PREDICTED).cuda(), TRUE.cuda())
    totals = measure(FOUR, [batch])  # the first use of a kernel may wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        totals.add(batch, FOUR.measure(lambda images: images, batch, details=True))
    finally:
        torch.cuda.set_sync_debug_mode("default")
