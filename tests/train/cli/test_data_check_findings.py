"""What is said of the data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from entrypoint import ExitCode
from train.cli.data_check import DataFindings, InspectedSample, SplitFindings
from train.data.decode import ImageFacts
from train.data.preprocessing import Preprocessing
from train.data.splits import ImageFileSource

LABELS = [0, 0, 0, 0, 1, 1, 1, 1]
FILES = ImageFileSource([], torch.empty(0), 32)


def side(name: str, *looks: InspectedSample, others: Sequence[SplitFindings] = ()) -> SplitFindings:
    split = {"train": "training", "val": "validation"}.get(name, name)
    made = SplitFindings(
        name=split, name_of=lambda sample: f"{name}/{sample}.png", label_of=LABELS.__getitem__, files=FILES
    )
    for look in looks:
        made.add(look, others)
    return made


def look(sample: int, pixels: str, size: tuple[int, ...] = (32, 32), mode: str = "RGB") -> InspectedSample:
    return InspectedSample(sample=sample, size=size, mode=mode, digest=pixels.encode(), seconds=0.002)


def bad(sample: int, reason: str = "cut") -> InspectedSample:
    return InspectedSample(sample=sample, broken=reason)


def findings(training: list[InspectedSample], validation: list[InspectedSample] | None = None) -> DataFindings:
    one = side("train", *training)
    other = side("val", *(validation or []), others=[one])
    return DataFindings(
        title="folder: 2 classes", splits=[one, other], classes=["classes 4"], per_class=({"a": 4}, {"b": 1})
    )


FINE = [look(0, "a"), look(1, "b"), look(4, "c")]


def test_fine_data_has_no_failure() -> None:
    found = findings(FINE, [look(0, "d")])
    assert found.failure is None
    assert found.as_text() == (
        "data           folder: 2 classes\n"
        "classes 4\n"
        "training       3 read, 2 ms each\n"
        "  sizes        all 32 x 32\n"
        "  pixels       RGB 3\n"
        "validation     1 read, 2 ms each\n"
        "  sizes        all 32 x 32\n"
        "  pixels       RGB 1\n"
        "broken         none\n"
        "leakage        none"
    )


@pytest.mark.parametrize(
    ("training", "validation", "said"),
    [
        ([bad(0), *FINE[1:]], [], "broken samples (1)"),
        (FINE, [bad(0), bad(1)], "broken samples (2)"),
        (FINE, [look(2, "a")], "validation images that are in the training split too (1)"),
        (
            [bad(0), *FINE[1:]],
            [look(2, "b"), look(3, "b")],
            "broken samples (1) and validation images that are",
        ),
    ],
)
def test_broken_samples_and_leakage_are_bad_data(
    training: list[InspectedSample], validation: list[InspectedSample], said: str
) -> None:
    failure = findings(training, validation).failure
    assert failure is not None
    assert failure.code == ExitCode.DATA
    assert said in failure.what


@pytest.mark.parametrize(
    ("validation", "fix", "other"),
    [([bad(0)], "data.max_bad_images", "data.group"), ([look(0, "a")], "data.group", "data.max_bad_images")],
)
def test_the_fix_is_that_of_what_was_found(validation: list[InspectedSample], fix: str, other: str) -> None:
    failure = findings(FINE, validation).failure
    assert failure is not None
    assert fix in failure.fix
    assert other not in failure.fix


def test_leakage_names_both_files_and_says_where_the_classes_differ() -> None:
    shown = findings(FINE, [look(0, "a"), look(5, "b")]).as_text()
    assert "leakage        2\n  val/0.png = train/0.png\n  val/5.png = train/1.png (of another class!)" in shown


def test_a_copy_on_the_same_side_is_said_and_no_failure() -> None:
    found = findings([*FINE, look(2, "a"), look(5, "a")])
    assert found.failure is None
    assert "duplicates   2: train/2.png = train/0.png; train/5.png = train/0.png (of another class!)" in found.as_text()


def test_an_image_that_is_twice_in_the_validation_split_leaks_twice() -> None:
    leaked = findings(FINE, [look(0, "a"), look(1, "a")]).splits[1].leaked
    assert [(leak.sample, leak.same_as) for leak in leaked] == [(0, 0), (1, 0)]


def test_a_test_image_in_either_other_split_is_leakage() -> None:
    training, validation = side("train", *FINE), side("val", look(0, "d"))
    test = side("test", look(0, "a"), look(4, "d"), look(5, "e"), bad(6), others=[training, validation])
    found = DataFindings(title="t", splits=[training, validation, test], classes=[], per_class=({}, {}, {}))
    failure = found.failure
    assert failure is not None
    assert failure.what == (
        "the data has broken samples (1) and test images that are in the training split too (1) "
        "and test images that are in the validation split too (1)"
    )
    assert (
        "leakage        2\n  test/0.png = train/0.png\n  test/4.png = val/0.png (of another class!)" in found.as_text()
    )
    assert "test           3 of 4 read, 2 ms each" in found.as_text()
    (first, _) = json.loads(found.as_json())["leaks"]
    assert (first["split"], first["other_split"], first["same_as"]) == ("test", "training", "train/0.png")


def test_broken_samples_are_never_duplicates() -> None:
    found = findings([bad(0), bad(1)], [bad(2)])
    assert (found.splits[0].duplicates, found.splits[1].leaked) == ([], [])


def test_a_reason_that_begins_with_the_path_is_not_said_twice() -> None:
    assert "  train/0.png: cut\n" in findings([bad(0, "train/0.png: cut")]).as_text()


def test_sizes_are_the_smallest_the_largest_and_the_most_frequent() -> None:
    sizes = [(64, 48), (64, 48), (100, 10), (640, 480)]
    shown = findings([look(n, str(n), size) for n, size in enumerate(sizes)]).as_text()
    assert "  sizes        100 x 10 to 640 x 480, most often 64 x 48 (50.0%)" in shown


def test_the_highest_value_of_16_bits_is_told() -> None:
    looks = [
        InspectedSample(sample=n, size=(8, 8), mode="I;16", digest=b"%d" % n, facts=ImageFacts(highest=value))
        for n, value in enumerate((7, 3071))
    ]
    found = findings(looks)
    assert "  pixels       I;16 2, highest value of 16 bits 3,071 of 65,535\n" in found.as_text()
    assert json.loads(found.as_json())["training"]["highest_of_16_bits"] == 3071


def test_modes_are_counted() -> None:
    modes = ["RGB", "L", "RGB", "I;16", "P", "RGBA"]
    assert (
        "RGB 2, L 1, I;16 1, P 1, RGBA 1" in findings([look(n, str(n), mode=m) for n, m in enumerate(modes)]).as_text()
    )


def test_an_image_is_small_by_its_shorter_side_and_a_clip_not_by_its_frames() -> None:
    found = findings([look(0, "a", (31, 64)), look(1, "b", (32, 64)), look(2, "c", (32, 32, 4))])
    assert "1 below data.image_size 32, scaled up: train/0.png" in found.as_text()


def test_of_many_broken_samples_the_first_ten_are_shown_and_json_has_all() -> None:
    found = findings([bad(n % 8, f"reason {n}") for n in range(25)])
    assert "  and 15 more: see --json" in found.as_text()
    assert len(json.loads(found.as_json())["training"]["broken"]) == 25


def test_json_tells_the_same() -> None:
    told = json.loads(findings([*FINE, bad(2)], [look(0, "a"), look(1, "x", (8, 8), "L")]).as_json())
    assert told["ok"] is False
    assert told["training"]["broken"] == [{"name": "train/2.png", "reason": "cut"}]
    pair = {"name": "val/0.png", "same_as": "train/0.png", "same_class": True}
    assert told["leaks"] == [{"split": "validation", "other_split": "training", **pair}]
    assert told["validation"]["smaller_than_image_size"] == ["val/1.png"]
    assert told["validation"]["modes"] == {"RGB": 1, "L": 1}
    assert told["validation"]["sizes"]["smallest"] == [8, 8]
    assert told["training"]["per_class"] == {"a": 4}


def test_of_broken_ones_it_is_said_how_many_could_be_read() -> None:
    assert "training       3 of 4 read, 2 ms each\n" in findings([*FINE, bad(2)]).as_text()


def test_a_path_that_is_not_utf_8_can_be_printed() -> None:
    found = findings([bad(0, "caf\udce9.png: cut")])
    assert "caf\\udce9.png: cut" in found.as_text()
    found.as_json().encode("ascii")


def test_an_empty_validation_split_is_said() -> None:
    assert "validation     no samples\n" in findings(FINE).as_text()


def test_where_nothing_can_be_read_there_are_no_sizes() -> None:
    told = json.loads(findings([bad(0)]).as_json())["training"]
    assert (told["sizes"], told["seconds_per_sample"]) == (None, None)


def test_images_that_lose_more_than_half_to_the_crop_are_counted_with_the_fix() -> None:
    sizes = [(64, 64), (128, 64), (130, 64), (32, 200)]
    found = findings([look(number, str(number), size) for number, size in enumerate(sizes)])
    assert (
        "  cut          2 of 4 lose more than half of their area to the crop: train/2.png, train/3.png. "
        "fix: data.fit=pad (the whole image and a border) or data.fit=stretch" in found.as_text()
    )
    assert json.loads(found.as_json())["training"]["cut_by_more_than_half"] == ["train/2.png", "train/3.png"]
    assert found.failure is None


@pytest.mark.parametrize("fit", ["pad", "stretch"])
def test_whole_images_lose_nothing(fit: Any) -> None:
    made = side("train")
    made.files = replace(FILES, preprocessing=Preprocessing(fit=fit))
    made.add(look(0, "a", (32, 200)))
    assert made.problems["cut"] == []
    assert made.problems["small"] == []
