"""An index that somebody else wrote is refused by its field's name, before anything of it is used or written."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tars import data_of, numbered, png, write_tar

from entrypoint import Failure
from train import __main__ as front
from train.data import registry
from train.data.shards import index as shard_index
from train.data.shards import staging

HUGE = (2**63, 10**30, 10**400)
WRONG: dict[str, tuple[Any, ...]] = {
    "version": (None, "3", 2, 4, 3.0, True, [3], *HUGE),
    "groups": (None, "0", -1, 1.5, True, [], ["a"], *HUGE),
    "task": (None, "sorting", 1, [], {"a": 1}, ["classification"]),
    "classes": (None, "ab", {"a": 1}, [], ["a", "a"], ["a", 1], [["a"], ["b"]], [None, "b"], 2, ["a"] * 99),
    "shards": (None, [], {}, "a-00.tar", 5, ["a-00.tar"], [[]], [None]),
}
PATHS = (
    *("../../victim/.bashrc", "../x.tar", "/etc/passwd", "/tmp/x.tar", "a/../../x.tar", "a/b/c.tar", "./a-00.tar", ""),
    *(".", "..", "../", "/", "a//b.tar", ".bashrc", ".git/config", "../.x.tar", "a\0.tar", "lock", "x" * 300 + ".tar"),
    *("a-00.tar/", "\ud800.tar", "~/x.tar/..", "..\\..\\x"),
)
WRONG_OF_SHARD: dict[str, tuple[Any, ...]] = {
    "name": (None, 5, [], ["a-00.tar"], {}, *PATHS),
    "split": (None, "train", 1, [], ["training"], "Training"),
    "size": (None, "30720", -1, 1.5, True, [], float("nan"), float("inf"), *HUGE),
    "modified_ns": (None, "1", 1.5, [], float("nan"), *HUGE),
    "images": (None, "20", -1, 20.0, True, [], float("nan"), *HUGE),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards to train on and one to validate."""
    folder = tmp_path_factory.mktemp("forged")
    for name, first in {"a-00": 0, "a-01": 20, "val-00": 40}.items():
        write_tar(folder / f"{name}.tar", numbered(first, 20))
    shard_index.write_index(folder, processes=1)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


