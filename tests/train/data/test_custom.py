"""A user's own data set is made by his factory in each process that reads it, and its items are checked."""

from __future__ import annotations

import errno
import io
import mmap
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_classes
from jobs import trained
from PIL import ExifTags, Image
from processes import python

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import custom, decode, registry
from train.data.loader import open_loader
from train.data.splits import DataSplits

# What every module of a test begins with.
START = """
import numpy as np, os, torch
from train.data.shape import Shape
from train.data.splits import DataSplits
class Squares:
    def __init__(self, count=40, size=8):
        self.count, self.size = count, size
    def __len__(self):
        return self.count
    def __getitem__(self, row):
        return np.full((self.size, self.size, 3), 6 * row, np.uint8), row % 2

class Listed(Squares):
    targets = [row % 2 for row in range(40)]
    classes = ["even", "odd"]

class Moving(Squares):
    def __getitem__(self, row):
        pixels, label = super().__getitem__(row)
        return (np.random.randint(0, 9, pixels.shape).astype(np.uint8) if row == 3 else pixels), label

class Packed(Listed):
    # All items in one file, which is opened at the first read.
    targets, file = [row % 2 for row in range(2000)], None
    def __init__(self, path, early=False):
        super().__init__(2000)
        self.path = path
        if early:
            self.file = open(self.path, "rb", buffering=0)
    def __del__(self):
        if self.file is not None:
            self.file.close()
    def __getitem__(self, row):
        if self.file is None:
            self.file = open(self.path, "rb", buffering=0)
        self.file.seek(64 * row)
        os.sched_yield()
        return np.frombuffer(self.file.read(64), np.uint8).reshape(8, 8).copy(), row % 2

class Source:
    # The same as a source.
    labels = torch.arange(2000) % 2
    def __init__(self, path):
        self.items = Packed(path)
    def read(self, samples):
        return torch.stack([torch.from_numpy(self.items[row][0]) for row in samples])[..., None]

def source(path):
    shape = Shape(channels=1, size=(8, 8))
    return DataSplits(training=Source(path), validation=Source(path), classes=("a", "b"), shape=shape)

class Dark(Squares):
    def __init__(self, highest):
        super().__init__()
        self.highest = highest
    def __getitem__(self, row):
        from PIL import Image
        return Image.fromarray(np.full((8, 8), self.highest, np.uint16)), row % 2

class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([])

class Drawn:
    def __init__(self, labels):
        self.labels = labels
    def read(self, samples):
        return torch.zeros((len(samples), 4, 6, 1), dtype=torch.uint8)

class Later(Drawn):
    def __init__(self, then):
        self.labels, self.then = torch.arange(40) % 2, then
    def read(self, samples):
        return self.then(super().read(samples)) if len(samples) > 1 else super().read(samples)

def later(then):
    side = Later(then)
    return DataSplits(training=side, validation=side, classes=("a", "b"), shape=Shape(channels=1, size=(4, 6)))

def sets(labels=[0, 1] * 20, classes=("a", "b"), size=(4, 6)):
    side = Drawn(torch.tensor(labels))
    return DataSplits(training=side, validation=side, classes=classes, shape=Shape(channels=1, size=size))
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Write users_data.py, with a factory that returns this expression."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])

    def to(expression: str) -> DataConfig:
        text = f"{START}\n\ndef make(data):\n    return {expression}\n"
        (tmp_path / "users_data.py").write_text(text)
        return DataConfig(name="users_data:make", root="my/root")

    yield to
    sys.modules.pop("users_data", None)


def sizes(sets: DataSplits) -> tuple[int, int]:
    return len(sets.training.labels), len(sets.validation.labels)


MADE = {
    "a-pair": ("Squares(), Squares(10)", (40, 10), ("0", "1")),
    "a-list-of-two": ("[Squares(), Squares(10)]", (40, 10), ("0", "1")),
    "no-validation": ("Squares(), None", (32, 8), ("0", "1")),
    "with-names": ("Listed(), None", (32, 8), ("even", "odd")),
    "a-subset": ("torch.utils.data.Subset(Listed(), range(0, 30)), None", (24, 6), ("0", "1")),
    "sets": ("sets()", (40, 40), ("a", "b")),
    "tensors": (
        "torch.utils.data.TensorDataset(torch.zeros(40, 3, 8, 8), torch.arange(40) % 2), None",
        (32, 8),
        ("0", "1"),
    ),
}


@pytest.mark.parametrize(("expression", "expected", "classes"), MADE.values(), ids=MADE)
def test_what_a_factory_may_return(
    write: Any, expression: str, expected: tuple[int, int], classes: tuple[str, ...]
) -> None:
    sets = registry.open_splits(write(expression))
    assert (sizes(sets), sets.classes) == (expected, classes)
    assert sets.training.read(np.arange(2)).shape == (2, *sets.shape.stored)


@pytest.mark.parametrize(("made", "floats"), [("tensors", True), ("sets", False), ("a-pair", False)])
def test_floats_are_known_as_such(write: Any, made: str, floats: bool) -> None:
    sets = registry.open_splits(write(MADE[made][0]))
    assert sets.floats == floats == sets.training.read(np.arange(1)).is_floating_point()


def test_the_factory_gets_the_data_section(write: Any) -> None:
    assert sizes(custom.open_custom(write("Squares(len(data.root)), Squares(4)"))) == (7, 4)


def test_items_that_change_when_they_are_read_again_are_warned_of(write: Any) -> None:
    (warning,) = registry.open_splits(write("Moving(), Squares(10)")).warnings
    assert "item 3 is not the same when it is read again" in warning
    assert "data.augment" in warning


def test_items_that_stay_as_they_are_are_not_warned_of(write: Any) -> None:
    assert registry.open_splits(write("Squares(), Squares(10)")).warnings == ()


def test_pictures_of_12_bits_are_warned_of(write: Any) -> None:
    (warning,) = registry.open_splits(write("Dark(4095), None")).warnings
    assert warning.startswith("users_data:make: 8 images of 16 bits looked at, no value above 4,095")


def test_listed_labels_are_not_read_out_of_the_items(write: Any) -> None:
    given = write("(items := Listed(), setattr(Listed, '__getitem__', lambda self, row: self.boom if row else "
                  "(np.zeros((4, 4), np.uint8), 0)))[:1] * 2")  # fmt: skip
    assert sizes(custom.open_custom(given)) == (40, 40)


def test_a_class_may_be_missing_where_the_dataset_names_it(write: Any) -> None:
    made = custom.open_custom(write("setattr(Listed, 'classes', ['a', 'b', 'c']) or (Listed(), None)"))
    assert made.classes == ("a", "b", "c")


def test_the_split_keeps_every_sample_once(write: Any) -> None:
    sets = custom.open_custom(write("Squares(), None"))
    both = torch.cat([side.read(np.arange(len(side.labels))) for side in (sets.training, sets.validation)])
    assert sorted(both[:, 0, 0, 0].tolist()) == [6 * row % 250 for row in range(40)] or len(both) == 40


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    (tmp_path / "packed").write_bytes(np.repeat(np.arange(2000) % 251, 64).astype(np.uint8).tobytes())
    return tmp_path / "packed"


OPENED = {
    "items": "Packed({0!r}), Packed({0!r})",
    "a-source": "source({0!r})",
    "before-the-first-read": "Packed({0!r}, early=True), Packed({0!r}, early=True)",
}


@pytest.mark.parametrize("expression", OPENED.values(), ids=OPENED)
def test_workers_do_not_share_a_file_that_a_data_set_opens(write: Any, packed: Path, expression: str) -> None:
    data = replace(write(expression.format(str(packed))), loader="workers", workers=4)
    ready = open_loader(registry.open_splits(data), data, seed=0, device=torch.device("cpu"), cores=2)
    blocks = np.random.default_rng(0).integers(0, 2000, (100, 40))
    output = torch.stack([batch["image"][:, 0, 0, 0] for _, batch in ready.training.read(enumerate(blocks))])
    assert (output.numpy() == blocks % 251).all()


def test_a_file_that_a_module_holds_open_is_not_given_to_workers(write: Any, packed: Path) -> None:
    data = write(f"globals().setdefault('KEPT', Packed({str(packed)!r})), None")
    sets, facts = registry.open_splits(data), {"seed": 0, "device": torch.device("cpu"), "cores": 2}
    with pytest.raises(Failure, match="would share the offset of a file") as caught:
        open_loader(sets, replace(data, loader="workers"), **facts)  # type: ignore[arg-type]
    assert caught.value.code == ExitCode.DATA
    assert str(packed) in str(caught.value.found)
    assert str(open_loader(sets, replace(data, loader="workers", workers=0), **facts).training) == "0 workers"  # type: ignore[arg-type]


@pytest.mark.parametrize("loader", ["memory", "workers"])
def test_it_is_trained_on(write: Any, tmp_path: Path, loader: str) -> None:
    write("Listed(), None")
    settings = ("data.name=users_data:make", f"data.loader={loader}", "data.workers=1", "train.max_steps=2")
    trainer = trained(tmp_path / "run", *settings)
    assert trainer.checkpointer.newest is not None


BAD_DATA_SETS = {
    "nothing": ("None", "NoneType"),
    "one-dataset": ("Squares()", "Squares"),
    "three": ("(Squares(),) * 3", "tuple"),
    "no-training-split": ("None, Squares()", "(None, ...)"),
    "a-loader-of-batches": ("iter([1]), None", "without len()"),
    "an-iterable-dataset": ("Stream(), None", "without len()"),
    "no-items": ("Squares(0), None", "without items"),
    "no-validation-items": ("Squares(), Squares(0)", "without items"),
    "too-many-targets": ("setattr(Squares, 'targets', [0, 1] * 40) or (Squares(), None)", "80 labels"),
    "text-targets": ("setattr(Squares, 'targets', ['a', 'b'] * 20) or (Squares(), None)", "'a'"),
    "float-targets": ("setattr(Squares, 'targets', [0.0, 1.0] * 20) or (Squares(), None)", "float64"),
    "negative-targets": ("setattr(Squares, 'targets', [-1, 1] * 20) or (Squares(), None)", "-1"),
    "a-gap": ("setattr(Squares, 'targets', [0, 2] * 20) or (Squares(), None)", "no label 1"),
    "fewer-names-than-classes": ("setattr(Listed, 'classes', ['a']) or (Listed(), None)", "label 1"),
    "pictures-that-would-be-black": ("Dark(255), None", "no value above 255"),
    "other-validation-shape": ("Squares(), Squares(size=6)", "different shapes"),
    "sets-with-a-large-label": ("sets([0, 1, 2])", "label 2"),
    "sets-without-samples": ("sets(np.zeros(0, int))", "no training samples"),
    "sets-of-another-shape": ("sets(size=(6, 4))", "[4, 6, 1]"),
    "sets-with-float-labels": ("sets([0.0, 1.0])", "float32"),
    "sets-without-read": (
        "DataSplits(training=Squares(), validation=Squares(), classes=('a',), shape=None)",
        "without",
    ),
}


@pytest.mark.parametrize(("expression", "problem"), BAD_DATA_SETS.values(), ids=BAD_DATA_SETS)
def test_what_it_may_not_return_is_refused(write: Any, expression: str, problem: str) -> None:
    with pytest.raises(Failure) as caught:
        custom.open_custom(write(expression))
    assert caught.value.code == ExitCode.DATA
    assert problem in str(caught.value.found)


FAILING = {
    "in-the-factory": "1 / 0",
    "in-len": "setattr(Squares, '__len__', lambda self: 1 / 0) or (Squares(), None)",
    "in-read": "setattr(Drawn, 'read', lambda self, samples: 1 / 0) or sets()",
}


@pytest.mark.parametrize("expression", FAILING.values(), ids=FAILING)
def test_an_error_in_the_users_code_names_its_line(write: Any, expression: str) -> None:
    with pytest.raises(Failure) as caught:
        custom.open_custom(write(expression))
    line = len(START.splitlines()) + 4
    assert caught.value.code == ExitCode.USAGE
    assert f"users_data.py, line {line}: ZeroDivisionError" in str(caught.value.found)


def test_a_name_that_nobody_knows_is_looked_for_as_a_module() -> None:
    with pytest.raises(Failure, match="there is no module not_there") as caught:
        registry.open_splits(DataConfig(name="not_there:make"))
    assert caught.value.code == ExitCode.USAGE


def test_a_module_beside_the_config_is_found_from_any_folder(write: Any, tmp_path: Path) -> None:
    write("Listed(), None")
    (tmp_path / "my.yaml").write_text("data: {name: 'users_data:make'}\ntrain: {global_batch_size: 8, max_steps: 1}\n")
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "users_data.py").write_text("make = None")  # the working directory is not looked in
    settings = ("--device", "cpu", "--config", "../my.yaml", "log.tensorboard=false")
    ended = python("-m", "train", *settings, cwd=elsewhere, environ={"PYTHONSAFEPATH": "1"})
    assert ended.returncode == 0, ended.stderr
    assert "data           users_data:make: 32 training and 8 validation images" in ended.stderr + ended.stdout


LATER = {
    "one-sample-for-all": ("later(lambda read: read[:1])", 65),
    "another-size": ("later(lambda read: read[:, :2])", 65),
    "another-type": ("later(lambda read: read.double())", 65),
    "not-a-number": ("later(lambda read: read.float() / 0)", 65),
    "no-tensor": ("later(lambda read: read.numpy())", 65),
    "an-error": ("later(lambda read: 1 / 0)", 64),
}


@pytest.mark.parametrize(("expression", "code"), LATER.values(), ids=LATER.keys())
def test_every_read_is_held_to_what_was_promised(write: Any, expression: str, code: int) -> None:
    sets = custom.open_custom(write(expression))
    with pytest.raises(Failure) as caught:
        sets.training.read(np.arange(5))
    assert caught.value.code == code


def test_a_worker_refuses_a_factory_that_returns_other_labels_when_it_is_called_again(write: Any) -> None:
    data = replace(write("sets([0, 1] * (20 if not os.environ.get('AGAIN') else 19))"), loader="workers", workers=1)
    ready = open_loader(registry.open_splits(data), data, seed=0, device=torch.device("cpu"), cores=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGAIN", "1")
        with pytest.raises(Failure, match="returned other labels when it was called again") as caught:
            list(ready.training.read([(0, np.arange(2))]))
    assert caught.value.code == ExitCode.DATA


def test_a_worker_names_an_item_whose_label_is_another_one_when_the_factory_is_called_again(write: Any) -> None:
    expression = "setattr(Squares, '__getitem__', (lambda self, row: (np.zeros((8, 8, 3), np.uint8), "
    expression += "(row + bool(os.environ.get('AGAIN'))) % 2))) or (Squares(), Squares())"
    data = replace(write(expression), loader="workers", workers=1)
    ready = open_loader(registry.open_splits(data), data, seed=0, device=torch.device("cpu"), cores=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGAIN", "1")
        with pytest.raises(Failure, match="item 0 has another label than the dataset lists"):
            list(ready.training.read([(0, np.arange(2))]))


PICTURES = """
import torch
from PIL import Image

