"""Files of arrays: found, loaded without unpickling, and trained on."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from jobs import refused, trained
from safetensors.torch import save_file

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import arrays, registry
from train.data.arrays import ArraySource
from train.data.splits import DataSplits

IMAGES = np.arange(40 * 8 * 8 * 3, dtype=np.int64).astype(np.uint8).reshape(40, 8, 8, 3)
LABELS = np.arange(40) % 2
CLIPS = np.arange(40 * 5 * 8 * 8).astype(np.uint8).reshape(40, 5, 8, 8)
FIRST = torch.from_numpy(IMAGES).movedim(-1, 1).contiguous()
TARGETS = torch.from_numpy(LABELS)


def npz(path: Path) -> None:
    with path.open("wb") as stream:  # or numpy would add its ending to another one
        np.savez(stream, images=IMAGES, labels=LABELS)


def compressed(path: Path) -> None:
    np.savez_compressed(path, x=IMAGES, y=LABELS[:, None])


def safetensors(path: Path) -> None:
    save_file({"images": FIRST, "labels": TARGETS}, path)


def pt(path: Path) -> None:
    torch.save({"data": FIRST, "targets": TARGETS, "classes": ["a", "b"], "version": 3}, path)


def pair(path: Path) -> None:
    torch.save((FIRST, TARGETS), path)


def old_pt(path: Path) -> None:
    torch.save({"images": FIRST, "labels": TARGETS}, path, _use_new_zipfile_serialization=False)


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "npz": ("a.npz", npz),
    "compressed": ("a.npz", compressed),
    "safetensors": ("a.safetensors", safetensors),
    "pt": ("a.pt", pt),
    "pair": ("a.pth", pair),
    "old-pt": ("a.pt", old_pt),
}


def find(root: Path, **settings: Any) -> DataSplits:
    kind = "npz" if root.suffix == ".npz" else "tensor"
    return registry.open_splits(DataConfig(**{"name": kind, "root": str(root)} | settings))


def stored(source: object) -> ArraySource:
    assert isinstance(source, ArraySource)
    return source


@pytest.mark.parametrize(("name", "write"), WRITERS.values(), ids=WRITERS)
def test_every_kind_of_file_holds_the_same_samples(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path / name)
    sets = find(tmp_path / name)
    assert (str(sets.shape), sets.classes, len(sets.training.labels)) == ("8 x 8 x 3", ("0", "1"), 32)
    rows = stored(sets.training).rows.numpy()
    assert (sets.training.read(np.arange(32)).numpy() == IMAGES[rows]).all()
    assert (sets.training.labels.numpy() == LABELS[rows]).all()


@pytest.mark.parametrize("name", ["npz", "safetensors", "pt"])
def test_every_kind_of_file_is_trained_on(name: str, tmp_path: Path) -> None:
    file, write = WRITERS[name]
    write(tmp_path / file)
    kind = "npz" if name == "npz" else "tensor"
    settings = (f"data.name={kind}", f"data.root={tmp_path / file}", "data.image_size=8", "train.max_steps=2")
    trainer = trained(tmp_path / "run", *settings)
    assert trainer.checkpointer.newest is not None


def test_clips_are_found_by_their_axes(tmp_path: Path) -> None:
    np.savez(tmp_path / "clips.npz", images=CLIPS, labels=LABELS)
    sets = find(tmp_path / "clips.npz")
    assert str(sets.shape) == "5 x 8 x 8 x 1"
    assert "clips of" in sets.notes[0]


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_clips_with_their_channels_behind_the_frames_are_refused(suffix: str, tmp_path: Path) -> None:
    """They were trained on as three frames of five channels."""
    clips = {"images": torch.zeros((40, 5, 3, 8, 8), dtype=torch.uint8), "labels": TARGETS}
    path = tmp_path / f"tchw.{suffix}"
    save_file(clips, path) if suffix == "safetensors" else torch.save(clips, path)
    settings = ("data.name=tensor", f"data.root={path}", "model.name=cnn3d", "model.args={}", "data.augment=none")
    failure = refused(tmp_path / "run", *settings)
    assert failure.code == ExitCode.DATA
    assert "permute the axes: (0, 2, 1, 3, 4)" in failure.fix


def test_two_files_are_two_sides(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=IMAGES, labels=LABELS)
    np.savez(tmp_path / "test.npz", x=IMAGES[:6], y=LABELS[:6])
    sets = find(tmp_path, name="npz")
    assert (len(sets.training.labels), len(sets.validation.labels)) == (40, 6)


def test_one_file_may_hold_both_sides(tmp_path: Path) -> None:
    np.savez(tmp_path / "mnist.npz", x_train=IMAGES, y_train=LABELS, x_test=IMAGES[:6], y_test=LABELS[:6])
    sets = find(tmp_path / "mnist.npz")
    assert (len(sets.training.labels), len(sets.validation.labels)) == (40, 6)


def named(suffixes: tuple[str, ...], count: int) -> dict[str, Any]:
    """Arrays of `count` samples for each of these splits."""
    arrays = {f"x_{suffix}": IMAGES[:count] for suffix in suffixes}
    return arrays | {f"y_{suffix}": LABELS[:count] for suffix in suffixes}


def test_test_arrays_beside_validation_arrays_are_the_test_split(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **named(("train",), 40), **named(("val",), 8), **named(("test",), 6))
    sets = find(tmp_path / "a.npz")
    assert sets.test is not None
    assert [len(split.labels) for split in (sets.training, sets.validation, sets.test)] == [40, 8, 6]
    assert sets.has_own_validation
    assert [note for note in sets.notes if "not read" in note] == []
    summary = registry.summarize(DataConfig(name="npz", root=str(tmp_path / "a.npz")), sets)
    assert summary.description.endswith(", 6 for the test at the end")


@pytest.mark.parametrize("suffix", ["npz", "pt"])
def test_a_test_file_beside_a_validation_file_is_the_test_split(suffix: str, tmp_path: Path) -> None:
    for name, count in {"train": 40, "val": 8, "test": 6}.items():
        if suffix == "npz":
            np.savez(tmp_path / f"{name}.npz", images=IMAGES[:count], labels=LABELS[:count])
        else:
            torch.save({"images": FIRST[:count], "labels": TARGETS[:count]}, tmp_path / f"{name}.pt")
    sets = find(tmp_path, name="npz" if suffix == "npz" else "tensor")
    assert sets.test is not None
    assert [len(split.labels) for split in (sets.training, sets.validation, sets.test)] == [40, 8, 6]


def test_a_test_split_that_is_there_and_one_that_is_to_be_taken_are_one_too_many(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **named(("train", "val", "test"), 40))
    with pytest.raises(Failure, match=r"x_test and y_test of a\.npz") as caught:
        find(tmp_path / "a.npz", test_fraction=0.2)
    assert caught.value.code == ExitCode.USAGE


def test_test_arrays_that_choose_the_best_checkpoint_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **named(("train", "test"), 40))
    sets = find(tmp_path / "a.npz")
    assert sets.test is None
    assert any(note.startswith("x_test and y_test of a.npz are the validation split") for note in sets.notes)
    folds = find(tmp_path / "a.npz", fold="1/5")
    assert folds.test is not None
    assert [len(split.labels) for split in (folds.training, folds.validation, folds.test)] == [32, 8, 40]


def test_a_run_measures_the_test_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **named(("train",), 40), **named(("val",), 8), **named(("test",), 6))
    settings = ("data.name=npz", f"data.root={tmp_path / 'a.npz'}", "data.image_size=8", "train.max_steps=1")
    trainer = trained(tmp_path / "run", *settings)
    assert trainer.final_score is not None
    assert trainer.final_score.result.samples == 6


def test_what_is_not_meant_is_not_read_and_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=LABELS, names=np.array(["a", None], object), x_extra=IMAGES)
    sets = find(tmp_path / "a.npz")
    assert len(sets.training.labels) == 32
    assert "a.npz holds more arrays, which are not read: names, x_extra" in sets.notes


def test_files_that_are_not_read_are_named(tmp_path: Path) -> None:
    for name in ("train.npz", "val.npz", "holdout.npz"):
        np.savez(tmp_path / name, images=IMAGES, labels=LABELS)
    assert f"{tmp_path} holds more files, which are not read: holdout.npz" in find(tmp_path, name="npz").notes


@pytest.mark.parametrize("kind", ["npz", "safetensors", "pt"])
def test_what_lies_in_a_file_as_in_memory_is_mapped_and_not_copied(kind: str, tmp_path: Path) -> None:
    name, write = WRITERS[kind]
    write(path := tmp_path / name)
    sets = find(path)
    assert str(path) in Path("/proc/self/maps").read_text()
    assert len(sets.training.labels) == 32


@pytest.mark.parametrize("kind", [">f4", "<f8", "<f2"])
def test_floats_of_any_order_and_width(kind: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=(IMAGES / 64).astype(kind), labels=LABELS.astype(">i2"))
    sets = find(tmp_path / "a.npz")
    read = sets.training.read(np.array([3]))
    assert read.dtype == torch.float32
    assert np.allclose(read[0].numpy(), IMAGES[int(stored(sets.training).rows[3])] / 64, atol=0.002)


@pytest.mark.parametrize(("name", "said"), [("npz", 0), ("compressed", 1)])
def test_what_each_rank_holds_for_itself_is_said(
    name: str, said: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "MIN_REPORTED_BYTES", 5000)
    WRITERS[name][1](tmp_path / "train.npz")
    assert " ".join(find(tmp_path / "train.npz").notes).count("each rank reads 8.") == said


@pytest.mark.parametrize(("kind", "each"), [("u1", 1), ("<f2", 4), ("<f8", 4)])
def test_what_samples_take_in_memory_is_counted_as_they_are_read(kind: str, each: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES.astype(kind), labels=LABELS)
    assert find(tmp_path / "a.npz").bytes_ == each * IMAGES.size


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def trapped_npz(path: Path, trap: Path) -> None:
    np.savez(path, images=IMAGES, labels=np.array([Trap(trap)] * 40, object))


def trapped_pickle(path: Path, trap: Path) -> None:
    path.write_bytes(pickle.dumps({"images": Trap(trap)}))


def trapped_pt(path: Path, trap: Path) -> None:
    torch.save({"images": FIRST, "labels": Trap(trap)}, path)


def trapped_old_pt(path: Path, trap: Path) -> None:
    torch.save({"images": FIRST, "labels": Trap(trap)}, path, _use_new_zipfile_serialization=False)


TRAPS = {
    "in-an-array": ("a.npz", trapped_npz),
    "instead-of-an-npz": ("a.npz", trapped_pickle),
    "in-a-pt": ("a.pt", trapped_pt),
    "in-an-old-pt": ("a.pt", trapped_old_pt),
}


@pytest.mark.parametrize(("name", "write"), TRAPS.values(), ids=TRAPS)
def test_a_pickle_that_runs_code_is_refused_and_not_run(
    name: str, write: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    write(tmp_path / name, tmp_path / "sprung")
    with pytest.raises(Failure, match="pickled objects") as caught:
        find(tmp_path / name)
    assert caught.value.code == ExitCode.SECURITY
    assert not (tmp_path / "sprung").exists()


def cut(write: Callable[[Path], None], part: float = 0.5) -> Callable[[Path], None]:
    def write_half(path: Path) -> None:
        write(path)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * part)])

    return write_half


def text(path: Path) -> None:
    path.write_text("<html>not found</html>")


def flipped(path: Path) -> None:
    npz(path)
    content = bytearray(path.read_bytes())
    content[2000] ^= 1
    path.write_bytes(content)


def one_array(path: Path) -> None:
    with path.open("wb") as stream:
        np.save(stream, IMAGES)


BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "empty-npz": ("a.npz", Path.touch, "no whole"),
    "text-npz": ("a.npz", text, ""),
    "cut-npz": ("a.npz", cut(npz), ""),
    "flipped-bit": ("a.npz", flipped, "CRC"),
    "one-array": ("a.npz", one_array, "one array"),
    "text-labels": ("a.npz", lambda path: np.savez(path, images=IMAGES, labels=LABELS.astype(str)), "no numbers"),
    "dates": ("a.npz", lambda path: np.savez(path, images=IMAGES, labels=LABELS.astype("M8[s]")), "no numbers"),
    "records": ("a.npz", lambda path: np.savez(path, images=np.zeros(3, "u1,f4"), labels=LABELS), "no numbers"),
    "empty-zip": ("a.npz", lambda path: zipfile.ZipFile(path, "w").close(), "arrays none"),
    "empty-tensors": ("a.safetensors", Path.touch, "no whole"),
    "cut-tensors": ("a.safetensors", cut(safetensors), "no whole"),
    "text-tensors": ("a.safetensors", text, "no whole"),
    "empty-pt": ("a.pt", Path.touch, "no whole"),
    "cut-pt": ("a.pt", cut(pt), ""),
    "zip-without-a-pickle": ("a.pt", npz, ""),
    "sparse": ("a.pt", lambda path: torch.save((FIRST.to_sparse(), TARGETS), path), "sparse"),
    "without-numbers": ("a.pt", lambda path: torch.save((FIRST.to("meta"), TARGETS), path), "without numbers"),
    "a-number": ("a.pt", lambda path: torch.save(3, path), "a int"),
    "a-tensor": ("a.pt", lambda path: torch.save(FIRST, path), "a Tensor"),
    "three-tensors": ("a.pt", lambda path: torch.save([FIRST] * 3, path), "a list"),
    "no-tensors": ("a.pt", lambda path: torch.save({"images": 1, "labels": 2}, path), "arrays none"),
}


@pytest.mark.parametrize(("name", "write", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named(name: str, write: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    write(tmp_path / name)
    with pytest.raises(Failure) as caught:
        find(tmp_path / name)
    assert caught.value.code in (ExitCode.DATA, ExitCode.SECURITY)
    assert str(tmp_path / name) in str(caught.value.found)
    assert said in str(caught.value)


def test_a_file_that_may_not_be_read_is_missing_input(tmp_path: Path) -> None:
    (tmp_path / "train.npz").mkdir()
    with pytest.raises(Failure, match="cannot be read") as caught:
        find(tmp_path, name="npz")
    assert caught.value.code == ExitCode.NO_INPUT


def test_a_lack_of_memory_is_not_said_to_be_a_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(torch, "load", full)
    pt(tmp_path / "a.pt")
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        find(tmp_path / "a.pt")