def contents(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def refused(folder: Path, *words: str) -> None:
    """What trains and what copies refuse the index with these words, and write nothing."""
    (folder.parent / "stage").mkdir(exist_ok=True)
    kept = contents(folder.parent)
    for use in (registry.open_splits, lambda data: staging.start_copying(data, folder.parent / "stage")):
        with pytest.raises(Failure) as caught:
            use(data_of(folder))
        assert caught.value.code == 65, caught.value
        assert [word for word in words if word not in str(caught.value)] == [], caught.value
    assert contents(folder.parent) == kept


def change_facts(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    facts = json.loads((folder / "index.json").read_text())
    change(facts)
    (folder / "index.json").write_text(json.dumps(facts))


def with_field(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda facts: facts.update({name: value})


@pytest.mark.parametrize("field", WRONG)
def test_a_field_that_is_missing_or_wrong_is_named(whole: Path, folder: Path, field: str) -> None:
    change_facts(folder, lambda facts: facts.pop(field))
    refused(folder, f"{field} is missing")
    for value in WRONG[field]:
        shutil.copy(whole / "index.json", folder)
        change_facts(folder, with_field(field, value))
        refused(folder, f"index.json: {field}")


@pytest.mark.parametrize("field", WRONG_OF_SHARD)
def test_a_field_of_a_shard_that_is_missing_or_wrong_is_named(whole: Path, folder: Path, field: str) -> None:
    change_facts(folder, lambda facts: facts["shards"][1].pop(field))
    refused(folder, f"shards[1].{field} is missing")
    for value in WRONG_OF_SHARD[field]:
        shutil.copy(whole / "index.json", folder)
        change_facts(folder, lambda facts, value=value: facts["shards"][1].update({field: value}))
        refused(folder, f"index.json: shards[1].{field}")


CONTRADICTIONS: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "a name is there twice": lambda shards: shards[1].update(name=shards[0]["name"]),
    "do not follow each other": lambda shards: shards.reverse(),
    "one has more images than its size can hold": lambda shards: shards[0].update(images=10**9),
    "no image to train on": lambda shards: [shard.update(split="test") for shard in shards],
    "index.npy": lambda shards: shards[0].update(images=21),
}


@pytest.mark.parametrize("words", CONTRADICTIONS)
def test_shards_that_no_folder_can_hold_are_refused(folder: Path, words: str) -> None:
    change_facts(folder, lambda facts: CONTRADICTIONS[words](facts["shards"]))
    refused(folder, words)


def test_a_number_to_predict_has_one_name(folder: Path) -> None:
    change_facts(folder, with_field("task", "regression"))
    refused(folder, "index.json: classes: a number to predict has one name")


TEXTS = {
    "empty": (b"", "index.json"),
    "a list": (b"[]", "version is missing"),
    "200,000 deep": (b"[" * 200_000, "nested too deep"),
    "a number of 5,000 digits": (b'{"version": ' + b"9" * 5000 + b"}", "index.json"),
    "a key twice": (b'{"version": 2, "version": 2}', "the key 'version' is there twice"),
    "no UTF-8": (b"\xff\xfe{", "index.json"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_what_is_no_index_is_refused(folder: Path, name: str) -> None:
    text, words = TEXTS[name]
    (folder / "index.json").write_bytes(text)
    refused(folder, words)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("offset", value) for value in (0, 511, 2**40, 2**64 - 1, 512)),
        *(("length", value) for value in (2**32 - 1, 10**6)),
        *(("label", value) for value in (2, -1, 300_000_000, 2**63 - 1, -(2**63))),
    ],
)
def test_an_entry_out_of_range_is_named(folder: Path, field: str, value: int) -> None:
    entries = np.load(folder / "index.npy")
    entries[field][3] = value
    np.save(folder / "index.npy", entries)
    refused(folder, "index.npy", f"{field} of image ")


ORDERS: dict[str, Callable[[Any], object]] = {
    "out of range": lambda order: order.__setitem__(0, 2**32 - 1),
    "repeated": lambda order: order.__setitem__(0, order[1]),
    "a validation image": lambda order: order.__setitem__(0, 45),
}
RUNS: dict[str, Callable[[Any], object]] = {
    "does not begin": lambda runs: runs.__setitem__(0, 1),
    "does not end": lambda runs: runs.__setitem__(-1, 59),
    "negative": lambda runs: runs.__setitem__(1, -5),
    "past the end": lambda runs: runs.__setitem__(1, 2**62),
    "over two shards": lambda runs: runs.__setitem__(1, 21),
}


@pytest.mark.parametrize(
    ("name", "change"),
    [*(("order.npy", each) for each in ORDERS.values()), *(("runs.npy", each) for each in RUNS.values())],
)
def test_an_order_or_runs_that_cannot_be_are_refused(folder: Path, name: str, change: Callable[[Any], object]) -> None:
    array = np.load(folder / name)
    change(array)
    np.save(folder / name, array)
    refused(folder, name)


def zipped(path: Path) -> Path:
    np.savez(path.with_suffix(".npz"), path=np.zeros(3))
    return path.with_suffix(".npz")


def npy(descr: str, shape: str, more: bytes = b"") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + more


ARRAYS: dict[str, Callable[[Path], object]] = {
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a device": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "an archive": lambda path: shutil.copy(zipped(path), path),
    "a pickle": lambda path: np.save(path, np.array([{}], object), allow_pickle=True),
    "10^14 entries": lambda path: path.write_bytes(npy("'<u4'", f"({10**14},)")),
    "a negative length": lambda path: path.write_bytes(npy("'<u4'", "(-1,)")),
    "brackets": lambda path: path.write_bytes(npy("(" * 40, "(1,)")),
    "floats": lambda path: np.save(path, np.zeros(60)),
    "two axes": lambda path: np.save(path, np.load(path)[:, None]),
    "none": lambda path: np.save(path, np.load(path)[:0]),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["index.npy", "runs.npy", "order.npy"])
def test_an_array_of_another_kind_is_neither_waited_for_nor_read(whole: Path, folder: Path, name: str) -> None:
    for change in ARRAYS.values():
        change(folder / name)
        refused(folder, name)
        (folder / name).rmdir() if (folder / name).is_dir() else (folder / name).unlink(missing_ok=True)
        shutil.copy(whole / name, folder)


def of_task(folder: Path, labels: Iterator[str], ending: str) -> Path:
    for number in range(2):
        members = {}
        for row in range(8):
            members |= {f"{row}.png": png(row), f"{row}.{ending}": next(labels).encode()}
        write_tar(folder / f"a-{number}.tar", members)
    shard_index.write_index(folder, processes=1)
    return folder


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300])
def test_a_number_to_predict_that_32_bits_cannot_hold_is_refused(tmp_path: Path, value: float) -> None:
    folder = of_task(tmp_path / "data", (f"{number}.5" for number in range(99)), "cls")
    entries = np.load(folder / "index.npy")
    entries["label"][3] = np.array(value).view(np.int64)
    np.save(folder / "index.npy", entries)
    refused(folder, "index.npy", "label of image 3")


@pytest.mark.parametrize("sets", [np.zeros((1, 1), np.uint8), np.zeros((9, 2), np.uint8), np.zeros((9, 1), np.int8)])
def test_sets_of_labels_of_another_kind_are_refused(tmp_path: Path, sets: Any) -> None:
    folder = of_task(tmp_path / "data", (json.dumps({"labels": [0, row % 3]}) for row in range(99)), "json")
    np.save(folder / "label_sets.npy", sets)
    refused(folder)


@pytest.mark.parametrize("name", ["../../victim/.bashrc", "{root}/victim/.bashrc"])
def test_no_copy_replaces_or_removes_a_file_outside(tmp_path: Path, folder: Path, name: str) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / ".bashrc").write_text("mine")
    name = name.format(root=tmp_path)
    change_facts(folder, lambda facts: facts["shards"][0].update(name=name))
    refused(folder, "shards[0].name is ", "not the name of a tar file in the folder, or in a folder in it")
    assert (tmp_path / "victim" / ".bashrc").read_text() == "mine"