class Pictures(torch.utils.data.Dataset):
    def __init__(self, count):
        self.targets, self.turn = [number % 2 for number in range(count)], lambda image: image.resize((16, 16))

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, number):
        return self.turn(Image.new("RGB", (20, 20), (3 * number, 0, 200 * (number % 2)))), number % 2

def make(data):
    return Pictures(32), Pictures(8)
"""


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["own", pytest.param("shards", marks=pytest.mark.slow)])
def test_a_training_starts_its_workers_whatever_way_python_starts_processes(
    tmp_path: Path, method: str, name: str
) -> None:
    """Python 3.14 starts a server that forks, which pickles what a worker gets: a lambda, a lock, a mapped index."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(
        f"import multiprocessing; multiprocessing.set_start_method({method!r})"
    )
    (tmp_path / "pictures_of_workers.py").write_text(PICTURES)
    environ = {"PYTHONPATH": os.pathsep.join((str(tmp_path / "site"), *sys.path))}
    data = ["data.name=pictures_of_workers:make"]
    if name == "shards":
        write_classes(tmp_path / "photos", cat=20, dog=20)
        words = ("-m", "train", "data", "pack", "photos", "--output", "shards")
        assert python(*words, cwd=tmp_path, environ=environ).returncode == 0
        data = ["data.name=shards", "data.root=shards", "data.image_size=16"]
    workers = ("data.loader=workers", "data.workers=1", "train.global_batch_size=8", "train.max_steps=2")
    ended = python("-m", "train", "--device", "cpu", *data, *workers, cwd=tmp_path, environ=environ)
    assert ended.returncode == 0, ended.stderr
    assert "1 worker" in ended.stdout


