"""Image files: found, split, read."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosts import together
from images import write_classes, write_image
from PIL import Image

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import image_folder, registry, statistics
from train.data.image_folder import ListingCache
from train.data.splits import DataSplits, ImageFileSource, SampleSource
from train.distributed import shared_memory
from train.distributed.shared_memory import HostRanks


def data(root: Path, **changes: object) -> DataConfig:
    return DataConfig(name="folder", root=str(root), image_size=8, **changes)  # type: ignore[arg-type]


def test_classes_are_the_folders_in_alphabetical_order(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", dog=2, ant=3)
    write_classes(tmp_path / "val", ant=1, dog=1)
    found = image_folder.list_splits(data(tmp_path))
    assert found.classes == ("ant", "dog")
    assert found.training.labels.tolist() == [0, 0, 0, 1, 1]
    assert found.validation.labels.tolist() == [0, 1]


def test_without_a_validation_folder_a_share_of_every_class_is_split_off(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=20, bee=10, cat=10)
    found = image_folder.list_splits(data(tmp_path, val_fraction=0.2))
    assert np.bincount(found.validation.labels).tolist() == [4, 2, 2]
    assert not set(found.training.paths) & set(found.validation.paths)
    assert len(found.training.paths) + len(found.validation.paths) == 40


def test_the_split_is_the_same_every_time(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=20, bee=20)
    first, second = (set(image_folder.list_splits(data(tmp_path)).validation.paths) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("split", ["", "train"], ids=["split", "folders of their own"])
def test_one_long_name_does_not_make_the_paths_of_all_others_as_long(tmp_path: Path, split: str) -> None:
    write_classes(tmp_path / split, ant=20, bee=20)
    if split:
        write_classes(tmp_path / "val", ant=1, bee=1)
    write_image(tmp_path / split / "bee" / f"{'x' * 200}.png")
    found = image_folder.list_splits(data(tmp_path))
    assert len(pickle.dumps(found.training.paths)) < 40 * 50 + 1000  # 40 times 200 letters, as one array of text


def test_a_path_that_is_no_utf_8_is_read(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ant=2, bee=1)
    write_classes(tmp_path / "val", ant=1, bee=1)
    os.rename(tmp_path / "train/ant/001.png", os.fsencode(tmp_path / "train/ant") + b"/\xe9.png")
    assert registry.open_splits(data(tmp_path)).training.read(np.array([1])).shape == (1, 8, 8, 3)


def test_the_working_folder_may_be_the_folder_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_classes(tmp_path, ant=5, bee=5))
    assert sorted(image_folder.list_splits(data(Path())).validation.paths)[0].startswith("ant/")


def test_pixels_come_out_as_they_were_written(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ant=2, bee=2)
    write_classes(tmp_path / "test", ant=1, bee=1)
    training = registry.open_splits(data(tmp_path)).training
    assert training.read(np.array([3, 0]))[:, 0, 0, 0].tolist() == [51, 0]


@pytest.mark.parametrize(("ending", "written_as"), [(".jfif", "JPEG"), (".jpe", "JPEG"), (".avif", "AVIF")])
def test_images_with_rarer_endings_are_read(tmp_path: Path, ending: str, written_as: str) -> None:
    for name, number in (("ant", 0), ("bee", 200)):
        file = write_image(tmp_path / f"{name}/0.png", number)
        with Image.open(file) as image:
            image.save(file.with_suffix(ending), written_as)
        file.unlink()
    training = registry.open_splits(data(tmp_path, val_fraction=0.0)).training
    assert training.read(np.array([0, 1]))[:, 0, 0, 0].tolist() == pytest.approx([0, 200], abs=3)


def test_another_number_of_classes_than_the_config_says_is_refused(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=5, bee=5)
    with pytest.raises(Failure, match=r"data\.classes") as caught:
        image_folder.list_splits(data(tmp_path, classes=3))
    assert caught.value.code == 65


def test_an_image_that_vanishes_later_is_an_input_failure(tmp_path: Path) -> None:
    write_image(tmp_path / "ant/0.png").with_name("1.png").write_bytes((tmp_path / "ant/0.png").read_bytes())
    write_image(tmp_path / "bee/0.png").with_name("1.png").write_bytes((tmp_path / "bee/0.png").read_bytes())
    training = registry.open_splits(data(tmp_path, val_fraction=0.5)).training
    Path(training.names(np.array([0]))[0]).unlink()
    with pytest.raises(Failure, match="it is gone"):
        training.read(np.array([0]))


VIDEO = r"video_(\d+)"


def write_videos(root: Path, **videos: list[int]) -> Path:
    """root/CLASS/video_N/, three frames of each video."""
    for label, (name, numbers) in enumerate(videos.items()):
        for number in numbers:
            for frame in range(3):
                write_image(root / name / f"video_{number}" / f"{frame}.png", 50 * label + 3 * number + frame)
    return root


def videos(files: SampleSource) -> set[str]:
    return {Path(path).parent.name for path in files.file_names or ()}


def test_a_video_is_on_one_side_though_both_classes_have_it(tmp_path: Path) -> None:
    write_videos(tmp_path, ant=[0, 1, 2, 3, 4], bee=[3, 4, 5, 6, 7])
    found = image_folder.list_splits(data(tmp_path, group=VIDEO, val_fraction=0.3))
    assert not videos(found.training) & videos(found.validation)
    assert np.bincount(found.validation.labels).min() >= 3
    assert found.notes == ("val: 9 of 30 images in 2 of 8 groups (data.val_fraction asks for 9 images)",)


def test_a_pattern_does_not_match_the_folders_above_the_classes(tmp_path: Path) -> None:
    write_videos(tmp_path / "video_9", ant=[0, 1], bee=[0, 1])
    found = image_folder.list_splits(data(tmp_path / "video_9", group=VIDEO, val_fraction=0.5))
    assert len(videos(found.validation)) == 1


def test_without_groups_nothing_needs_to_be_said(tmp_path: Path) -> None:
    write_videos(tmp_path, ant=[0, 1], bee=[0, 1])
    assert image_folder.list_splits(data(tmp_path)).notes == ()


def test_with_two_folders_every_group_is_on_one_side(tmp_path: Path) -> None:
    write_videos(tmp_path / "train", ant=[0, 1], bee=[0, 1])
    write_videos(tmp_path / "val", ant=[2], bee=[3])
    assert len(image_folder.list_splits(data(tmp_path, group=VIDEO)).validation.paths) == 6


BAD_GROUPS: dict[str, tuple[dict[str, list[int]], dict[str, list[int]], str, str]] = {
    "in both splits": ({"ant": [0, 1], "bee": [1]}, {"ant": [1], "bee": [2]}, VIDEO, "found: 1\n"),
    "no match": ({"ant": [0], "bee": [1]}, {}, "clip", "ant/video_0/0.png, and others"),
    "no match in the validation split": (
        {"ant": [0], "bee": [1]},
        {"ant": [2], "bee": [3]},
        "_[01]",
        "ant/video_2/0.png",
    ),
    "one group": ({"ant": [5], "bee": [5]}, {}, VIDEO, "6 images of 5"),
    "a group for each class": ({"ant": [0], "bee": [1]}, {}, VIDEO, "trained on"),
}


@pytest.mark.parametrize(("training", "validation", "pattern", "said"), BAD_GROUPS.values(), ids=BAD_GROUPS.keys())
def test_groups_that_cannot_be_kept_apart_are_bad_data(
    tmp_path: Path, training: dict[str, list[int]], validation: dict[str, list[int]], pattern: str, said: str
) -> None:
    write_videos(tmp_path / "train", **training)
    write_videos(tmp_path / "val", **validation)
    with pytest.raises(Failure) as caught:
        image_folder.list_splits(data(tmp_path if validation else tmp_path / "train", group=pattern))
    assert caught.value.code == 65
    assert said in str(caught.value)


def of_one_list(root: Path) -> DataConfig:
    write_classes(root, ant=10, bee=15)
    (root / "ant/notes.txt").touch()
    return data(root)


def with_three_splits(root: Path) -> DataConfig:
    write_classes(root / "train", ant=5, bee=6)
    write_classes(root / "val", ant=2, bee=1)
    write_classes(root / "test", bee=3)
    os.rename(root / "train/ant/001.png", os.fsencode(root / "train/ant") + b"/\xe9.png")
    return data(root)


def without_validation_images(root: Path) -> DataConfig:
    write_classes(root, ant=4, bee=4)
    return data(root, val_fraction=0.0)


def in_groups(root: Path) -> DataConfig:
    write_videos(root, ant=[0, 1, 2, 3, 4], bee=[3, 4, 5, 6, 7])
    return data(root, group=VIDEO, val_fraction=0.3, test_fraction=0.2)


def with_a_class_that_is_too_small(root: Path) -> DataConfig:
    write_classes(root, ant=20, bee=1)
    write_image(root / "ant/bee/0.png")
    write_image(root / "ant/ant/0.png")
    return data(root, val_fraction=0.1)


def summary(splits: DataSplits, root: str) -> dict[str, Any]:
    """All that a training takes from the splits but their pixels."""
    sources = {"training": splits.training, "validation": splits.validation, "test": splits.test}
    files = {
        name: ([*source.paths], source.labels.tolist(), source.labels.dtype, source.stored)
        for name, source in sources.items()
        if isinstance(source, ImageFileSource)
    }
    assert len(files) == 2 + (splits.test is not None)
    fingerprint = statistics.data_fingerprint(splits, root)
    return {"files": files, "notes": splits.notes, "warnings": splits.warnings, "fingerprint": fingerprint}


LAYOUTS = (
    of_one_list,
    with_three_splits,
    without_validation_images,
    in_groups,
    with_a_class_that_is_too_small,
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("nodes", [[0, 0, 0], [0, 1, 0, 1], [0, 1]], ids=str)
def test_every_rank_gets_the_splits_of_one_rank(
    tmp_path: Path, layout: Callable[[Path], DataConfig], nodes: list[int]
) -> None:
    config = layout(tmp_path)
    alone = summary(registry.open_splits(config), config.root)
    ranks = together(lambda host: summary(registry.open_splits(config, host), config.root), nodes)
    assert ranks == [alone] * len(nodes)


def test_the_first_rank_of_each_machine_lists_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, listing_ranks = of_one_list(tmp_path), []
    list_splits = image_folder.list_splits

    def counted(data: DataConfig, cache: ListingCache) -> DataSplits:
        listing_ranks.append(cache.is_writer)
        return list_splits(data, cache)

    monkeypatch.setattr(image_folder, "list_splits", counted)
    together(lambda host: registry.open_splits(config, host), [0, 0, 1, 1])
    assert sorted(listing_ranks) == [False, True]  # of two machines; rank 0 alone writes the user's cache


def test_a_folder_that_one_machine_does_not_see_ends_all_ranks_and_names_that_machine(tmp_path: Path) -> None:
    config = of_one_list(tmp_path)
    other = data(tmp_path / "gone")

    def run(host: HostRanks) -> tuple[str, str | None]:
        with pytest.raises(Failure) as caught:
            registry.open_splits(other if host.node else config, host)
        return caught.value.what, caught.value.found

    with pytest.raises(Failure) as alone:
        registry.open_splits(other)
    expected = (alone.value.what, f"{alone.value.found} (on {socket.gethostname()})")
    assert together(run, [0, 0, 1, 1]) == [expected] * 4


def test_ranks_that_cannot_share_memory_have_the_same_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = of_one_list(tmp_path)
    alone = summary(registry.open_splits(config), config.root)
    monkeypatch.setattr(shared_memory, "_create_memory_file", lambda *_: None)
    ranks = together(lambda host: summary(registry.open_splits(config, host), config.root), [0, 0])
    assert ranks == [alone] * 2


def test_images_of_a_shared_list_are_read(tmp_path: Path) -> None:
    config = of_one_list(tmp_path)
    alone = registry.open_splits(config).training.read(np.arange(20))
    for splits in together(lambda host: registry.open_splits(config, host), [0, 0]):
        assert splits.training.read(np.arange(20)).equal(alone)