def test_a_shard_that_is_no_regular_file_is_refused(folder: Path) -> None:
    (folder / "a-01.tar").unlink()
    (folder / "a-01.tar").symlink_to("/dev/zero")
    with pytest.raises(Failure, match="not a regular file") as caught:
        registry.open_splits(data_of(folder))
    assert caught.value.code == 65


LABELS = {
    "300,000,000": ("cls", "300000000", "too large for the number of a class"),
    "5,000 digits": ("cls", "9" * 5000, "too large for the number of a class"),
    "nested": ("json", "[" * 200_000, "has no label"),
    "a megabyte": ("cls", "x" * (2**20 + 1), "a.cls: it has 1,048,577 bytes"),
    "a megabyte of JSON": ("json", '{"label": 1}' + " " * 2**20, "a.json: it has 1,048,588 bytes"),
}


@pytest.mark.parametrize("name", LABELS)
def test_a_label_that_would_take_the_memory_is_refused(tmp_path: Path, name: str) -> None:
    ending, label, words = LABELS[name]
    write_tar(tmp_path / "0.tar", {"a.png": png(1), f"a.{ending}": label.encode()})
    with pytest.raises(Failure, match=words) as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert (caught.value.code, (tmp_path / "index.json").exists()) == (65, False)
    assert len(str(caught.value)) < 1000


def header(kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


HEADERS = {
    "2^62 bytes of names": header(tarfile.XHDTYPE, 2**62),
    "a long name of 2^62 bytes": header(tarfile.GNUTYPE_LONGNAME, 2**62),
    "3,000 headers of headers": (header(tarfile.XHDTYPE, 11) + b"11 path=abc".ljust(512, b"\0")) * 3000,
    "a member of 2^62 bytes": header(tarfile.REGTYPE, 2**62),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_claims_anything_is_a_damaged_shard(tmp_path: Path, name: str) -> None:
    (tmp_path / "0.tar").write_bytes(HEADERS[name] + bytes(1024))
    with pytest.raises(Failure, match="a shard is damaged") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert caught.value.code == 65


def test_a_class_twice_in_classes_txt_is_refused(folder: Path) -> None:
    (folder / "classes.txt").write_text("crane\ncrane\n")
    with pytest.raises(Failure, match="has a class twice") as caught:
        shard_index.write_index(folder, processes=1)
    assert (caught.value.code, caught.value.found) == (65, "crane")


@pytest.mark.timeout(60)
def test_a_pipe_as_classes_txt_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "classes.txt")
    with pytest.raises(Failure, match="not a regular file") as caught:
        shard_index.write_index(folder, processes=1)
    assert caught.value.code == 65


def test_hidden_shards_are_indexed_read_and_copied(folder: Path, tmp_path: Path) -> None:
    for name in (".a-02.tar", ".more/a-03.tar", "...more/..a-04.tar"):
        write_tar(folder / name, numbered(100, 20))
    shard_index.write_index(folder, processes=1)
    index = shard_index.read_index(folder)
    assert (len(index.shards), len(index.entries)) == (6, 120)
    splits = registry.open_splits(data_of(folder))
    assert len(splits.training.labels) == 100
    (tmp_path / "stage").mkdir()
    plan = staging.StagePlan(shards=6, total=6, num_bytes=0, total_bytes=0, keep_free=0)
    warnings: list[str] = []
    staging.copy_shards(index, tmp_path / "stage", plan, warnings.append)
    assert (warnings, (tmp_path / "stage/.more/a-03.tar").is_file()) == ([], True)


def test_files_of_macos_beside_shards_are_left_out_and_counted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("._a-00.tar", "__MACOSX/._a-01.tar"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X")
    assert front.run_command(["data", "index", str(folder)], {"ENTRYPOINT_DEVICE": "cpu"}) == 0
    printed = capsys.readouterr().out
    assert ("3 tar files" in printed, "2 of macOS, which are no tars: ._a-00.tar, __MACOSX/._a-01.tar" in printed) == (
        True,
        True,
    )
    assert len(shard_index.read_index(folder).shards) == 3


def test_a_folder_of_files_of_macos_alone_has_no_shards(tmp_path: Path) -> None:
    (tmp_path / "._a.tar").write_bytes(b"\0\5\x16\7")
    with pytest.raises(Failure, match=r"\._a\.tar, which macOS writes beside a tar") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert caught.value.code == 66


@pytest.mark.parametrize("line", [["check"], ["data", "check"]])
def test_a_user_reads_one_error_with_the_field(
    folder: Path, line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    change_facts(folder, lambda facts: facts["shards"][1].update(name="../../victim/.bashrc"))
    settings = ("data.name=shards", f"data.root={folder}", "data.image_size=8", "data.classes=2")
    assert front.run_command([*line, *settings], {"ENTRYPOINT_DEVICE": "cpu"}) == 65
    message = capsys.readouterr().err
    assert (message.count("ERROR[65]"), "shards[1].name is '../../victim/.bashrc'" in message) == (1, True)
    assert "Traceback" not in message
