"""Scores over the validation images, every one once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

import pytest
import torch
from jobs import ALONE
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from entrypoint import Failure, Heartbeat
from train.config.schema import DataConfig, EvalConfig
from train.data import registry
from train.data.batch import Batch
from train.data.sampler import SampleIndices
from train.evaluation.results import EvaluationResult
from train.evaluation.validator import (
    AUTO_BATCH_SIZE,
    Evaluation,
    Validator,
    explain_out_of_memory,
    rank_batches,
    refuse_flips,
)
from train.tasks.classification import Classification

T = TypeVar("T")


class OneRank:
    """A runtime without others."""

    device = torch.device("cpu")
    cpu_group = None
    world = ALONE
    accelerator = SimpleNamespace(autocast=nullcontext)

    def all_reduce_sum(self, sums: Tensor) -> Tensor:
        """Nothing to add."""
        return sums

    def all_gather(self, value: T) -> list[T]:
        """Nothing to gather."""
        return [value]


torch.manual_seed(0)
IMAGES, LABELS = torch.randn(20, 6), torch.arange(20) % 4
MODEL = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.9))


class Loader:
    """A loader of these images, which lists how many it has read."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def evaluate(self, blocks: Sequence[SampleIndices]) -> Iterator[Batch]:
        for block in blocks:
            self.sizes.append(len(block))
            yield {"image": IMAGES[block], "label": LABELS[block], "sample": torch.from_numpy(block)}


def validator(model: nn.Module = MODEL, *, size: int = 20, flip: bool = False, **options: Any) -> Validator:
    return Validator(
        network=model,
        runtime=OneRank(),  # type: ignore[arg-type]
        config=EvalConfig(batch_size=size, flip=flip),
        task=Classification(classes=tuple("abcd")),
        heartbeat=Heartbeat(),
        **options,
    )


def evaluated(model: nn.Module = MODEL, **options: Any) -> Evaluation:
    evaluation = validator(model, **options).measure(Loader(), 20)  # type: ignore[arg-type]
    assert evaluation is not None
    return evaluation


def measured(size: int = 20) -> EvaluationResult:
    return evaluated(size=size).result


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
    filled = evaluated(model, size=8, is_padded=True).result
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
    evaluated(model)
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
    batches_of_ranks = [rank_batches(600, size, replace(ALONE, rank=rank, world_size=ranks)) for rank in range(ranks)]
    assert sorted(block.tolist() for blocks in batches_of_ranks for block in blocks) == [
        block.tolist() for block in alone
    ]
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
    result = evaluated(size=7, flip=True).result
    assert result.values["accuracy"] == (logits.argmax(1) == LABELS).double().mean().item()
    assert result.values["loss"] == pytest.approx(cross_entropy(logits.double(), LABELS).item(), abs=1e-6)


def test_with_flips_the_result_without_them_is_measured_too() -> None:
    alone, flipped = evaluated(size=7), evaluated(size=7, flip=True)
    assert flipped.unflipped == alone.result != flipped.result
    assert alone.unflipped is None


@pytest.mark.parametrize("mirror", [True, False])
def test_flips_are_refused_where_a_mirror_image_may_be_of_another_class(mirror: bool) -> None:
    splits = replace(registry.open_splits(DataConfig(samples=20, image_size=8)), mirror=mirror)
    with nullcontext() if mirror else pytest.raises(Failure, match=r"eval\.flip averages over mirror images"):
        refuse_flips(EvalConfig(flip=True), splits)


def test_a_rank_that_must_stop_ends_the_evaluation_after_its_batch_without_a_result() -> None:
    loader = Loader()
    assert validator(size=8, must_stop=lambda: len(loader.sizes) == 2).measure(loader, 20) is None  # type: ignore[arg-type]
    assert loader.sizes == [8, 8]


def test_the_weights_of_a_block_are_measured_inside_it() -> None:
    model = nn.Sequential(nn.Linear(6, 4))

    @contextmanager
    def zeros() -> Iterator[None]:
        kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        yield
        model.load_state_dict(kept)

    plain = evaluated(model).result
    inside = validator(model).measure(Loader(), 20, weights=zeros())  # type: ignore[arg-type]
    assert inside is not None
    assert inside.result.values["loss"] == pytest.approx(math.log(4))
    assert evaluated(model).result == plain != inside.result
