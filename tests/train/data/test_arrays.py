"""Files of arrays are found by name, loaded without unpickling, mapped where that is possible, and trained on."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
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


@pytest.mark.parametrize(("name", "count"), [("npz", 0), ("compressed", 1)])
def test_what_each_rank_holds_for_itself_is_said(
    name: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrays, "MIN_REPORTED_BYTES", 5000)
    WRITERS[name][1](tmp_path / "train.npz")
    assert " ".join(find(tmp_path / "train.npz").notes).count("each rank reads 8.") == count


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


@pytest.mark.parametrize(("name", "write", "problem"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_named(name: str, write: Callable[[Path], object], problem: str, tmp_path: Path) -> None:
    write(tmp_path / name)
    with pytest.raises(Failure) as caught:
        find(tmp_path / name)
    assert caught.value.code in (ExitCode.DATA, ExitCode.SECURITY)
    assert str(tmp_path / name) in str(caught.value.found)
    assert problem in str(caught.value)


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


NOISE = np.random.default_rng(0).integers(0, 256, (7, 5, 5, 3), np.uint8)
LARGE_NOISE = np.tile(NOISE, (20, 1, 1, 1))  # more than is read with a header
FLOAT_NOISE = NOISE.astype(np.float32)


def loaded(path: Path, name: str = "images") -> npt.NDArray[Any]:
    return arrays.load_npz(path, lambda names: [name])[name].numpy()


def is_mapped(path: Path) -> bool:
    """Whether memory of this process is memory of the file."""
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("name", ["images", "x_train", "y" * 300])
@pytest.mark.parametrize("array", [NOISE, FLOAT_NOISE], ids=["bytes", "floats"])
def test_what_numpy_saves_is_mapped_wherever_it_lies(array: npt.NDArray[Any], name: str, tmp_path: Path) -> None:
    np.savez(path := tmp_path / "a.npz", other=np.arange(5), **{name: array})
    output = loaded(path, name)
    assert is_mapped(path)
    assert np.array_equal(output, array)


def by_version(array: npt.NDArray[Any], version: tuple[int, int]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive, archive.open("images.npy", "w") as entry:
            np.lib.format.write_array(entry, array, version)

    return write


COPIED: dict[str, Callable[[Path], None]] = {
    "compressed": lambda path: np.savez_compressed(path, images=NOISE),
    "columns": lambda path: np.savez(path, images=np.asfortranarray(NOISE)),
    "another-order": lambda path: np.savez(path, images=NOISE.astype(">i2")),
    "labels": lambda path: np.savez(path, images=NOISE[0, 0]),
    "nothing": lambda path: np.savez(path, images=NOISE[:0]),
}


@pytest.mark.parametrize("write", COPIED.values(), ids=COPIED)
def test_what_lies_otherwise_in_the_file_is_read_and_counted(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(path := tmp_path / "a.npz")
    with np.load(path) as saved:
        output = loaded(path)
        assert not is_mapped(path)
        assert np.array_equal(output, saved["images"])
    assert arrays.unmapped_bytes(path, ["images"]) > output.nbytes


@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_of_what_is_mapped_nothing_is_copied(version: tuple[int, int], tmp_path: Path) -> None:
    by_version(NOISE, version)(path := tmp_path / "a.npz")
    assert np.array_equal(loaded(path), NOISE)
    assert arrays.unmapped_bytes(path, ["images", "labels"]) == 0


@pytest.mark.parametrize("offset", [0, LARGE_NOISE.nbytes - 1])
def test_one_bit_that_flipped_in_what_would_be_mapped_is_damage(offset: int, tmp_path: Path) -> None:
    np.savez(path := tmp_path / "a.npz", images=LARGE_NOISE)
    content = bytearray(path.read_bytes())
    content[content.index(LARGE_NOISE.tobytes()) + offset] ^= 1
    path.write_bytes(content)
    with pytest.raises(zipfile.BadZipFile, match="CRC"):
        loaded(path)


def test_a_shape_of_more_bytes_than_there_are_is_not_mapped_beyond_them(tmp_path: Path) -> None:
    with zipfile.ZipFile(path := tmp_path / "a.npz", "w") as archive:
        with archive.open("images.npy", "w") as entry:
            header = {"descr": "<f4", "fortran_order": False, "shape": NOISE.shape}
            np.lib.format.write_array_header_1_0(entry, header)
            entry.write(NOISE.tobytes())
        archive.writestr("more.bin", bytes(10_000))
    with pytest.raises(ValueError, match="bytes"):
        arrays.load_npz(path, lambda _: ["images"])


ARRAYS = {"images": np.zeros((5, 8, 8, 3), np.uint8), "labels": np.zeros(5, np.int64), "one": np.float32(3)}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_of_an_npz_file(save: object, tmp_path: Path) -> None:
    save(tmp_path / "a.npz", **ARRAYS)  # type: ignore[operator]
    assert arrays.list_names(tmp_path / "a.npz") == [*ARRAYS]


def test_of_a_safetensors_file(tmp_path: Path) -> None:
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in ARRAYS.items()}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"who": "me"})
    assert sorted(arrays.list_names(tmp_path / "a.safetensors")) == [*ARRAYS]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_of_every_version_of_numpys_format(version: tuple[int, int], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("x.npy", "w") as entry:
        np.lib.format.write_array(entry, np.zeros((2, 3)), version=version)
    assert arrays.list_names(tmp_path / "a.npz") == ["x"]


def npy(header: str, version: int = 1) -> bytes:
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2, "little") + header.encode()


# What an .npz file holds as its only array.
BAD_ENTRIES = {
    "empty": b"",
    "text": b"hello, this is no array",
    "half-a-header": npy("{'shape': (3,)}")[:20],
    "no-dict": npy("[1, 2]"),
    "code": npy("__import__('os').mkdir('x')"),
    "no-shape": npy("{'descr': '<f4'}"),
    "negative": npy("{'shape': (-1, 3)}"),
    "text-for-a-side": npy("{'shape': ('3',)}"),
    "a-bool-for-a-side": npy("{'shape': (True,)}"),
    "larger-than-its-bytes": npy("{'shape': (1000000000000, 3)}"),
    "larger-than-any-number": npy("{'shape': (100000000000000000000000, 3)}"),
    "one-number": npy("{'shape': 3}"),
    "too-long": b"\x93NUMPY\x02\x00\xff\xff\xff\xff",
    "deep": npy("(" * 5000),
    "not-text": b"\x93NUMPY\x01\x00\x02\x00\xff\xff",
}


@pytest.mark.parametrize("content", BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_a_broken_array_is_refused_by_its_file(content: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content)
    assert_refused(tmp_path / "a.npz")


def with_header(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


BAD_FILES = {
    "empty": ("a.npz", b""),
    "text": ("a.npz", b"<html>"),
    "cut": ("a.npz", b"PK\x03\x04"),
    "an-npy": ("a.npz", npy("{'shape': (3,)}")),
    "no-tensors": ("a.safetensors", b""),
    "short": ("a.safetensors", b"\x08"),
    "too-long": ("a.safetensors", b"\xff" * 8),
    "no-json": ("a.safetensors", b"\x04" + bytes(7) + b"{{{{"),
    "cut-json": ("a.safetensors", with_header({"x": {"shape": [3]}})[:-2]),
    "a-list": ("a.safetensors", with_header([1, 2])),
    "no-shape": ("a.safetensors", with_header({"x": {"dtype": "F32"}})),
    "a-number": ("a.safetensors", with_header({"x": 3})),
    "negative": ("a.safetensors", with_header({"x": {"shape": [-3]}})),
    "deep": ("a.safetensors", (10**5).to_bytes(8, "little") + b"[" * 10**5),
}


@pytest.mark.parametrize(("name", "content"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_broken_file_is_refused(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert_refused(tmp_path / name)


def test_a_bit_that_compression_trips_over_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    content[60:75] = bytes(255 - byte for byte in content[60:75])
    (tmp_path / "a.npz").write_bytes(content)
    assert_refused(tmp_path / "a.npz")


def assert_refused(file: Path) -> None:
    with pytest.raises(Failure) as caught:
        arrays.list_names(file)
    assert caught.value.code == ExitCode.DATA
    assert str(file) in str(caught.value.found)


@pytest.mark.parametrize("name", ["gone.npz", "folder.npz"])
def test_what_cannot_be_opened_is_missing_input(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(Failure) as caught:
        arrays.list_names(tmp_path / name)
    assert caught.value.code == ExitCode.NO_INPUT


FILE = Path("my.npz")
ARRAY_NAMES: dict[str, tuple[tuple[str, ...], dict[str, tuple[str, str]]]] = {
    "ours": (("labels", "images", "classes"), {"training": ("images", "labels")}),
    "short": (("x", "y"), {"training": ("x", "y")}),
    "sklearn": (("X", "y"), {"training": ("X", "y")}),
    "bunch": (("data", "target"), {"training": ("data", "target")}),
    "keras": (
        ("x_test", "x_train", "y_train", "y_test"), {"training": ("x_train", "y_train"), "test": ("x_test", "y_test")}
    ),
    "medmnist": (
        ("train_images", "val_images", "test_images", "train_labels", "val_labels", "test_labels"),
        {
            "training": ("train_images", "train_labels"),
            "validation": ("val_images", "val_labels"),
            "test": ("test_images", "test_labels"),
        },
    ),
    "one-split-named": (("images_train", "labels_train"), {"training": ("images_train", "labels_train")}),
    "bare-training-split": (
        ("images", "labels", "x_test", "y_test"), {"training": ("images", "labels"), "test": ("x_test", "y_test")}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("keys", "expected"), ARRAY_NAMES.values(), ids=ARRAY_NAMES)
def test_arrays_by_name(keys: tuple[str, ...], expected: dict[str, tuple[str, str]]) -> None:
    assert arrays.find_array_names(keys, FILE) == expected


NO_PAIR: dict[str, tuple[tuple[str, ...], str]] = {
    "nothing": ((), "no pairs"),
    "images-alone": (("images",), "no pairs"),
    "labels-alone": (("labels",), "no pairs"),
    "two-halves": (("images", "y"), "no pairs"),
    "misspelt": (("image", "label"), "no pairs"),
    "numpys-own": (("arr_0", "arr_1"), "no pairs"),
    "validation-alone": (("x_test", "y_test"), "no pairs"),
    "another-split": (("x_dev", "y_dev"), "no pairs"),
    "two-pairs": (("images", "labels", "x", "y"), "2 pairs"),
    "two-targets": (("data", "target", "targets"), "2 pairs"),
    "bare-and-training": (("x", "y", "x_train", "y_train"), "2 pairs"),
}


@pytest.mark.parametrize(("keys", "problem"), NO_PAIR.values(), ids=NO_PAIR)
def test_arrays_that_are_not_one_pair_are_refused_by_name(keys: tuple[str, ...], problem: str) -> None:
    with pytest.raises(Failure, match=problem) as caught:
        arrays.find_array_names(keys, FILE)
    assert caught.value.code == ExitCode.DATA
    assert all(key in str(caught.value.found) for key in keys)


def located_splits(root: Path, kind: str = "npz") -> dict[str, tuple[str, ...]]:
    places, _ = arrays.locate_splits(DataConfig(name=kind, root=str(root)), arrays.list_names)
    return {split: (file.name, *pair) for split, (file, pair) in places.items()}


def test_a_test_file_is_for_validation_if_there_is_no_other(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", images=np.zeros((50, 4, 4), np.uint8), labels=np.zeros(50, int))
    training = {"training": ("train.npz", "images", "labels")}
    assert located_splits(tmp_path) == training
    np.savez(tmp_path / "test.npz", x=np.zeros((5, 4, 4), np.uint8), y=np.zeros(5, int))
    assert located_splits(tmp_path) == training | {"validation": ("test.npz", "x", "y")}


def test_all_splits_may_lie_in_one_file(tmp_path: Path) -> None:
    sizes = {"train": 9, "val": 3, "test": 2}
    splits = {f"x_{split}": np.zeros((size, 4, 4)) for split, size in sizes.items()}
    splits |= {f"y_{split}": np.zeros(size) for split, size in sizes.items()}
    np.savez(tmp_path / "a.npz", **splits)  # type: ignore[arg-type]
    assert located_splits(tmp_path / "a.npz") == {
        "training": ("a.npz", "x_train", "y_train"),
        "validation": ("a.npz", "x_val", "y_val"),
        "test": ("a.npz", "x_test", "y_test"),
    }
