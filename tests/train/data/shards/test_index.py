"""An index of shards holds their labels and groups, and one that somebody else wrote is checked before use."""

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
from tars import Members, data_of, numbered, png, write_tar

from entrypoint import Failure, file_writer
from train import __main__ as front
from train import file_lock
from train.data import registry, shard_labels
from train.data.shards import index as shard_index
from train.data.shards import staging


@pytest.mark.parametrize(
    ("suffix", "texts"),
    [
        ("cls", ["3", "1"]),
        ("json", ['{"label": 3, "caption": "x"}', '{"cls": 1}']),
        ("txt", ["3\n", " 1"]),
    ],
)
def test_labels_may_be_written_in_several_ways(tmp_path: Path, suffix: str, texts: list[str]) -> None:
    members = {"x/a.png": png(1), f"x/a.{suffix}": texts[0].encode(), f"x/b.{suffix}": texts[1].encode()}
    write_tar(tmp_path / "0.tar", members | {"x/b.png": png(2)})
    index = shard_index.write_index(tmp_path, processes=1)
    assert index.entries["label"].tolist() == [3, 1]
    assert index.labels.classes == ("0", "1", "2", "3")


def test_labels_may_be_names(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", {"a.png": png(1), "a.cls": b"dog", "b.png": png(2), "b.cls": b"cat"})
    index = shard_index.write_index(tmp_path, processes=1)
    assert (index.labels.classes, index.entries["label"].tolist()) == (("cat", "dog"), [1, 0])


def test_numbers_get_their_names_from_classes_txt(folder: Path) -> None:
    (folder / shard_labels.CLASSES_FILE).write_text("cat\ndog\n")
    assert shard_index.write_index(folder, processes=1).labels.classes == ("cat", "dog")


def test_several_processes_write_the_same_index(folder: Path) -> None:
    alone = shard_index.read_index(folder).entries.tobytes()
    assert shard_index.write_index(folder, processes=2).entries.tobytes() == alone


def test_an_entry_takes_24_bytes() -> None:
    assert shard_index.ENTRY.itemsize == 24


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ({"a.png": png(1)}, "no label"),
        ({"a.png": png(1), "a.cls": b"1", "b.png": png(1), "b.cls": b"cat"}, "others are names"),
    ],
    ids=["no label", "mixed"],
)
def test_labels_that_cannot_be_used_are_refused(tmp_path: Path, members: Members, says: str) -> None:
    write_tar(tmp_path / "0.tar", members)
    with pytest.raises(Failure, match=says) as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert caught.value.code == 65


@pytest.mark.parametrize("kept", [700, 10_000, -10_240], ids=["in an image", "in the middle", "without its end"])
def test_a_shard_that_is_cut_is_refused_when_it_is_indexed(tmp_path: Path, kept: int) -> None:
    path = write_tar(tmp_path / "0.tar", numbered(0, 20))
    content = path.read_bytes()
    end = content.rindex(b"0019.cls") + 1024
    path.write_bytes(content[:kept] if kept > 0 else content[:end])
    with pytest.raises(Failure, match="a shard is damaged") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert caught.value.code == 65


@pytest.mark.parametrize("members", [{}, {"a.txt": b"no image"}], ids=["empty", "no image"])
def test_shards_without_an_image_to_train_on_are_refused(tmp_path: Path, members: Members) -> None:
    write_tar(tmp_path / "0.tar", members)
    write_tar(tmp_path / "val-0.tar", numbered(0, 2))
    with pytest.raises(Failure, match="no image to train on") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert caught.value.code == 66


def test_images_without_a_group_are_groups_by_themselves(tmp_path: Path) -> None:
    members = {}
    for number in range(20):
        group = ', "group": "a"' if number < 5 else ""
        members |= {
            f"{number:02d}.json": f'{{"label": {number % 2}{group}}}'.encode(),
            f"{number:02d}.png": png(number),
        }
    write_tar(tmp_path / "a.tar", members)
    groups = shard_index.write_index(tmp_path, processes=1).groups
    assert groups is not None
    assert (len(set(groups[:5].tolist())), len(set(groups.tolist()))) == (1, 16)


