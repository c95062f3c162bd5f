"""The user's own data sets, out of his factory."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from images import write_classes
from jobs import trained
from processes import python

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import custom, registry
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
    (said,) = registry.open_splits(write("Moving(), Squares(10)")).warnings
    assert "item 3 is not the same when it is read again" in said
    assert "data.augment" in said


def test_items_that_stay_as_they_are_are_not_warned_of(write: Any) -> None:
    assert registry.open_splits(write("Squares(), Squares(10)")).warnings == ()


def test_pictures_of_12_bits_are_warned_of(write: Any) -> None:
    (said,) = registry.open_splits(write("Dark(4095), None")).warnings
    assert said.startswith("users_data:make: 8 images of 16 bits looked at, no value above 4,095")


def test_listed_labels_are_not_read_out_of_the_items(write: Any) -> None:
    given = write("(one := Listed(), setattr(Listed, '__getitem__', lambda self, row: self.boom if row else "
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
    found = torch.stack([batch["image"][:, 0, 0, 0] for _, batch in ready.training.read(enumerate(blocks))])
    assert (found.numpy() == blocks % 251).all()


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


BAD = {
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


@pytest.mark.parametrize(("expression", "found"), BAD.values(), ids=BAD)
def test_what_it_may_not_return_is_refused(write: Any, expression: str, found: str) -> None:
    with pytest.raises(Failure) as caught:
        custom.open_custom(write(expression))
    assert caught.value.code == ExitCode.DATA
    assert found in str(caught.value.found)


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
