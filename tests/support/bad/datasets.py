"""Data sets that are broken, incomplete or hostile, given to one rank (or to `train check`, where that sees it).

Every way in which files, labels, axes and groups go wrong is in tests/train/data; here are some of each kind.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bad.case import MARK, Case, through_rank, through_train
from images import write_classes
from label_tables import rows, write_table
from PIL import Image
from safetensors.torch import save_file

from train.config.load import keep_last_overrides

RUN = ("runs", "runs/*")  # a rank may write into its run's folder
rank = partial(Case, door=through_rank, writes=RUN)
check = partial(Case, door=through_train)
Make = Callable[[Path], object]


class Hostile:
    """What a pickle can hold: a call at load."""

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (MARK, "w")


def arrays(images: Any = None, labels: Any = None, **more: Any) -> Make:
    """d.npz with ten images of two classes, or what is given instead."""
    made = {
        "images": np.zeros((10, 8, 8, 3), np.uint8) if images is None else images,
        "labels": np.arange(10) % 2 if labels is None else labels,
    } | more
    return lambda folder: np.savez(folder / "d.npz", **made)


def tensors(**made: Any) -> Make:
    return lambda folder: torch.save(made, folder / "d.pt")


def written(name: str, data: bytes) -> Make:
    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    return write


def npz_of(entries: dict[str, bytes], **options: Any) -> Make:
    def write(folder: Path) -> None:
        with zipfile.ZipFile(folder / "d.npz", "w", **options) as archive:
            for name, data in entries.items():
                archive.writestr(name, data)

    return write


def cut(make: Make, name: str, keep: int) -> Make:
    def write(folder: Path) -> None:
        make(folder)
        (folder / name).write_bytes((folder / name).read_bytes()[:keep])

    return write


def npy(shape: tuple[int, ...], data: bytes = b"") -> bytes:
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


def pickled(folder: Path) -> None:
    np.savez(folder / "d.npz", images=np.array([Hostile()], dtype=object), labels=np.arange(1))


def hostile(name: str) -> Make:
    return lambda folder: (folder / name).write_bytes(pickle.dumps(Hostile()))


def zipped_hostile(folder: Path) -> None:
    torch.save({"images": Hostile(), "labels": torch.zeros(2)}, folder / "d.pt")


SAFE_HEADER = b'{"images": {"dtype": "U8", "shape": [-1, 8], "data_offsets": [0, 8]}}'
# id -> (row, how it is made, settings, code, words, fix): data.root is the file d.* or the folder that holds it.
Row = tuple[Make, str, int, tuple[str, ...], str]
ARRAYS: dict[str, Row] = {
    "npz-floats-as-classes": (
        arrays(labels=np.linspace(0, 1, 10)),
        "npz d.npz",
        65,
        ("labels are not integers", "float64 [10]"),
        "data.task=regression",
    ),
    "npz-rows-as-classes": (
        arrays(labels=np.eye(2)[np.arange(10) % 2]),
        "npz d.npz",
        65,
        ("labels have other axes than samples", "[10, 2]"),
        "data.task=multi_label",
    ),
    "npz-rows-as-numbers": (
        arrays(labels=np.eye(2)[np.arange(10) % 2]),
        "npz d.npz data.task=regression",
        65,
        ("not one number for each sample", "float64 [10, 2]"),
        "data.task=multi_label",
    ),
    "npz-number-not-finite": (
        arrays(labels=np.array([1.0] * 9 + [np.nan])),
        "npz d.npz data.task=regression",
        65,
        ("the number of sample 9 is not finite", "nan"),
        "remove the sample",
    ),
    "npz-one-number": (
        arrays(labels=np.ones(10)),
        "npz d.npz data.task=regression",
        65,
        ("no two different numbers", "times 1"),
        "look at the labels",
    ),
    "npz-classes-as-label-sets": (
        arrays(),
        "npz d.npz data.task=multi_label",
        65,
        ("no table of 0 and 1", "int64 [10]"),
        "leave data.task=multi_label out",
    ),
    "npz-label-sets-of-shares": (
        arrays(labels=np.full((10, 3), 0.25)),
        "npz d.npz data.task=multi_label",
        65,
        ("neither 0 nor 1", "0.25"),
        "labels > 0.5",
    ),
    "npz-label-without-a-sample": (
        arrays(labels=np.eye(3)[np.arange(10) % 2]),
        "npz d.npz data.task=multi_label data.classes=3",
        65,
        ("1 of 3 labels have no training sample", "column 2"),
        "remove these columns",
    ),
    "npz-other-number-of-labels": (
        arrays(labels=np.eye(2)[np.arange(10) % 2]),
        "npz d.npz data.task=multi_label data.classes=5",
        65,
        ("another number of labels", "5"),
        "data.classes to 2",
    ),
    "npz-missing": (lambda folder: None, "npz nowhere", 66, ("data.root", "nowhere"), "set data.root"),
    "npz-wrong-ending": (written("d.csv", b"1,2"), "npz d.csv", 66, ("not the ending of data.name npz",), "data.root"),
    "npz-of-tensors": (tensors(), "npz d.pt", 66, ("not the ending", "d.pt"), "set data.name to tensor"),
    "npz-is-text": (
        written("d.npz", b"hello"),
        "npz d.npz",
        65,
        ("d.npz is no whole .npz file",),
        "write the file again",
    ),
    "npz-foreign-entry": (
        npz_of({"images.npy": b"x" * 99}),
        "npz d.npz",
        65,
        ("magic string is not correct",),
        "again",
    ),
    "npz-claims-memory": (
        npz_of({"images.npy": npy((10**9, 10**9)), "labels.npy": npy((10,), bytes(10))}),
        "npz d.npz",
        65,
        ("the shape (1000000000, 1000000000), in",),
        "write the file again",
    ),
    "npz-negative-shape": (npz_of({"images.npy": npy((-5, 3))}), "npz d.npz", 65, ("the shape (-5, 3)",), "again"),
    "npz-code-in-the-header": (
        npz_of({"images.npy": b"\x93NUMPY\x01\x00\x30\x00" + f"open({MARK!r}, 'w')".ljust(48).encode()}),
        "npz d.npz",
        65,
        ("d.npz is no whole",),
        "again",
    ),
    "npz-unknown-packing": (
        npz_of({"images.npy": npy((1,), b"x")}, compression=zipfile.ZIP_LZMA),
        "npz d.npz",
        65,
        ("pairs of images and labels", "arrays images"),
        "again",
    ),
    "npz-pickled": (pickled, "npz d.npz", 77, ("d.npz holds pickled objects",), "numpy.savez"),
    "npz-is-a-pickle": (hostile("d.npz"), "npz d.npz", 77, ("d.npz holds pickled objects",), "numpy.savez"),
    "npz-text-labels": (arrays(labels=np.array(["a", "b"] * 5)), "npz d.npz", 65, ("labels has the type",), "again"),
    "npz-labels-too-few": (arrays(labels=np.arange(9) % 2), "npz d.npz", 65, ("10 images, 9 labels",), "again"),
    "npz-gap-in-labels": (
        arrays(labels=np.arange(10) % 2 * 2),
        "npz d.npz data.classes=10",
        65,
        ("no label 1",),
        "without gaps",
    ),
    "npz-no-samples": (
        arrays(images=np.zeros((0, 8, 8, 3), np.uint8), labels=np.zeros(0, int)),
        "npz d.npz",
        65,
        ("there are no samples",),
        "again",
    ),
    "npz-int-images": (
        arrays(images=np.zeros((10, 8, 8), int)),
        "npz d.npz",
        65,
        ("images of this type", "int64"),
        "uint8",
    ),
    "npz-flat-images": (
        arrays(images=np.zeros((10, 64), np.uint8)),
        "npz d.npz",
        65,
        ("these axes", "[10, 64]"),
        "again",
    ),
    "npz-other-size": (
        arrays(),
        "npz d.npz data.image_size=16",
        65,
        ("data.image_size is not", "16 pixels"),
        "leave data.image_size",
    ),
    "npz-splits-differ": (
        lambda folder: np.savez(
            folder / "d.npz",
            x_train=np.zeros((10, 8, 8, 3), np.uint8),
            y_train=np.arange(10) % 2,
            x_test=np.zeros((4, 9, 9, 3), np.uint8),
            y_test=np.arange(4) % 2,
        ),
        "npz d.npz",
        65,
        ("the samples of the splits differ",),
        "again",
    ),
    "npz-nan": (
        arrays(images=np.full((64, 8, 8, 3), np.nan, np.float32), labels=np.arange(64) % 2),
        "npz d.npz",
        65,
        ("holds numbers that are not finite", "in row"),
        "replace or remove",
    ),
    "safetensors-long-header": (
        written("d.safetensors", (2**40).to_bytes(8, "little")),
        "tensor d.safetensors",
        65,
        ("d.safetensors is no whole", "header too large"),
        "again",
    ),
    "safetensors-negative-shape": (
        written("d.safetensors", len(SAFE_HEADER).to_bytes(8, "little") + SAFE_HEADER + bytes(8)),
        "tensor d.safetensors",
        65,
        ("d.safetensors is no whole",),
        "again",
    ),
    "safetensors-cut": (
        cut(
            lambda f: save_file({"images": torch.zeros(10, 3, 8, 8), "labels": torch.zeros(10)}, f / "d.safetensors"),
            "d.safetensors",
            300,
        ),
        "tensor d.safetensors",
        65,
        ("d.safetensors is no whole",),
        "again",
    ),
    "pt-hostile-pickle": (hostile("d.pt"), "tensor d.pt", 77, ("d.pt holds pickled objects",), "safetensors"),
    "pt-hostile-zip": (zipped_hostile, "tensor d.pt", 77, ("d.pt holds pickled objects",), "safetensors"),
    "pt-cut": (
        cut(tensors(images=torch.zeros(10, 3, 8, 8), labels=torch.zeros(10)), "d.pt", 500),
        "tensor d.pt",
        65,
        ("d.pt is no whole",),
        "again",
    ),
    "pt-a-list": (lambda f: torch.save([1, 2, 3], f / "d.pt"), "tensor d.pt", 65, ("a list, and no mapping",), "again"),
    "pt-sparse": (
        tensors(images=torch.zeros(10, 3, 8, 8).to_sparse(), labels=torch.zeros(10, dtype=torch.int64)),
        "tensor d.pt",
        65,
        ("a sparse, nested or quantized",),
        "again",
    ),
}
# Folders of images: id -> as above, with data.root d.
SMALL = "data.image_size=8 model.args.width=4 train.global_batch_size=4 train.micro_batch_size=4"


def folders(**counts: int) -> Make:
    return lambda folder: write_classes(folder / "d", **counts)


def both(*makes: Make) -> Make:
    return lambda folder: [make(folder) for make in makes]


def dark(path: str) -> Make:
    """Images of 16 bits that hold numbers of 8."""
    image = Image.fromarray(np.full((8, 8), 255, np.uint16))
    return lambda folder: [image.save(folder / path / f"{number}.png") for number in range(9)]


FOLDERS: dict[str, tuple[str, Make, str, int, tuple[str, ...], str]] = {
    "missing": ("43", lambda f: None, "check", 66, ("data.root cannot be read", "No such file", "d"), "data.root"),
    "a-file": ("43", written("d", b""), "check", 66, ("data.root cannot be read", "Not a directory"), "data.root"),
    "empty": (
        "43",
        lambda f: (f / "d").mkdir(),
        "check",
        66,
        ("fewer than two class folders", "none"),
        "class folders",
    ),
    "one-class-itself": (
        "43",
        folders(cat=3),
        "check data.root=d/cat",
        66,
        ("d/cat has fewer than two class folders", "none; 3 images directly in it"),
        "data.root=d, if this is one class",
    ),
    "one-class": ("43", folders(cat=3), "check", 66, ("fewer than two class folders", "cat"), "class folders"),
    "an-empty-class": (
        "43",
        folders(cat=9, dog=0),
        "check",
        66,
        ("class folders", "without an image: 1", "dog"),
        "set data.root to a folder of class folders alone",
    ),
    "splits-differ": (
        "43",
        both(lambda f: write_classes(f / "d/train", cat=9, dog=9), lambda f: write_classes(f / "d/val", cat=2, cow=2)),
        "check",
        66,
        ("differ", "dog", "cow"),
        "d/val/cow out of val",
    ),
    "link-in-a-circle": (
        "52",
        both(folders(cat=9, dog=9), lambda f: (f / "d/cat/more").symlink_to("..", target_is_directory=True)),
        "check",
        66,
        ("leads back to a folder above", "more ->"),
        "remove the link",
    ),
    "cache-in-a-file": (
        "",
        both(folders(cat=9, dog=9), written("f", b"")),
        "rank data.classes=2 data.cache=f/c",
        73,
        ("cannot write f/c/", "Not a directory"),
        "data.cache",
    ),
    "cache-among-the-classes": (
        "",
        folders(cat=9, dog=9),
        "rank data.classes=2 data.cache=d/cache",
        64,
        ("data.cache lies inside data.root", "d/cache"),
        "outside of data.root",
    ),
    "classes-wrong": (
        "43",
        folders(cat=9, dog=9),
        "rank data.classes=3",
        65,
        ("2 class folders", "data.classes: 3"),
        "set data.classes to 2",
    ),
    "group-not-found": (
        "",
        folders(cat=9, dog=9),
        "check data.group=video_(\\d+)",
        65,
        ("data.group is not found", "18 of 18"),
        "correct data.group",
    ),
    "one-group": (
        "",
        folders(cat=9, dog=9),
        "check data.group=png",
        65,
        ("all images are one group", "18 images"),
        "smaller groups",
    ),
    "group-in-both-splits": (
        "",
        both(lambda f: write_classes(f / "d/train", cat=9, dog=9), lambda f: write_classes(f / "d/val", cat=2, dog=2)),
        "rank data.group=\\d+",
        65,
        ("2 groups are in both splits", "000"),
        "to one split",
    ),
    "image-truncated": (
        "42",
        both(
            folders(cat=9, dog=9), lambda f: (f / "d/cat/003.png").write_bytes((f / "d/cat/003.png").read_bytes()[:50])
        ),
        "rank data.val_fraction=0",
        65,
        ("cannot be read", "d/cat/003.png"),
        "data.max_bad_images",
    ),
    "image-is-text": (
        "42",
        both(folders(cat=9, dog=9), written("d/dog/001.png", b"no")),
        "rank data.val_fraction=0",
        65,
        ("d/dog/001.png", "no image"),
        "data.max_bad_images",
    ),
    "image-empty": (
        "42",
        both(folders(cat=9, dog=9), written("d/dog/001.png", b"")),
        "rank data.val_fraction=0 data.loader=workers data.workers=0",
        65,
        ("d/dog/001.png",),
        "data.max_bad_images",
    ),
    "image-pipe": (
        "42",
        both(folders(cat=9, dog=9), lambda f: ((f / "d/cat/000.png").unlink(), os.mkfifo(f / "d/cat/000.png"))),
        "rank data.val_fraction=0",
        65,
        ("d/cat/000.png", "no regular file"),
        "data.max_bad_images",
    ),
    "image-too-large": (
        "42",
        both(folders(cat=9, dog=9), written("d/dog/scene.pgm", b"P5 14000 14000 255\n")),
        "rank data.val_fraction=0",
        65,
        ("d/dog/scene.pgm", "196 megapixels, and at most 178 are read"),
        "cut it into tiles, or scale it down",
    ),
    "image-32-bits": (
        "42",
        both(folders(cat=9, dog=9), lambda f: __import__("PIL.Image").Image.new("F", (8, 8)).save(f / "d/cat/x.tiff")),
        "rank data.val_fraction=0",
        65,
        ("x.tiff", "32 bits"),
        "data.max_bad_images",
    ),
    "images-all-black": (
        "",
        both(folders(cat=0, dog=0), dark("d/cat"), dark("d/dog")),
        "rank data.val_fraction=0",
        65,
        ("would all be read as black", "8 images of 16 bits looked at, no value above 255"),
        "with 8 bits",
    ),
    "image-dead-link": (
        "42",
        both(folders(cat=9, dog=9), lambda f: (f / "d/cat/x.png").symlink_to("gone.png")),
        "rank data.val_fraction=0",
        66,
        ("x.png", "it is gone"),
        "put the file back",
    ),
    "more-broken-than-allowed": (
        "42",
        both(folders(cat=9, dog=9), *(written(f"d/dog/00{n}.png", b"") for n in range(3))),
        "rank data.val_fraction=0 data.max_bad_images=2",
        65,
        ("more than 2 image files cannot be read", "d/dog/000.png"),
        "data.max_bad_images",
    ),
    "all-broken": (
        "42",
        both(*(written(f"d/{name}/{n}.png", b"") for name in ("cat", "dog") for n in range(4))),
        "rank data.val_fraction=0 data.max_bad_images=9",
        65,
        ("image files cannot be read",),
        "replace or delete",
    ),
    "checked-broken": (
        "42",
        both(folders(cat=9, dog=9), written("d/dog/001.png", b"no")),
        "data check",
        65,
        ("broken samples (1)", "d/dog/001.png"),
        "data.max_bad_images",
    ),
    "checked-leak": (
        "",
        both(lambda f: write_classes(f / "d/train", cat=9, dog=9), lambda f: write_classes(f / "d/val", cat=2, dog=2)),
        "data check",
        65,
        ("in the training split too (4)", "d/val/cat/000.png = d/train/cat/000.png"),
        "delete one of each pair",
    ),
    "balanced-without-a-class": (
        "",
        both(lambda f: write_classes(f / "d/train", cat=9, dog=9), lambda f: write_classes(f / "d/val", cat=2, dog=2)),
        "rank optim.class_weights=[1,1,1]",
        64,
        ("optim.class_weights has another length", "3 weights", "2 classes"),
        "give 2 numbers",
    ),
}

ABAB = rows("abab")


def listed(lines: Sequence[str] = ABAB, header: str = "path,label", *, images: int | None = None) -> Make:
    """d.csv with these lines, and its images beside it."""
    return lambda folder: write_table(folder, lines, header, "d.csv", images)


# Tables: id -> how it is made, settings (data.root is d.csv), code, words, fix.
TABLES: dict[str, tuple[Make, str, int, tuple[str, ...], str]] = {
    "missing": (lambda folder: None, "", 66, ("data.root cannot be read", "d.csv"), "set data.root to the table"),
    "a-folder": (folders(cat=9), "data.root=d", 66, ("a folder, not a table", "no table in it"), "data.name=folder"),
    "parquet": (
        written("d.parquet", b"PAR1"),
        "data.root=d.parquet",
        64,
        ("does not read .parquet",),
        "save it as CSV",
    ),
    "no-header": (listed(ABAB[1:], ABAB[0]), "", 65, ("has no header line", "line 1: 000.png"), "path,label"),
    "header-alone": (listed([]), "", 65, ("has no row",), "add a line for each image"),
    "no-label-column": (listed(header="path,class"), "", 65, ("no column label",), "data.columns.label=class"),
    "no-such-column": (
        listed(),
        "data.columns.label=kind",
        65,
        ("has no column kind", "columns: path, label"),
        "data.columns.label=label",
    ),
    "nearly-a-column": (
        listed(header="path,diagnosis"),
        "data.columns.label=diagnoses",
        65,
        ("has no column diagnoses",),
        "data.columns.label=diagnosis",
    ),
    "unknown-column": (
        listed(),
        "data.columns.name=x",
        64,
        ("name is no column", "path, label, split"),
        "columns.label",
    ),
    "column-twice": (listed(header="path,label,label"), "", 65, ("has the column label 2 times",), "rename one"),
    "too-few-cells": (listed([*ABAB, "x.png"]), "", 65, ("1 of at least 2 cells", "line 6: x.png"), "quotation marks"),
    "empty-label": (
        listed([*ABAB, "004.png, "], images=5),
        "",
        65,
        ("an empty cell in the column label", "line 6"),
        "fill",
    ),
    "one-class": (listed(rows("aaaa")), "", 65, ("fewer than two classes", "4 images of a"), "another class"),
    "unknown-split": (
        listed(rows("abab", "uvwx"), "path,label,split"),
        "",
        65,
        ("a split that is unknown", "line 2: u"),
        "train, val or test",
    ),
    "untrained-class": (
        listed(rows("aabc", ["train", "val", "train", "val"]), "path,label,split"),
        "",
        65,
        ("a class that no train row has", "c: line 5"),
        "add training images",
    ),
    "image-in-two-splits": (
        listed(["000.png,a,train", "001.png,b,train", "./000.png,a,val"], "path,label,split"),
        "",
        65,
        ("an image in two splits", "lines 2 and 4", "000.png"),
        "one split",
    ),
    "image-with-two-labels": (listed([*ABAB, "000.png,b"]), "", 65, ("two labels", "lines 2 and 6"), "one line"),
    "image-twice": (listed([*ABAB, "000.png,a"]), "", 65, ("an image twice", "lines 2 and 6"), "weight"),
    "group-in-two-splits": (
        listed(rows("abab", ["train"] * 3 + ["val"], "wwxx"), "path,label,split,group"),
        "",
        65,
        ("a group in two splits", "x: train in line 4, val in line 5"),
        "to one split",
    ),
    "weight-with-comma": (
        listed([f"00{number}.png;{'ab'[number]};0,5" for number in range(2)], "path;label;weight"),
        "",
        65,
        ("a weight that is no such number", "line 2: 0,5"),
        "decimal point",
    ),
    "image-missing": (listed(images=3), "", 66, ("1 image that is not there", "line 5", "003.png"), "data.images"),
    "open-quote": (listed([*ABAB, '"x.png,a']), "", 65, ("is no whole table", "line 6"), "quotation marks"),
    "not-utf-8": (written("d.csv", b"path,label\nx.png,\xff\n"), "", 65, ("is no text in UTF-8",), "UTF-8"),
    "null-byte": (written("d.csv", b"path,label\nx.png,a\0\n"), "", 66, ("is not there",), "data.images"),
    "wrong-count": (
        listed(),
        "data.classes=7",
        65,
        ("number of classes in the table", "2 classes"),
        "data.classes to 2",
    ),
    "unclear-labels": (
        listed(rows(["a;b", "b"])),
        "",
        64,
        ("holds ; or |", "line 2: a;b"),
        "data.task=multi_label",
    ),
    "unclear-numbers": (listed(rows(["1.5", "2.5"])), "", 64, ("2 different cells",), "data.task=regression"),
    "masks": (listed(rows(["a.png", "b.png"])), "", 64, ("holds image files",), "segmentation"),
    "no-number": (listed(rows(["1", "x"])), "data.task=regression", 65, ("no number", "line 3: x"), "write a number"),
    "neither-0-nor-1": (
        listed(rows("01", "1x"), "path,cat,dog"),
        "data.columns.label=[cat,dog]",
        65,
        ("neither 0 nor 1", "line 3: x in the column dog"),
        "write 1 for yes",
    ),
    "two-columns-of-classes": (
        listed(rows("01", "10"), "path,cat,dog"),
        "data.columns.label=[cat,dog] data.task=classification",
        64,
        ("one column of labels", "cat, dog"),
        "data.task=multi_label",
    ),
    "task-unsupported": (listed(), "data.task=detection", 64, ("data.task: detection is not supported",), "boxes"),
    "task-unknown": (listed(), "data.task=sorting", 64, ("data.task", "classification, multi_label, regression"), ""),
    "task-of-folders": (
        folders(cat=9, dog=9),
        "data.name=folder data.root=d data.task=regression",
        64,
        ("data.task does not go with data.name: folder",),
        "data.name=table",
    ),
    "metric-of-another-task": (
        listed(rows([1, 2, 3, 4])),
        "data.task=regression eval.metric=macro_f1",
        64,
        ("eval.metric macro_f1 does not go with data.task regression", "mae, r2, loss"),
        "eval.metric=mae",
    ),
    "key-of-another-task": (
        listed(rows([1, 2, 3, 4])),
        "data.task=regression optim.label_smoothing=0.1",
        64,
        ("optim.label_smoothing does not go with data.task regression",),
        "leave optim.label_smoothing out",
    ),
    "columns-of-folders": (
        folders(cat=9, dog=9),
        "data.name=folder data.columns.label=x",
        64,
        ("data.columns",),
        "table",
    ),
}


def _table(name: str, make: Make, words: str, code: int, says: tuple[str, ...], fix: str) -> Case:
    settings = keep_last_overrides(["data.name=table", "data.root=d.csv", "data.image_size=8", *words.split()])
    return check(id=f"table-{name}", prepare=make, line=("check", *settings), code=code, says=says, fix=fix)


def _array(name: str, row: Row) -> Case:
    make, words, code, says, fix = row
    form, root, *more = words.split()
    return rank(
        id=f"data-{name}",
        prepare=make,
        line=(
            f"data.name={form}",
            f"data.root={root}",
            *(("data.image_size=8",) if "data.image_size" not in words else ()),
            *(word for word in more if "=" in word),
        ),
        code=code,
        says=says,
        fix=fix,
        row="51" if code == 77 else "",
    )


def _folder(name: str, row: str, make: Make, words: str, code: int, says: tuple[str, ...], fix: str) -> Case:
    first, *more = words.split()
    line = tuple(keep_last_overrides(["data.name=folder", "data.root=d", *(word for word in more if "=" in word)]))
    if first == "rank":
        line = (*line, *SMALL.split(), "data.augment=none") if "data.classes" in words else (*line, *SMALL.split())
        line = line if "data.classes" in words else (*line, "data.classes=10")
        return rank(id=f"folder-{name}", prepare=make, line=line, code=code, says=says, fix=fix, row=row)
    command = ("data", "check") if first == "data" else ("check",)
    small = ("train.global_batch_size=4", "train.micro_batch_size=4")
    return check(
        id=f"folder-{name}", prepare=make, line=(*command, *line, *small), code=code, says=says, fix=fix, row=row
    )


# Published data sets whose files are there, and are not what was published.
def mnist(images: bytes, labels: bytes) -> Make:
    def write(folder: Path) -> None:
        for side in ("train", "t10k"):
            written(f"d/MNIST/raw/{side}-images-idx3-ubyte", images)(folder)
            written(f"d/MNIST/raw/{side}-labels-idx1-ubyte", labels)(folder)

    return write


def cifar(folder: Path) -> None:
    """Pickles in the places of CIFAR-10, each of which would leave a mark."""
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch", "batches.meta"):
        written(f"d/cifar-10-batches-py/{name}", pickle.dumps(Hostile()))(folder)


def idx(form: int, *shape: int) -> bytes:
    head = b"".join(number.to_bytes(4, "big") for number in (0x800 + form, *shape))
    return head + bytes(int(np.prod(shape)))


PUBLISHED = {
    "cifar-hostile": (
        "51",
        "cifar10",
        cifar,
        ("is not the published file", "data_batch_1", "another md5"),
        "train data fetch",
    ),
    "mnist-cut": (
        "42",
        "mnist",
        mnist(idx(3, 10, 28, 28)[:99], idx(1, 10)),
        ("is not the published file", "train-images"),
        "train data fetch",
    ),
    "mnist-text": ("42", "mnist", mnist(b"hello", idx(1, 10)), ("is not the published file",), "train data fetch"),
    "mnist-fewer-labels": (
        "42",
        "mnist",
        mnist(idx(3, 10, 28, 28), idx(1, 9)),
        ("9 labels for 10 images",),
        "train data fetch",
    ),
    "mnist-large-label": (
        "42",
        "mnist",
        mnist(idx(3, 2, 28, 28), idx(1, 2)[:-1] + b"\x63"),
        ("labels up to 99",),
        "train data fetch",
    ),
}
CASES = [
    *(_array(name, row) for name, row in ARRAYS.items()),
    _array(
        "npz-label-too-large",
        (
            arrays(labels=np.arange(10) % 3),
            "npz d.npz data.classes=2",
            65,
            ("is not below", "label 2"),
            "set data.classes to 3",
        ),
    ),
    *(_folder(name, *row) for name, row in FOLDERS.items()),
    *(_table(name, *row) for name, row in TABLES.items()),
    *(
        rank(
            id=f"published-{name}",
            prepare=make,
            line=(f"data.name={form}", "data.root=d", "data.classes=10"),
            code=65,
            says=says,
            fix=fix,
            row=row,
        )
        for name, (row, form, make, says, fix) in PUBLISHED.items()
    ),
]
