"""The user's own factories of data and models that cannot be called, fail, or give something else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bad.case import Case, through_rank, through_train

RUN = ("runs", "runs/*")
rank = partial(Case, door=through_rank, writes=RUN)
SET = """
import numpy as np, torch
from train.data.shape import Shape
from train.data.splits import DataSplits
class Set(list):
    pass
def pair(count=12, size=8, label=lambda n: n % 2, kind=np.uint8):
    return [(np.zeros((size, size, 3), kind), label(n)) for n in range(count)]
class Source:
    def __init__(self, labels, read):
        self.labels, self.read = labels, read
def sets(read, labels=None, validation=None):
    labels = torch.arange(12) % 2 if labels is None else labels
    return DataSplits(training=Source(labels, read), validation=validation or Source(labels, read), classes=("a", "b"),
                shape=Shape(channels=3, size=(8, 8)))
def zeros(samples):
    return torch.zeros(len(samples), 8, 8, 3, dtype=torch.uint8)
"""
# id -> (what `make(data)` does, exit code, words of the message, words of the fix).
Row = tuple[str, int, tuple[str, ...], str]
AGREED = "returned something else than a data set"
DATA: dict[str, Row] = {
    "none": ("return None", 65, (AGREED, "NoneType"), "return that"),
    "one-alone": ("return (pair(),)", 65, (AGREED, "tuple"), "return that"),
    "no-training": ("return None, pair()", 65, (AGREED, "(None, ...)"), "return that"),
    "no-length": ("return (x for x in pair()), None", 65, (AGREED, "generator, without len()"), "return that"),
    "no-items": ("return [], None", 65, (AGREED, "without items"), "return that"),
    "other-labels": (
        "s = Set(pair()); s.targets = [0, 1]; return s, None",
        65,
        (AGREED, "12 items, and 2 labels"),
        "return that",
    ),
    "splits-differ": ("return pair(), pair(size=9)", 65, (AGREED, "different shapes"), "return that"),
    "text-labels": (
        "s = Set(pair()); s.targets = [[1], [1, 2]] * 6; return s, None",
        65,
        ("labels are no numbers", "one integer for each image"),
        "again",
    ),
    "fails": (
        "return 1 / 0",
        64,
        ("data.name mine:make failed", "ZeroDivisionError", "mine.py, line"),
        "mend it there",
    ),
    "exits": ("raise SystemExit(0)", 64, ("data.name mine:make failed", "SystemExit"), "mend it there"),
    "length-fails": (
        "class B(list):\n        def __len__(self): return 1 / 0\n    return B(pair()), None",
        64,
        ("what it returned failed", "ZeroDivisionError"),
        "mend it there",
    ),
    "item-fails": (
        "class B(list):\n        def __getitem__(self, n): raise OSError('no disk')\n    return B(pair()), None",
        65,
        ("item 0 cannot be read", "no disk"),
        "mend the dataset",
    ),
    "file-shared-by-workers": (
        "class B(list):\n        file = globals().setdefault('KEPT', open(__file__, 'rb', buffering=0))\n"
        "        def __getitem__(self, n):\n            self.file.seek(n)\n"
        "            return np.frombuffer(self.file.read(192), np.uint8).reshape(8, 8, 3).copy(), n % 2\n"
        "    return B(pair()), None",
        65,
        ("would share the offset of a file", "mine.py, whose position moves as items of mine:make are read"),
        "not in a variable of the module",
    ),
    "item-no-pair": ("return [1, 2, 3], None", 65, ("item 0 is no pair", "int"), "mend the dataset"),
    "label-is-text": (
        "return pair(label=str), None",
        65,
        ("the label of item 0 is text", "'0'", "one integer for each image"),
        "names.index(label)",
    ),
    "listed-label-is-text": (
        "s = Set(pair()); s.targets = ['cat', 'dog'] * 6; return s, None",
        65,
        ("the first of .targets or .labels is text", "'cat'"),
        ".classes = names",
    ),
    "label-is-float": (
        "return pair(label=float), None",
        65,
        ("the label of item 0 is a number with a decimal point", "0.0"),
        "return int(label)",
    ),
    "label-is-vector": (
        "return pair(label=lambda n: np.eye(2)[n % 2]), None",
        65,
        ("the label of item 0 is a vector", "[2]"),
        "label.argmax()",
    ),
    "image-is-text": (
        "return [('x', n % 2) for n in range(9)], None",
        65,
        ("item 0 is no image", "a str"),
        "__getitem__",
    ),
    "image-of-objects": ("return pair(kind=object), None", 65, ("is no image", "an array of object"), "__getitem__"),
    "picture-of-floats": (
        "from PIL import Image; return [(Image.new('F', (8, 8)), n % 2) for n in range(9)], None",
        65,
        ("item 0 is no image", "32 bits (mode F)"),
        "__getitem__",
    ),
    "image-of-ints": ("return pair(kind=np.int64), None", 65, ("is no image", "an array of int64"), "__getitem__"),
    "item-unlike-first": (
        "p = pair(); p[5:] = [(np.zeros((9, 9, 3), np.uint8), n % 2) for n in range(7)]; return p, None",
        65,
        ("is not like the first one", "[9, 9, 3]"),
        "mend the dataset",
    ),
    "label-unlike-listed": (
        "s = Set(pair()); s.targets = [1, 0] * 6; return s, None",
        65,
        ("has another label than the dataset lists", "label 0"),
        "mend the dataset",
    ),
    "item-nan": (
        "return [(np.full((8, 8, 3), np.nan, np.float32), n % 2) for n in range(12)], None",
        65,
        ("item 0 holds numbers that are not finite",),
        "mend the dataset",
    ),
    "source-without-labels": (
        "return sets(zeros, labels=[0, 1])",
        65,
        (AGREED, "without a tensor of labels"),
        "return that",
    ),
    "source-label-beyond": (
        "return sets(zeros, labels=torch.arange(3))",
        65,
        (AGREED, "label 2, and 2 classes"),
        "return that",
    ),
    "source-empty": (
        "return sets(zeros, labels=torch.zeros(0, dtype=torch.int64))",
        65,
        (AGREED, "no training samples"),
        "return that",
    ),
    "read-fails": (
        "return sets(lambda samples: 1 / 0)",
        64,
        ("reading samples failed", "ZeroDivisionError"),
        "mend it",
    ),
    "read-gives-arrays": ("return sets(lambda s: zeros(s).numpy())", 65, (AGREED, "samples as ndarray"), "return that"),
    "read-gives-fewer": ("return sets(lambda s: zeros(s)[:0])", 65, (AGREED, "0 samples of"), "return that"),
    "read-gives-nan": ("return sets(lambda s: zeros(s).float() / 0)", 65, (AGREED, "NaN or infinity"), "return that"),
    "weight-elsewhere": (
        "return sets(zeros, labels=torch.zeros(12, dtype=torch.int64))",
        64,
        ("optim.class_weights gives no weight", "[12, 0]"),
        "a weight above 0",
    ),
    "one-class-in-training": (
        "s = sets(zeros, labels=torch.zeros(12, dtype=torch.int64)); return s",
        65,
        ("optim.class_weights: balanced needs samples of every class", "none of"),
        "remove these classes",
    ),
}
# id -> (the module, data.name's or model.name's value, words, words of the fix). Code 64.
MODULES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "no-module": ("", "elsewhere:make", ("there is no module elsewhere", "looked in"), "package.module:factory"),
    "no-submodule": ("", "mine.data:make", ("mine.data",), "package.module:factory"),
    "no-function": (
        "def made(data): pass",
        "mine:make",
        ("mine has no make", "only made"),
        "write made instead of make",
    ),
    "not-callable": ("make = 5", "mine:make", ("cannot be called", "of type int"), "make make a function"),
    "syntax": ("def make(:", "mine:make", ("fails when it is imported", "SyntaxError", "line 1"), "mend it there"),
    "missing-import": (
        "import no_such_thing_here",
        "mine:make",
        ("an import in it is missing", "no_such"),
        "mend it there",
    ),
    "exits-at-import": (
        "raise SystemExit(3)",
        "mine:make",
        ("fails when it is imported", "SystemExit"),
        "mend it there",
    ),
    "recursion": ("def f(): f()\nf()", "mine:make", ("fails when it is imported", "RecursionError"), "mend it there"),
}
NET = "import torch\nfrom torch import nn\n"
# id -> (the module, more settings, words, words of the fix). Code 64.
MODELS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "fails": (
        "def make(classes): return 1 / 0",
        "",
        ("model.name mine:make failed", "mine.py, line 3"),
        "mend it there",
    ),
    "no-network": ("def make(classes): return 5", "", ("gives no network", "it gives a int"), "return the network"),
    "wants-more": (
        "def make(classes, depth): pass",
        "",
        ("missing a required argument: 'depth'",),
        "correct model.args",
    ),
    "takes-less": (
        "def make(classes): pass",
        "model.args.wide=3",
        ("unexpected keyword argument 'wide'",),
        "model.args",
    ),
    "classes-twice": ("def make(classes): pass", "model.args.classes=3", ("model.args: classes",), "leave it out"),
    "wrong-scores": (
        "def make(classes): return nn.Sequential(nn.Flatten(), nn.Linear(192, classes + 1))",
        "",
        ("gives no network", "[n, 2]"),
        "mend the network",
    ),
    "fails-on-samples": (
        "def make(classes): return nn.Linear(7, classes)",
        "",
        ("its network fails on samples of", "shapes cannot be multiplied"),
        "mend it there",
    ),
    "infinite-mask": (
        "class N(nn.Module):\n    def __init__(self, c):\n        super().__init__(); self.l = nn.Linear(192, c)\n"
        "        self.register_buffer('mask', torch.full((3, 3), float('-inf')).triu(1))\n"
        "    def forward(self, x): return self.l(x.flatten(1))\n"
        "def make(classes): return N(classes)",
        "",
        ("not finite, before its first step", "the buffer mask holds -inf"),
        "persistent=False",
    ),
    "two-in-training": (
        "class N(nn.Module):\n    def __init__(self, c):\n        super().__init__(); self.l = nn.Linear(192, c)\n"
        "    def forward(self, x):\n        y = self.l(x.flatten(1)); return (y, y) if self.training else y\n"
        "def make(classes): return N(classes)",
        "",
        ("it gives a tuple while it trains",),
        "mend",
    ),
    "in-eval-only": (
        "class N(nn.Module):\n    def __init__(self, c):\n        super().__init__(); self.l = nn.Linear(192, c)\n"
        "    def forward(self, x):\n        y = self.l(x.flatten(1)); return y if self.training else y[:, :1]\n"
        "def make(classes): return N(classes)",
        "eval.every_epochs=1",
        ("scores",),
        "mend",
    ),
}


def module(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "mine.py").write_text(text)


SMALL = ("data.image_size=8", "train.global_batch_size=4", "train.micro_batch_size=4")
MORE = {
    "file-shared-by-workers": ("data.loader=workers", "data.workers=1"),
    "one-class-in-training": ("optim.class_weights=balanced",),
    "weight-elsewhere": ("optim.class_weights=[0,1]",),
}
CASES = [
    *(
        rank(
            id=f"own-data-{name}",
            prepare=module(f"{SET}\ndef make(data):\n    {body}\n"),
            line=("data.name=mine:make", *SMALL, *MORE.get(name, ())),
            code=code,
            says=says,
            fix=fix,
        )
        for name, (body, code, says, fix) in DATA.items()
    ),
    *(
        rank(id=f"own-module-{name}", prepare=module(text), line=(f"data.name={value}",), code=64, says=says, fix=fix)
        for name, (text, value, says, fix) in MODULES.items()
    ),
    *(
        rank(
            id=f"own-model-{name}",
            config="data: {samples: 80, image_size: 8, classes: 2}\ntrain: {global_batch_size: 16, epochs: 1}\n",
            prepare=module(NET + text),
            line=("model.name=mine:make", *settings.split()),
            code=64,
            says=says,
            fix=fix,
        )
        for name, (text, settings, says, fix) in MODELS.items()
    ),
    *(
        Case(
            id=f"own-not-run-by-check-{name}",
            door=through_train,
            prepare=module("open('executed', 'w')\n"),
            line=("check", f"{key}.name=mine:make", "eval.target=7"),
            code=64,
            says=("eval.target 7",),
            fix="eval.target",
            row="50",
        )
        for name, key in {"data": "data", "model": "model"}.items()
    ),
]