BYTES = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)


class Listed:
    """Items out of a list; what is callable in it is called."""

    def __init__(self, *images: Any) -> None:
        self.images = images

    def __getitem__(self, row: int) -> Any:
        image = self.images[row]
        return image() if callable(image) else image if isinstance(image, (tuple, str)) else (image, row % 2)


def opened(*images: Any, labels: list[int] | None = None) -> custom.DatasetSource:
    targets = torch.arange(len(images)) % 2 if labels is None else torch.tensor(labels)
    return custom.open_dataset_source(Listed(*images), targets, 6, "mine:make, training data:")


LIKE = {
    "an-array": (BYTES, (8, 8, 3), torch.uint8),
    "a-gray-array": (BYTES[..., 0], (8, 8, 1), torch.uint8),
    "a-clip": (np.stack([BYTES] * 5), (5, 8, 8, 3), torch.uint8),
    "a-gray-clip": (np.zeros((5, 8, 8), np.uint8), (5, 8, 8, 1), torch.uint8),
    "floats": (BYTES / 255, (8, 8, 3), torch.float32),
    "a-tensor": (torch.from_numpy(BYTES).permute(2, 0, 1), (8, 8, 3), torch.uint8),
    "half-precision": (torch.zeros(3, 8, 8).half(), (8, 8, 3), torch.float32),
    "a-clip-tensor": (torch.zeros(3, 5, 8, 8), (5, 8, 8, 3), torch.float32),
    "a-picture": (Image.fromarray(BYTES), (6, 6, 3), torch.uint8),
    "a-wide-gray-picture": (Image.new("L", (20, 8)), (6, 6, 3), torch.uint8),
}