def test_a_group_beside_the_label_of_another_member_counts_and_is_not_passed_over(tmp_path: Path) -> None:
    members = {}
    for number in range(4):
        members |= {
            f"{number}.cls": b"0",
            f"{number}.json": b'{"group": "%d"}' % (number // 2),
            f"{number}.png": png(1),
        }
    write_tar(tmp_path / "a.tar", members)
    lines: list[str] = []
    groups = shard_index.write_index(tmp_path, processes=1, say=lines.append).groups
    assert groups is not None
    assert (groups.tolist(), lines) == ([0, 0, 1, 1], [])


def test_a_group_in_two_splits_of_shards_is_refused(tmp_path: Path) -> None:
    for name in ("train", "val"):
        write_tar(tmp_path / f"{name}.tar", {"0.json": b'{"label": 0, "group": "patient-7"}', "0.png": png(1)})
    with pytest.raises(Failure, match="groups are in both splits, training and validation") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert (caught.value.code, caught.value.found) == (65, "patient-7")


def hidden_files(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("link_target", ["file", "nothing"])
def test_an_index_is_written_through_no_link(tmp_path: Path, link_target: str) -> None:
    """The links have all names that a writer with fixed temporary names could use."""
    folder, other = tmp_path / "data", tmp_path / "other"
    write_tar(folder / "a.tar", numbered(0, 20))
    if link_target == "file":
        other.write_text("another user's")
    for name in shard_index.INDEX_FILES:
        for link in (f"{name}.part", f"{name}.tmp", f".{name}.{os.getpid()}", f".tmp-{name}"):
            (folder / link).symlink_to(other)
    assert len(shard_index.write_index(folder, processes=1).entries) == 20
    assert (other.read_text() if other.exists() else None) == ("another user's" if link_target == "file" else None)


@pytest.mark.parametrize("name", shard_index.INDEX_FILES)
def test_an_index_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    write_tar(tmp_path / "data" / "a.tar", numbered(0, 20))
    (tmp_path / "other").write_text("another user's")
    (tmp_path / "data" / name).symlink_to(tmp_path / "other")
    with pytest.raises(Failure, match=name) as caught:
        shard_index.write_index(tmp_path / "data", processes=1)
    assert (caught.value.code, (tmp_path / "other").read_text()) == (73, "another user's")


def test_an_index_names_the_process_that_packs_there(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", numbered(0, 20))
    lock = file_lock.acquire_lock(tmp_path / shard_index.LOCK_NAME)
    assert lock is not None
    with lock.held(), pytest.raises(Failure, match="another process writes") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert (caught.value.code, caught.value.found and f"process {os.getpid()}" in caught.value.found) == (73, True)


def test_what_a_killed_indexer_left_is_removed_and_other_files_stay(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", numbered(0, 20))
    left = file_writer.temporary_path(tmp_path / shard_index.ENTRIES_FILE)
    others = [".tmp-mine", ".tmp-index.npy", ".tmp-photos-0123456789abcdef"]
    for name in (left.name, *others):
        (tmp_path / name).write_text("half")
    shard_index.write_index(tmp_path, processes=1)
    assert sorted(hidden_files(tmp_path)) == sorted(others)


HUGE = (2**63, 10**30, 10**400)
WRONG_FIELDS: dict[str, tuple[Any, ...]] = {
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
WRONG_FIELDS_OF_SHARD: dict[str, tuple[Any, ...]] = {
    "name": (None, 5, [], ["a-00.tar"], {}, *PATHS),
    "split": (None, "train", 1, [], ["training"], "Training"),
    "size": (None, "30720", -1, 1.5, True, [], float("nan"), float("inf"), *HUGE),
    "modified_ns": (None, "1", 1.5, [], float("nan"), *HUGE),
    "images": (None, "20", -1, 20.0, True, [], float("nan"), *HUGE),
}


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards to train on and one to validate."""
    folder = tmp_path_factory.mktemp("forged")
    for name, first in {"a-00": 0, "a-01": 20, "val-00": 40}.items():
        write_tar(folder / f"{name}.tar", numbered(first, 20))
    shard_index.write_index(folder, processes=1)
    return folder


@pytest.fixture
def folder(indexed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(indexed, tmp_path / "data"))


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


@pytest.mark.parametrize("field", WRONG_FIELDS)
def test_a_field_that_is_missing_or_wrong_is_named(indexed: Path, folder: Path, field: str) -> None:
    change_facts(folder, lambda facts: facts.pop(field))
    refused(folder, f"{field} is missing")
    for value in WRONG_FIELDS[field]:
        shutil.copy(indexed / "index.json", folder)
        change_facts(folder, with_field(field, value))
        refused(folder, f"index.json: {field}")


@pytest.mark.parametrize("field", WRONG_FIELDS_OF_SHARD)
def test_a_field_of_a_shard_that_is_missing_or_wrong_is_named(indexed: Path, folder: Path, field: str) -> None:
    change_facts(folder, lambda facts: facts["shards"][1].pop(field))
    refused(folder, f"shards[1].{field} is missing")
    for value in WRONG_FIELDS_OF_SHARD[field]:
        shutil.copy(indexed / "index.json", folder)
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


WRONG_ARRAYS: dict[str, Callable[[Path], object]] = {
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
def test_an_array_of_another_kind_is_neither_waited_for_nor_read(indexed: Path, folder: Path, name: str) -> None:
    for change in WRONG_ARRAYS.values():
        change(folder / name)
        refused(folder, name)
        (folder / name).rmdir() if (folder / name).is_dir() else (folder / name).unlink(missing_ok=True)
        shutil.copy(indexed / name, folder)


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


LARGE_LABELS = {
    "300,000,000": ("cls", "300000000", "too large for the number of a class"),
    "5,000 digits": ("cls", "9" * 5000, "too large for the number of a class"),
    "nested": ("json", "[" * 200_000, "has no label"),
    "a megabyte": ("cls", "x" * (2**20 + 1), "a.cls: it has 1,048,577 bytes"),
    "a megabyte of JSON": ("json", '{"label": 1}' + " " * 2**20, "a.json: it has 1,048,588 bytes"),
}


@pytest.mark.parametrize("name", LARGE_LABELS)
def test_a_label_that_would_take_the_memory_is_refused(tmp_path: Path, name: str) -> None:
    ending, label, words = LARGE_LABELS[name]
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
