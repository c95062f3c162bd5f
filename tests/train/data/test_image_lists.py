"""The paths of many files are kept in one buffer."""

from __future__ import annotations

import hashlib
import os
import pickle

import numpy as np
import pytest

from train.data import image_lists
from train.data.image_lists import PackedPaths

ODD = os.fsdecode(b"caf\xe9.png")  # no UTF-8
NAMES = ["d/ant/1.png", "d/ant/größe 2.png", f"d/bee/{ODD}", "d/bee/" + "x" * 200 + ".png", "d/bee/4.png"]
PART = np.array([True, False, True, False, True])


def kept() -> PackedPaths:
    return image_lists.pack_paths(NAMES, "d/")


def hashed(some: PackedPaths) -> str:
    digest = hashlib.sha256()
    for piece in some.pieces():
        digest.update(piece)
    return digest.hexdigest()


def test_they_come_back_as_they_were_also_those_that_are_no_utf_8() -> None:
    assert (list(kept()), kept()[-1], len(kept())) == (NAMES, NAMES[-1], 5)
    assert list(kept().names()) == [name.removeprefix("d/") for name in NAMES]


def test_a_number_beyond_the_last_is_refused_as_of_a_list() -> None:
    with pytest.raises(IndexError):
        kept()[5]


@pytest.mark.parametrize("chosen", [PART, np.array([4, 0, 0]), slice(1, 3)], ids=["mask", "numbers", "slice"])
def test_a_part_holds_those_that_are_chosen_in_their_order(chosen: np.ndarray | slice) -> None:  # type: ignore[type-arg]
    assert list(kept().part(chosen)) == np.array(NAMES, object)[chosen].tolist()


def test_a_part_of_millions_does_not_copy_their_letters() -> None:
    paths = kept()
    assert paths.part(PART).letters is paths.letters


def test_one_long_name_does_not_make_all_others_as_long() -> None:
    short = [f"{number:08d}.png" for number in range(1000)]
    paths = image_lists.pack_paths([*short, "y" * 900])
    taken = len(paths.letters) + paths.starts.nbytes + paths.lengths.nbytes
    assert taken / len(paths) < 12 + 12 + 2  # np.array of them: 3600


def test_what_is_hashed_depends_on_the_names_and_their_order_alone() -> None:
    selected, listed = kept().part(PART), image_lists.pack_paths([NAMES[0], NAMES[2], NAMES[4]], "d/")
    assert hashed(selected) == hashed(listed)
    moved = image_lists.pack_paths([name.replace("d/", "elsewhere/", 1) for name in NAMES], "elsewhere/")
    assert hashed(moved) == hashed(kept()) != hashed(kept().part([1, 0, 2, 3, 4]))


def test_where_one_name_ends_and_the_next_begins_is_hashed_too() -> None:
    assert hashed(image_lists.pack_paths(["ab", "c"])) != hashed(image_lists.pack_paths(["a", "bc"]))


def test_long_lists_are_hashed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, expected_part = hashed(kept()), hashed(kept().part(PART))
    monkeypatch.setattr(image_lists, "NAMES_PER_CHUNK", 2)
    assert (hashed(kept()), hashed(kept().part(PART))) == (expected, expected_part)


@pytest.mark.parametrize("above", ["d/", "d/val/"], ids=["one list", "folders of their own"])
def test_two_sides_are_one_list(above: str) -> None:
    first = kept()
    second = first.part(~PART) if above == "d/" else image_lists.pack_paths(["d/val/ant/9.png"], above)
    assert list(image_lists.concatenate_paths(first.part(PART), second)) == [*first.part(PART), *second]


def test_of_both_sides_each_path_is_there_once_and_sorted() -> None:
    first, second = kept().part([4, 2, 0, 0]), kept().part([3, 4])
    every, rows = image_lists.merge_paths(first, second)
    assert list(every) == sorted({*first, *second})
    assert [every[int(row)] for row in rows] == [*first, *second]


def test_of_nothing_there_is_nothing() -> None:
    none = image_lists.pack_paths([])
    assert (list(none), list(image_lists.merge_paths(none, none)[0]), hashed(none) != hashed(kept())) == ([], [], True)


def test_what_a_factory_lists_is_packed_and_what_is_packed_stays() -> None:
    paths = kept()
    assert list(image_lists.as_packed_paths(np.array(NAMES))) == NAMES
    assert image_lists.as_packed_paths(paths) is paths


def test_they_reach_a_worker_that_is_not_forked() -> None:
    assert list(pickle.loads(pickle.dumps(kept()))) == NAMES
