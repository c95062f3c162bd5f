"""Broken images: found one by one, replaced or left out, said once, and counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.data.workers import SampleIndices, SkipUnreadable, UnreadableLog


class Shelf:
    """Twelve one-number images, some of them broken."""

    def __init__(self, *bad: int, code: ExitCode = ExitCode.DATA) -> None:
        self.bad, self.code, self.asked = bad, code, 0

    def read(self, samples: SampleIndices) -> Tensor:
        self.asked += 1
        for sample in samples:
            if sample in self.bad:
                raise Failure(f"image {sample}", found=f"{sample}.png: cut", fix="mend it", code=self.code)
        return torch.from_numpy(samples)


def tolerant(*bad: int, most: int = 9, replace: bool = True, code: ExitCode = ExitCode.DATA) -> SkipUnreadable:
    return SkipUnreadable(Shelf(*bad, code=code).read, 12, most=most, replace=replace)


@pytest.mark.parametrize(
    ("bad", "asked", "given"),
    [
        ((), [3, 1], [3, 1]),
        ((3,), [3, 1], [4, 1]),
        ((3, 4), [3, 4, 5], [5, 5, 5]),
        ((11,), [11], [0]),
        ((10, 11, 0, 1), [10, 2, 11], [2, 2, 2]),
        ((3,), [3, 3], [4, 4]),
    ],
)
def test_in_training_the_next_readable_one_takes_its_place(bad: tuple[int], asked: list[int], given: list[int]) -> None:
    pixels, taken, found = tolerant(*bad).read(np.array(asked))
    assert pixels is not None
    assert (pixels.tolist(), taken.tolist()) == (given, given)
    assert found == {sample: f"{sample}.png: cut" for sample in bad}


@pytest.mark.parametrize(("bad", "given"), [((3,), [1, 2]), ((1, 3), [2]), ((7,), [3, 1, 2])])
def test_in_evaluation_it_is_left_out(bad: tuple[int], given: list[int]) -> None:
    pixels, taken, _ = tolerant(*bad, replace=False).read(np.array([3, 1, 2]))
    assert pixels is not None
    assert pixels.tolist() == taken.tolist() == given


def test_of_a_block_with_no_readable_one_there_are_no_pixels() -> None:
    pixels, taken, found = tolerant(1, 2, replace=False).read(np.array([1, 2]))
    assert (pixels, len(taken), len(found)) == (None, 0, 2)


def test_a_known_one_is_not_read_again_and_not_news() -> None:
    shelf = Shelf(3)
    reader = SkipUnreadable(shelf.read, 12, most=1, replace=True)
    reader.read(np.array([3, 1]))
    before = shelf.asked
    assert reader.read(np.array([1, 3]))[2] == {}
    assert shelf.asked == before + 1


def test_without_tolerance_the_first_failure_is_the_source_s_own() -> None:
    with pytest.raises(Failure, match="image 4"):
        tolerant(4, 5, most=0).read(np.array([1, 4, 5]))


@pytest.mark.parametrize("code", [ExitCode.NO_INPUT, ExitCode.IO, ExitCode.RESOURCE])
def test_what_is_no_broken_image_ends_the_run(code: ExitCode) -> None:
    with pytest.raises(Failure, match="image 4") as caught:
        tolerant(4, code=code).read(np.array([4]))
    assert caught.value.code == code


def test_a_failure_that_no_single_image_repeats_ends_the_run() -> None:
    def read(samples: SampleIndices) -> Tensor:
        if len(samples) > 1:
            raise Failure("only together", fix="-", code=ExitCode.DATA)
        return torch.from_numpy(samples)

    with pytest.raises(Failure, match="only together"):
        SkipUnreadable(read, 12, most=5, replace=True).read(np.array([1, 2]))


@pytest.mark.parametrize("replace", [True, False])
def test_one_more_than_allowed_names_all(replace: bool) -> None:
    with pytest.raises(Failure) as caught:
        tolerant(1, 2, 3, most=2, replace=replace).read(np.arange(5))
    assert (caught.value.code, caught.value.found) == (ExitCode.DATA, "1.png: cut; 2.png: cut; 3.png: cut")
    assert "data.max_bad_images" in str(caught.value)


@pytest.mark.parametrize("replace", [True, False])
def test_nothing_readable_ends_however_many_are_allowed(replace: bool) -> None:
    with pytest.raises(Failure, match="cannot be read"):
        tolerant(*range(12), most=99, replace=replace).read(np.arange(12))


def ledger(most: int) -> tuple[UnreadableLog, list[str]]:
    said: list[str] = []
    return UnreadableLog(most, said.append), said


def test_each_is_said_once_and_counted_once() -> None:
    book, said = ledger(2)
    for _ in range(3):
        book.add("training", {4: "a.png: cut"})
    book.add("validation", {4: "b.png: cut"})
    assert said == [
        "skipped a broken image (1 of at most 2): a.png: cut",
        "skipped a broken image (2 of at most 2): b.png: cut",
    ]
    assert list(book) == ["a.png: cut", "b.png: cut"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({}, None),
        ({4: "a.png"}, "1 broken image skipped (data.max_bad_images: 2)"),
        ({4: "a.png", 5: "b.png"}, "2 broken images skipped (data.max_bad_images: 2)"),
    ],
)
def test_the_end_of_a_run_says_how_many(found: dict[int, str], said: str | None) -> None:
    book, _ = ledger(2)
    book.add("training", found)
    assert book.summary == said


def test_both_sides_count_together() -> None:
    book, _ = ledger(1)
    book.add("training", {4: "a.png: cut"})
    with pytest.raises(Failure, match="more than 1 image file cannot") as caught:
        book.add("validation", {4: "b.png: cut"})
    assert caught.value.found == "a.png: cut; b.png: cut"


def test_what_other_ranks_met_counts_too() -> None:
    one, other = ledger(1)[0], ledger(1)[0]
    one.add("training", {4: "a.png: cut"})
    other.add("training", {5: "b.png: cut"})
    with pytest.raises(Failure, match="more than 1"):
        one.merge(other.unreadable)


def test_of_many_the_first_ten_are_named() -> None:
    book, _ = ledger(11)
    with pytest.raises(Failure) as caught:
        book.add("training", {number: f"{number:02d}.png" for number in range(12)})
    assert str(caught.value.found).endswith("09.png; and 2 more")
