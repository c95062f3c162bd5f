"""Mixup and CutMix: pairs, shares and labels, compared with torchvision's transforms v2."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, one_hot
from torchvision.transforms import v2

from entrypoint import Failure
from train.config import augmentations
from train.config.schema import DataConfig, OptimConfig
from train.data import mixing, registry
from train.data.augmenter import build_augmenter
from train.data.mixing import MixDraws
from train.tasks.classification import Classification

SAMPLES = np.arange(4000)
IMAGES = torch.rand((2, 3, 8, 12), generator=torch.Generator().manual_seed(0))


def draws(*entries: Any) -> MixDraws:
    return mixing.draw_mix(augmentations.expand([*entries]), SAMPLES, size=(32, 48), seed=0, epoch=0)


def fixed(**changes: Any) -> MixDraws:
    """Two images that are not mixed, with changes."""
    empty = dict.fromkeys(("top", "bottom", "left", "right"), np.zeros(2, np.int64))
    return MixDraws(**{"blend": np.ones(2), "share": np.ones(2)} | empty | changes)  # type: ignore[arg-type]


def test_neighbours_are_pairs() -> None:
    assert mixing.swap_neighbours(torch.arange(6)).tolist() == [1, 0, 3, 2, 5, 4]


@pytest.mark.parametrize("alpha", [0.1, 0.2, 1.0, 8.0])
def test_shares_are_of_the_beta_distribution(alpha: float) -> None:
    shares = mixing.inverse_beta((np.arange(20_000) + 0.5) / 20_000, alpha)
    drawn = np.sort(np.random.default_rng(0).beta(alpha, alpha, 200_000))
    quantiles = [0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99]
    assert np.quantile(shares, quantiles) == pytest.approx(np.quantile(drawn, quantiles), abs=0.01)
    assert shares.var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.01)


def test_mixup_adds_images_as_torchvision_does(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = v2.MixUp(alpha=1.0, num_classes=2)
    monkeypatch.setattr(transform, "make_params", lambda inputs: {"lam": 0.3, "labels": labels, "batch_size": 2})
    labels = torch.tensor([0, 1])
    expected, targets = transform(IMAGES, labels)
    drawn = fixed(blend=np.full(2, 0.3), share=np.full(2, 0.3))
    batch = {"image": IMAGES, "label": labels}
    mixing.mix_batch(batch, drawn)
    torch.testing.assert_close(batch["image"], expected)
    share = batch["share"][:, None]
    mixed = one_hot(labels) * share + one_hot(batch["other"]) * (1 - share)
    torch.testing.assert_close(mixed, targets)


def test_cutmix_fills_the_box_that_torchvision_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    transform, labels, box = v2.CutMix(alpha=1.0, num_classes=2), torch.tensor([0, 1]), (2, 1, 7, 5)
    parameters = {"box": box, "lam_adjusted": 1 - 20 / 96, "labels": labels, "batch_size": 2}
    monkeypatch.setattr(transform, "make_params", lambda inputs: parameters)
    expected, _ = transform(IMAGES, labels)
    sides = dict(zip(("left", "top", "right", "bottom"), (np.full(2, side) for side in box), strict=True))
    assert torch.equal(mixing.mix_images(IMAGES, fixed(**sides)), expected)


def test_the_share_of_cutmix_is_the_area_that_is_left() -> None:
    drawn = draws("cutmix")
    area = (drawn.bottom - drawn.top) * (drawn.right - drawn.left) / (32 * 48)
    assert drawn.share == pytest.approx(1 - area)
    assert (drawn.blend == 1).all()


def test_boxes_of_cutmix_are_as_large_as_torchvisions() -> None:
    torch.manual_seed(0)
    transform = v2.CutMix(alpha=1.0, num_classes=2)
    shares = [transform.make_params([torch.empty(2, 3, 32, 48)])["lam_adjusted"] for _ in range(2000)]
    assert draws("cutmix").share.mean() == pytest.approx(np.mean(shares), abs=0.02)
    assert draws("cutmix").share.std() == pytest.approx(np.std(shares), abs=0.02)


def test_each_sample_gets_one_of_the_two() -> None:
    drawn = draws("mixup", "cutmix")
    blended, filled = drawn.blend < 1, (drawn.bottom > drawn.top) & (drawn.right > drawn.left)
    assert not (blended & filled).any()
    assert 0.45 < blended.mean() < 0.55


def test_a_probability_leaves_the_other_samples_as_they_are() -> None:
    assert 0.27 < (draws({"mixup": {"p": 0.3}}).share < 1).mean() < 0.33


@pytest.mark.parametrize("changes", [{}, {"label_smoothing": 0.1}])
def test_the_loss_is_that_of_the_mixed_targets(changes: dict[str, Any]) -> None:
    logits, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    other, share = torch.tensor([1, 0, 0, 2]), torch.tensor([0.3, 1.0, 0.5, 0.0])
    targets = one_hot(labels, 3) * share[:, None] + one_hot(other, 3) * (1 - share[:, None])
    task = Classification(classes=("a", "b", "c"), optim=OptimConfig(**changes))
    loss = task.mean_loss(logits, {"label": labels, "other": other, "share": share})
    torch.testing.assert_close(loss, cross_entropy(logits, targets, **changes))


def test_labels_that_do_not_mix_give_the_loss_without_mixing() -> None:
    logits, labels = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
    task = Classification(classes=("a", "b", "c"), optim=OptimConfig(class_weights=[1, 2, 3]))
    task = task.for_training(torch.arange(15) % 3, torch.device("cpu"))
    mixed = {"label": labels, "other": labels.flip(0), "share": torch.ones(4)}
    torch.testing.assert_close(task.mean_loss(logits, mixed), task.mean_loss(logits, {"label": labels}))


def test_a_mixed_image_counts_as_correct_with_the_share_of_the_predicted_label() -> None:
    batch = {
        "image": torch.eye(3),
        "label": torch.tensor([0, 2, 2]),
        "other": torch.tensor([1, 1, 0]),
        "share": torch.tensor([0.7, 0.4, 0.9]),
    }
    values = Classification(classes=("a", "b", "c")).loss(lambda images: images, batch).values
    assert float(values["accuracy"]) == pytest.approx(0.7 + 0.6 + 0.9)


def test_an_odd_micro_batch_is_refused() -> None:
    data = DataConfig(samples=20, image_size=8, augment=["mixup"])
    augmenter = build_augmenter(registry.open_splits(data), data, seed=0)
    augmenter.refuse_odd_micro_batch(4)
    with pytest.raises(Failure, match="mixup mixes samples in pairs") as caught:
        augmenter.refuse_odd_micro_batch(5)
    assert caught.value.code == 64
