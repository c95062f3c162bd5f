"""Each class has the weight that makes up for how often it is seen, and both are shown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from entrypoint import ExitCode, Failure
from train.config.schema import OptimConfig
from train.data.statistics import class_counts
from train.tasks import class_balance
from train.tasks.class_balance import class_weights
from train.tasks.classification import Classification

NAMES = ("rare", "common", "middle")


def labels(*counts: int) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))


def described(
    classes: Sequence[str], training: torch.Tensor, validation: torch.Tensor, weights: class_balance.ClassWeights
) -> list[str]:
    return Classification(classes=tuple(classes)).describe_balance(training, validation, weights)


def test_counts_are_those_of_every_class_also_of_one_that_has_none() -> None:
    assert class_counts(labels(2, 0, 3), 4).tolist() == [2, 0, 3, 0]


def test_balanced_weights_are_samples_by_classes_times_count() -> None:
    assert class_balance.balanced_class_weights([1, 3]) == [2.0, pytest.approx(2 / 3)]


@pytest.mark.parametrize("counts", [[5, 5], [1, 99], [7, 11, 13], [10**9, 1]])
def test_balanced_weights_keep_the_scale_of_the_loss(counts: list[int]) -> None:
    weighted = sum(w * c for w, c in zip(class_balance.balanced_class_weights(counts), counts, strict=True))
    assert weighted == pytest.approx(sum(counts))


@pytest.mark.parametrize(
    ("counts", "names", "named"),
    [
        ([0, 3], NAMES, "none of rare"),
        ([3, 0], (), "none of 1"),
        ([0, 0, 0], NAMES, "none of rare, common, middle"),
        ([1] + [0] * 7, (), "none of 1, 2, 3, 4, 5 and 2 more"),
        ([], (), "any class"),
    ],
)
def test_a_class_without_a_training_sample_cannot_be_balanced(
    counts: list[int], names: tuple[str, ...], named: str
) -> None:
    with pytest.raises(Failure) as caught:
        class_balance.balanced_class_weights(counts, names)
    assert caught.value.code == ExitCode.DATA
    assert named in str(caught.value)
    assert "optim.class_weights" in caught.value.fix


@pytest.mark.parametrize(
    ("training", "validation", "line"),
    [
        ((8, 8), (2, 2), "classes        8 samples of each for training, 2 for validation"),
        ((8, 12), (2, 3), "classes        8 to 12 samples of each for training, 2 to 3 for validation"),
        ((8, 8), (), "classes        8 samples of each for training"),
    ],
)
def test_about_equal_classes_are_one_line(training: tuple[int, ...], validation: tuple[int, ...], line: str) -> None:
    assert described(("a", "b"), labels(*training), labels(*validation), "none") == [line]


def test_unequal_classes_are_a_table_with_the_largest_first() -> None:
    first, _, *rows = described(NAMES, labels(1, 90, 9), labels(1, 10, 1), "none")
    assert first.endswith("the largest is 90 times the smallest")
    assert [row.split() for row in rows] == [
        ["common", "90", "10", "0.3704"],
        ["middle", "9", "1", "3.704"],
        ["rare", "1", "1", "33.33"],
    ]


@pytest.mark.parametrize(
    ("weights", "title", "rare"),
    [
        ("none", "weight, if optim.class_weights=balanced", "33.33"),
        ("balanced", "weight (balanced)", "33.33"),
        ([1.5, 1.0, 1.0], "weight (given)", "1.5"),
        ([1.0], "weight (given)", "-"),
    ],
)
def test_the_table_says_whose_weights_it_shows(weights: class_balance.ClassWeights, title: str, rare: str) -> None:
    shown = described(NAMES, labels(1, 90, 9), labels(0), weights)
    assert shown[1].endswith(title)
    assert shown[-1].split()[-1] == rare


TWELVE = tuple(sorted(map(str, range(1, 13))))
IN_TEXT_ORDER = "1: 1, 10: 2, 11: 3, 12: 4, 2: 5, 3: 6, 4: 7, 5: 8, 6: 9, 7: 10, 8: 11, 9: 12"


def test_each_class_is_shown_beside_its_weight_though_all_have_as_many_samples() -> None:
    weights = [float(number) for number in range(1, 13)]
    shown = described(TWELVE, labels(*[4] * 12), labels(), weights)
    assert shown[1:] == [f"class weights  {IN_TEXT_ORDER}"]


def test_weights_by_name_are_put_into_the_order_of_the_classes() -> None:
    by_name = {str(number): float(number) for number in range(1, 13)}
    assert class_balance.weights_in_order(by_name, TWELVE) == [float(name) for name in TWELVE]
    shown = described(TWELVE, labels(*[4] * 12), labels(), by_name)
    assert "class weights  1: 1, 10: 10, 11: 11, 12: 12, 2: 2," in shown[-1]


@pytest.mark.parametrize(
    ("weights", "problem", "fix"),
    [
        (
            {"rare": 1.0, "comon": 2.0, "middle": 1.0},
            "not given: common; no classes: comon",
            "write common instead of comon",
        ),
        ({"rare": 1.0}, "not given: common, middle; no classes: none", "give common, middle a number too"),
        ({"rare": 1.0, "common": 1.0, "middle": 1.0, "x": 1.0}, "not given: none; no classes: x", "remove x"),
        (
            {"rar": 1.0, "comon": 2.0, "x": 1.0},
            "not given: rare, common, middle; no classes: comon, rar, x",
            "write common instead of comon; write rare instead of rar; remove x; give middle a number too",
        ),
    ],
)
def test_names_that_are_no_classes_are_refused(weights: dict[str, float], problem: str, fix: str) -> None:
    with pytest.raises(Failure) as caught:
        class_balance.weights_in_order(weights, NAMES)
    assert (caught.value.code, caught.value.found) == (ExitCode.USAGE, problem)
    assert caught.value.fix.startswith(fix)


def test_weights_of_thousands_of_classes_are_cut() -> None:
    names = [f"n{number:08d}" for number in range(21_841)]
    shown = class_balance.describe_class_weights([1.0] * len(names), names)
    assert shown is not None
    assert shown.endswith("n00000019: 1 and 21,821 more")


def test_of_many_classes_only_the_extremes_are_shown() -> None:
    names = [f"c{number}" for number in range(100)]
    shown = described(names, labels(*range(1, 101)), labels(0), "none")
    assert len(shown) == 2 + 10 + 1
    assert [shown[2].split()[0], shown[7].strip(), shown[-1].split()[0]] == [
        "c99",
        "... and 90 classes between these",
        "c0",
    ]


def test_a_class_without_a_training_sample_is_said_and_has_no_weight() -> None:
    shown = described(("none-of-it", "b"), labels(0, 5), labels(1, 1), "none")
    assert "some classes have no training sample" in shown[0]
    assert shown[-1].split() == ["none-of-it", "0", "1", "-"]


def test_a_name_that_ends_a_line_does_not_end_one_of_the_table() -> None:
    shown = described(("new\nline", "\x1b[31mred"), labels(1, 9), labels(), "none")
    assert all(line.isprintable() for line in shown)


COUNTS = [90, 9, 1]


def test_balanced_weights_let_every_class_weigh_the_same() -> None:
    weights = class_weights(OptimConfig(class_weights="balanced"), COUNTS)
    assert weights is not None
    assert (weights * torch.tensor(COUNTS)).tolist() == pytest.approx([100 / 3] * 3)


@pytest.mark.parametrize("setting", ["balanced", [1.0, 2.0, 30.0], [5.0, 0.0, 1.0]], ids=str)
def test_weights_average_to_one_over_the_training_samples(setting: str | list[float]) -> None:
    weights = class_weights(OptimConfig(class_weights=setting), COUNTS)  # type: ignore[arg-type]
    assert weights is not None
    assert (weights * torch.tensor(COUNTS)).sum().item() == pytest.approx(100)


def test_given_weights_keep_their_proportions() -> None:
    weights = class_weights(OptimConfig(class_weights=[1, 2, 4]), COUNTS)
    assert weights is not None
    assert (weights / weights[0]).tolist() == pytest.approx([1, 2, 4])


@pytest.mark.parametrize("number", [1, 2, 4])
def test_another_number_of_weights_than_classes_is_refused(number: int) -> None:
    with pytest.raises(Failure, match=r"optim\.class_weights has another length") as caught:
        class_weights(OptimConfig(class_weights=[1.0] * number), COUNTS)
    assert caught.value.code == ExitCode.USAGE


def test_weights_on_nothing_but_an_empty_class_are_refused() -> None:
    with pytest.raises(Failure, match="gives no weight") as caught:
        class_weights(OptimConfig(class_weights=[0, 1, 0]), [3, 0, 2])
    assert caught.value.code == ExitCode.USAGE