@pytest.mark.parametrize(("image", "shape", "kind"), LIKE.values(), ids=LIKE)
def test_images_of_every_kind(image: Any, shape: tuple[int, ...], kind: torch.dtype) -> None:
    source = opened(image, image)
    assert source.first == (shape, kind)
    read = source.read(np.array([1, 0]))
    assert (read.shape, read.dtype, read.is_contiguous()) == ((2, *shape), kind, True)


@pytest.mark.parametrize("sides", [(21, 8), (8, 21), (40, 33), (6, 6)])
def test_a_picture_is_cut_and_scaled_as_a_file_is(sides: tuple[int, int], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*sides, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    read = opened(Image.open(tmp_path / "a.jpg").convert("RGB")).read(np.arange(1))[0]
    assert np.array_equal(read, decode.decode_image(tmp_path / "a.jpg", 6, 0, draft=False))


def test_pictures_are_known_from_arrays() -> None:
    assert [opened(image).holds_pictures for image in (Image.fromarray(BYTES), BYTES)] == [True, False]


def test_pixels_come_as_they_are() -> None:
    tensor = torch.from_numpy(BYTES).permute(2, 0, 1)
    assert opened(BYTES, tensor).read(np.arange(2)).equal(torch.from_numpy(np.stack([BYTES, BYTES])))


def test_of_a_picture_of_16_bits_the_upper_8_are_taken() -> None:
    deep = np.linspace(0, 0xFFFF, 36, dtype=np.uint16).reshape(6, 6)
    pictures = [Image.fromarray(deep), Image.fromarray(deep.astype(np.int32))]
    assert [picture.mode for picture in pictures] == ["I;16", "I"]
    assert (opened(*pictures).read(np.arange(2))[..., 0].numpy() == deep >> 8).all()


def test_the_highest_values_of_pictures_of_16_bits_are_told() -> None:
    pictures = [Image.fromarray(np.full((6, 6), value, np.uint16)) for value in (0, 255, 4095)]
    _, facts = custom.look_at_items(opened(*pictures, Image.new("L", (6, 6))))
    assert [each.highest for each in facts] == [0, 255, 4095, None]


def test_arrays_have_no_depth_to_be_told() -> None:
    assert custom.look_at_items(opened(BYTES, BYTES)) == (None, [])


def test_a_picture_that_was_taken_sideways_is_turned() -> None:
    picture = Image.fromarray(BYTES[:6, :6])
    picture.getexif()[ExifTags.Base.Orientation] = 6
    picture.info["exif"] = picture.getexif().tobytes()
    assert (opened(picture.copy()).read(np.arange(1))[0].numpy() == np.rot90(BYTES[:6, :6], -1)).all()


def test_a_part_reads_its_own_items() -> None:
    source = opened(*(np.full((4, 4), number, np.uint8) for number in range(6)))
    part = source.select(source.labels == 1)
    assert part.read(np.arange(3))[:, 0, 0, 0].tolist() == [1, 3, 5]


def test_no_items_keep_their_shape() -> None:
    assert opened(BYTES).read(np.arange(0)).shape == (0, 8, 8, 3)


@pytest.mark.parametrize("label", [1, True, np.int8(1), np.uint64(1), torch.tensor(1), torch.tensor([1])])
def test_labels_of_every_integer_kind(label: Any) -> None:
    assert custom.read_item(Listed((BYTES, label)), 0, "mine:")[1] == 1


def fails() -> Any:
    raise ValueError("no such file")


def with_nan() -> Any:
    return (np.where(BYTES == 9, np.nan, 1.0), 1)


BAD_ITEMS = {
    "an-error": (fails, f"{__file__}, line", "cannot be read"),
    "no-pair": ("abc", "str: too many", "is no pair"),
    "three-things": ((BYTES, 1, 2), "tuple: too many", "is no pair"),
    "a-dict": (dict, "dict: not enough", "is no pair"),
    "nothing": (lambda: None, "NoneType:", "is no pair"),
    "a-float-label": ((BYTES, 1.0), "1.0", "is a number with a decimal point"),
    "a-text-label": ((BYTES, "cat"), "'cat'", "is text"),
    "a-one-hot-label": ((BYTES, np.array([0, 1])), "ndarray of the shape", "is a vector"),
    "a-ragged-label": ((BYTES, [[0], [0, 1]]), "a list", "is no number"),
    "no-label": ((BYTES, None), "a NoneType", "is no number"),
    "another-size": ((BYTES[:4], 1), "[4, 8, 3], uint8", "not like the first"),
    "another-type": ((BYTES / 255, 1), "[8, 8, 3], float32", "not like the first"),
    "no-channels": ((BYTES[..., 0], 1), "[8, 8, 1], uint8", "not like the first"),
    "another-label": ((BYTES, 0), "label 0", "another label"),
    "text": (("a.jpg", 1), "a str", "no image"),
    "a-list": (([[1, 2]], 1), "a list", "no image"),
    "integers": ((BYTES.astype(np.int64), 1), "int64", "no image"),
    "objects": ((np.array([None]), 1), "an array of object", "no image"),
    "a-picture-of-floats": ((Image.new("F", (8, 8), 0.5), 1), "32 bits (mode F)", "no image"),
    "a-picture-of-few-numbers": ((Image.new("I", (8, 8), 255), 1), "mode I", "no image"),
    "one-axis": ((BYTES[0, 0], 1), "[1, 3]", "these axes"),
    "channels-first": ((BYTES.transpose(2, 0, 1), 1), "[1, 3, 8, 8]", "another place"),
}


@pytest.mark.parametrize(("second", "problem", "what"), BAD_ITEMS.values(), ids=BAD_ITEMS)
def test_a_bad_item_is_refused_by_its_number(second: Any, problem: str, what: str) -> None:
    source = opened(BYTES, second)
    with pytest.raises(Failure, match=what) as caught:
        source.read(np.arange(2))
    assert caught.value.code == ExitCode.DATA
    assert problem in str(caught.value.found)
    assert "item 1" in str(caught.value)


def test_a_picture_that_is_broken_where_it_is_read_late_is_named() -> None:
    Image.effect_noise((64, 64), 90).save(encoded := io.BytesIO(), "JPEG")
    cut = encoded.getvalue()[:900]
    with pytest.raises(Failure, match="item 1 is no image") as caught:
        opened(BYTES, lambda: (Image.open(io.BytesIO(cut)), 1)).read(np.arange(2))
    assert "truncated" in str(caught.value.found)


def test_a_lost_disk_is_not_a_wrong_item(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> Image.Image:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(custom.decode, "to_8_bits", lost)
    with pytest.raises(OSError, match="error"):
        opened(Image.new("L", (8, 8)))


def test_numbers_that_are_not_finite_are_refused() -> None:
    source = opened(BYTES / 255, with_nan)
    with pytest.raises(Failure, match="item 1 holds numbers that are not finite"):
        source.read(np.arange(2))


@pytest.mark.parametrize("error", [MemoryError(), Failure("mine", fix="so", code=ExitCode.IO)])
def test_what_the_dataset_says_itself_passes(error: Exception) -> None:
    def stand_in() -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        opened(stand_in)
    assert caught.value is error


DRAWN_MODULE = """
import random
import numpy as np, torch
CALLS = []
class Drawn:
    def __init__(self):
        CALLS.append(self)
        self.drawn = random.random(), np.random.rand(), float(torch.rand(1))
    def __len__(self):
        return 9
    def __getitem__(self, row):
        return np.full((8, 8, 3), row, np.uint8), row % 2
def make(data):
    return Drawn(), Drawn()
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[custom.FactoryCall]:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "users_drawn.py").write_text(DRAWN_MODULE)
    yield custom.FactoryCall(DataConfig(name="users_drawn:make"))
    sys.modules.pop("users_drawn", None)


def in_a_fork(check: Callable[[], object]) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(0 if check() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_process_calls_the_factory_once(factory: custom.FactoryCall) -> None:
    splits = factory.splits()
    assert factory.splits() is splits
    assert factory.split(0) is splits[0]
    assert factory.split(1) is splits[1]


def test_a_forked_process_calls_it_again(factory: custom.FactoryCall) -> None:
    inherited = factory.splits()
    assert in_a_fork(lambda: factory.splits() is not inherited and factory.splits() is factory.splits())
    assert factory.splits() is inherited


def test_what_is_released_is_freed_and_made_again(factory: custom.FactoryCall) -> None:
    factory.splits()
    calls = sys.modules["users_drawn"].CALLS
    factory.release()
    assert factory.returned is None
    factory.splits()
    assert len(calls) == 4


def test_each_call_draws_the_same_and_leaves_the_readers_generators_alone(factory: custom.FactoryCall) -> None:
    first = factory.split(1).drawn
    factory.release()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    expected = random.random(), np.random.rand(), float(torch.rand(1))
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7)
    assert factory.split(1).drawn == first
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == expected


@pytest.fixture
def bytes_file(tmp_path: Path) -> Path:
    (tmp_path / "packed").write_bytes(bytes(range(100, 109)))
    return tmp_path / "packed"


def sought(file: int) -> Callable[[int], object]:
    return lambda row: (os.lseek(file, row, 0), os.read(file, 1))


def beside(file: int) -> Callable[[int], object]:
    return lambda row: os.pread(file, 1, row)


def mapped(file: int) -> Callable[[int], object]:
    memory = mmap.mmap(file, 0, access=mmap.ACCESS_READ)
    return lambda row: memory[row]


@pytest.mark.parametrize(("way", "shared"), [(sought, True), (beside, False), (mapped, False)])
def test_of_files_that_stay_open_those_are_told_whose_position_moves(
    bytes_file: Path, way: Callable[[int], Callable[[int], object]], shared: bool
) -> None:
    with bytes_file.open("rb") as file:
        read = way(file.fileno())
        moved = custom.find_moved_file([partial(read, 0), partial(read, 8)], lambda: None)
    assert moved == (str(bytes_file) if shared else None)


def test_a_file_that_is_closed_on_release_is_not_told(bytes_file: Path) -> None:
    file = bytes_file.open("rb")
    read = sought(file.fileno())
    assert custom.find_moved_file([partial(read, 0), partial(read, 8)], file.close) is None


def raising(error: Exception) -> Callable[[], object]:
    def read() -> Any:
        raise error

    return read


def test_a_stop_is_not_taken_for_a_bad_sample() -> None:
    bad = raising(Failure("bad", fix="mend it", code=ExitCode.DATA))
    assert custom.find_moved_file([bad, raising(OSError())], lambda: None) is None
    with pytest.raises(Failure, match="asked to stop"):
        custom.find_moved_file(
            [raising(Failure("asked to stop", fix="start again", code=ExitCode.STOPPED))], lambda: None
        )


def test_files_that_are_written_are_not_told(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, (tmp_path / "log").open("rb") as other:
        assert {log.fileno(), other.fileno()} & custom.open_file_positions().keys() == {other.fileno()}
