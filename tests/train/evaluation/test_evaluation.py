"""Scores over the validation images, every one once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal

import pytest
import torch
from jobs import ALONE
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from entrypoint import Failure
from train.config.schema import DataConfig, EvalConfig
from train.data import registry
from train.data.loader import Batch
from train.evaluation.evaluate import (
    AUTO_BATCH_SIZE,
    evaluate,
    explain_out_of_memory,
    rank_batches,
    refuse_flips,
)
from train.evaluation.results import EvaluationResult


class OneRank:
    """A runtime without others."""

    device = torch.device("cpu")
    cpu_group = None

    def all_reduce_sum(self, sums: Tensor) -> Tensor:
        """Nothing to add."""
        return sums

    def all_gather(self, value: list[float]) -> list[list[float]]:
        """Nothing to gather."""
        return [value]


torch.manual_seed(0)
IMAGES, LABELS = torch.randn(20, 6), torch.arange(20) % 4
MODEL = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.9))


def batches(size: int) -> Iterator[Batch]:
    for start in range(0, 20, size):
        yield Batch(images=IMAGES[start : start + size], labels=LABELS[start : start + size])


def measured(size: int = 20) -> EvaluationResult:
    return evaluate(MODEL, batches(size), OneRank(), classes=4).result  # type: ignore[arg-type]


def test_the_figures_are_what_the_whole_set_gives() -> None:
    with torch.no_grad():
        logits = MODEL[0](IMAGES)
    result = measured()
    assert result.samples == 20
    assert result.values["accuracy"] == (logits.argmax(1) == LABELS).double().mean().item()
    assert result.values["loss"] == pytest.approx(cross_entropy(logits.double(), LABELS).item(), abs=1e-6)


@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_a_short_last_batch_counts_by_its_samples(size: int) -> None:
    assert measured(size).values["accuracy"] == measured().values["accuracy"]
    assert measured(size).values["loss"] == pytest.approx(measured().values["loss"], abs=1e-6)


def test_batches_can_be_filled_up_to_the_size_that_code_was_compiled_for() -> None:
    seen: list[int] = []
    model = nn.Sequential(MODEL[0])
    model.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    filled = evaluate(model, batches(8), OneRank(), classes=4, padded_size=8).result  # type: ignore[arg-type]
    assert seen == [8, 8, 8]
    assert (filled.samples, filled.values["accuracy"], filled.values["loss"]) == (
        20,
        measured(8).values["accuracy"],
        measured(8).values["loss"],
    )


def test_the_model_measures_without_dropout_and_trains_on() -> None:
    MODEL.train()
    assert measured() == measured()
    assert MODEL.training


def test_a_part_that_its_maker_has_frozen_stays_so() -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.9))
    model[1].eval()
    evaluate(model, batches(20), OneRank(), classes=4)  # type: ignore[arg-type]
    assert [module.training for module in (model, *model)] == [True, True, False]


def test_nothing_is_kept_for_gradients() -> None:
    measured()
    assert all(parameter.grad is None for parameter in MODEL.parameters())


def test_every_score_is_there() -> None:
    result = measured()
    assert result.recall is not None
    assert sum(share or 0 for share in result.recall) / 4 == pytest.approx(
        result.values["accuracy"]
    )  # five of each class
    assert 0 < (result.values["macro_f1"] or 0) <= 1
    assert result.values["top5_accuracy"] == 1.0


@pytest.mark.parametrize("size", [1, 7, 256, "auto"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 20])
def test_each_sample_is_on_one_rank_in_the_same_batches(size: int | Literal["auto"], ranks: int) -> None:
    alone = rank_batches(600, size, ALONE)
    found = [rank_batches(600, size, replace(ALONE, rank=rank, world_size=ranks)) for rank in range(ranks)]
    assert sorted(block.tolist() for mine in found for block in mine) == [block.tolist() for block in alone]
    assert max(len(block) for block in alone) <= (AUTO_BATCH_SIZE if size == "auto" else size)


@pytest.mark.parametrize(("images", "fix"), [(256, "eval.batch_size=64 (it was"), (3, "=1 "), (1, "smaller model")])
@pytest.mark.parametrize("words", ["CUDA out of memory. Tried", "CUDA error: out of memory"])
def test_a_batch_that_does_not_fit_the_gpu_names_a_smaller_one(images: int, fix: str, words: str) -> None:
    with pytest.raises(Failure, match="out of GPU memory in the evaluation") as caught, explain_out_of_memory(images):
        raise torch.AcceleratorError(words)  # no GPU said it here
    assert caught.value.code == 71
    assert fix in caught.value.fix


def test_another_error_of_an_evaluation_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="mat1"), explain_out_of_memory(256):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_with_flips_the_outputs_of_mirror_images_are_averaged() -> None:
    with torch.no_grad():
        logits = (MODEL[0](IMAGES) + MODEL[0](IMAGES.flip(-1))) / 2
    result = evaluate(MODEL, batches(7), OneRank(), classes=4, flip=True).result  # type: ignore[arg-type]
    assert result.values["accuracy"] == (logits.argmax(1) == LABELS).double().mean().item()
    assert result.values["loss"] == pytest.approx(cross_entropy(logits.double(), LABELS).item(), abs=1e-6)


def test_with_flips_the_result_without_them_is_measured_too() -> None:
    alone = evaluate(MODEL, batches(7), OneRank(), classes=4)  # type: ignore[arg-type]
    flipped = evaluate(MODEL, batches(7), OneRank(), classes=4, flip=True)  # type: ignore[arg-type]
    assert flipped.unflipped == alone.result != flipped.result
    assert alone.unflipped is None


@pytest.mark.parametrize("mirror", [True, False])
def test_flips_are_refused_where_a_mirror_image_may_be_of_another_class(mirror: bool) -> None:
    splits = replace(registry.open_splits(DataConfig(samples=20, image_size=8)), mirror=mirror)
    with nullcontext() if mirror else pytest.raises(Failure, match=r"eval\.flip averages over mirror images"):
        refuse_flips(EvalConfig(flip=True), splits)
