"""Each image is found in tars of other programs, what is passed over is said, and a damaged tar is refused."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from processes import TIMEOUT_S
from tars import Members, data_of, png, write_tar

from entrypoint import Failure
from train import __main__ as front
from train.data import registry
from train.data.shards import index as shard_index
from train.data.shards import members as shard_members
from train.data.shards.index import ShardIndex
from train.data.shards.source import ShardSource


def indexed(folder: Path) -> tuple[ShardIndex, str]:
    """The index of a folder, and the lines that are said."""
    lines: list[str] = []
    index = shard_index.write_index(folder, processes=1, say=lines.append)
    return index, "\n".join(lines)


def contents(folder: Path) -> list[tuple[int, int]]:
    """The first value and the label of each image of indexed shards, sorted."""
    source = registry.open_splits(data_of(folder, val_fraction=0.0)).training
    values = source.read(np.arange(len(source.labels)))[:, 0, 0, 0].tolist()
    return sorted(zip(values, source.labels.tolist(), strict=True))


def refused(folder: Path, *words: str) -> None:
    with pytest.raises(Failure) as caught:
        shard_index.write_index(folder, processes=1)
    assert (caught.value.code, [word for word in words if word not in str(caught.value)]) == (65, []), caught.value
    assert not (folder / "index.json").exists()


def samples(names: list[str], image: str = ".png", label: str = ".cls") -> Members:
    """An image and a label for each name: value and class are its number."""
    members: Members = {}
    for number, name in enumerate(names):
        members |= {name + image: png(number), name + label: str(number).encode()}
    return members


def labels_or_code(content: bytes) -> list[str] | int:
    """The labels of all images of a shard, if nothing is passed over; else the exit code of the refusal."""
    skipped: shard_members.Skipped = {}
    try:
        images = shard_members.read_images(Path("a.tar"), io.BytesIO(content), len(content), skipped)
    except Failure as failure:
        return int(failure.code)
    return [] if skipped else [str(label) for *_, label, _ in images]


def linked(path: Path, members: Members, links: dict[str, str], kind: bytes) -> None:
    write_tar(path, members)
    with tarfile.open(path, "a") as archive:
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)


EXPECTED = [(number, number) for number in range(4)]


@pytest.mark.parametrize(
    "names",
    [
        ["22.00", "22.01", "22.02", "22.03"],
        ["v1.2/a.b", "v1.2/a.c", "v1.2/b", "v1.2/b.a"],
        ["a", "a.b", "a.b.c", "a.b.c.d"],
        [f"./images/{number}.JPEG.{number}" for number in range(4)],
    ],
)
@pytest.mark.parametrize("image", [".png", ".PNG", ".v1.png"])
def test_names_with_dots_are_samples_of_their_own(tmp_path: Path, names: list[str], image: str) -> None:
    write_tar(tmp_path / "a.tar", samples(names, image))
    assert indexed(tmp_path)[1] == ""
    assert contents(tmp_path) == EXPECTED


@pytest.mark.parametrize(
    "order",
    [sorted, lambda members: sorted(members, key=lambda name: name[::-1]), lambda members: [*members][::-1]],
    ids=["by name", "by ending", "reversed"],
)
def test_members_in_any_order_belong_to_their_samples(tmp_path: Path, order: Callable[[Members], list[str]]) -> None:
    members = samples(["0", "1", "2", "3"])
    write_tar(tmp_path / "a.tar", {name: members[name] for name in order(members)})
    indexed(tmp_path)
    assert contents(tmp_path) == EXPECTED


@pytest.mark.parametrize("other", [".depth.png", ".a.mask.PNG", ".jpg"])
@pytest.mark.parametrize("comes_first", [True, False])
def test_a_second_image_of_a_sample_is_passed_over_and_said(tmp_path: Path, other: str, comes_first: bool) -> None:
    members: Members = {}
    for number in range(4):
        pair = {f"{number}{other}": png(100), f"{number}.png": png(number)}
        members |= {f"{number}.cls": b"%d" % number} | (pair if comes_first else dict([*pair.items()][::-1]))
    write_tar(tmp_path / "a.tar", members)
    printed = indexed(tmp_path)[1]
    if other == ".jpg" and comes_first:  # as plain as .png: the first counts
        assert ".png (4, such as a.tar:0.png)" in printed
    else:
        assert f"{other.lower()} (4, such as a.tar:0{other})" in printed
        assert contents(tmp_path) == EXPECTED


@pytest.mark.parametrize(("kind", "option"), [(tarfile.LNKTYPE, "--hard-dereference"), (tarfile.SYMTYPE, "tar -h")])
def test_links_are_counted_and_named_with_the_option_of_tar(tmp_path: Path, kind: bytes, option: str) -> None:
    links = {"4.cls": "0.cls", "4.png": "0.png"}
    linked(tmp_path / "a.tar", samples(["0", "1", "2", "3"]), links, kind)
    index, printed = indexed(tmp_path)
    assert (len(index.entries), "2 members: " in printed, option in printed, "a.tar:4.cls" in printed) == (
        4,
        True,
        True,
        True,
    )


def test_an_image_whose_label_is_a_link_is_refused_with_the_link(tmp_path: Path) -> None:
    linked(tmp_path / "a.tar", samples(["0"]) | {"1.png": png(1)}, {"1.cls": "0.cls"}, tarfile.LNKTYPE)
    refused(tmp_path, "has no label", "1.png", "hard links", "a.tar:1.cls", "--hard-dereference")


def test_shards_of_links_alone_say_why_they_hold_no_image(tmp_path: Path) -> None:
    linked(tmp_path / "a.tar", {}, {"0.cls": "/data/0.cls", "0.png": "/data/0.png"}, tarfile.SYMTYPE)
    with pytest.raises(Failure, match=r"no image to train on[\s\S]*2 members: symbolic links") as caught:
        shard_index.write_index(tmp_path, processes=1)
    assert caught.value.code == 66


def test_all_members_that_are_passed_over_are_counted_by_what_they_are(tmp_path: Path) -> None:
    members = samples(["0"]) | {"0.json": b"{}", "0.npy": b"x", "1.npy": b"x", "2.cls": b"2", "._0.png": b"x"}
    members["README"] = b"x"
    linked(tmp_path / "a.tar", members, {"pipe": ""}, tarfile.FIFOTYPE)
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        folder = tarfile.TarInfo("x")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    printed = indexed(tmp_path)[1]
    assert printed.startswith("passed over    8 members: .npy (2, such as a.tar:0.npy), ")
    for words in (
        ".json (1, such as a.tar:0.json)",
        ".cls without an image (1, such as a.tar:2.cls)",
        "hidden files (1, such as a.tar:._0.png)",
        "members without an ending (1, such as a.tar:README)",
        "devices, pipes and others (1, such as a.tar:pipe)",
        "folders (1, such as a.tar:x)",
    ):
        assert words in printed


def test_a_user_reads_once_what_all_shards_pass_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write_tar(tmp_path / f"{name}.tar", samples(["0", "1"]) | {"0.npy": b"x"})
    (tmp_path / "c.tar.gz").touch()
    write_tar(tmp_path / "d/e/f.tar", samples(["0"]))
    assert front.run_command(["data", "index", str(tmp_path)], {"ENTRYPOINT_DEVICE": "cpu"}) == 0
    printed = capsys.readouterr().out
    assert printed.count("passed over    2 members: .npy (2, such as a.tar:0.npy)\n") == 1
    assert "left out       1 compressed, in which no image can be read alone: c.tar.gz" in printed
    assert "left out       1 in deeper folders: d/e/f.tar" in printed


LABELS = {
    "empty": (b"", "the label is empty"),
    "only a line break": (b"\n", "the label is empty"),
    "several lines": (b"cat\ndog", "several lines"),
    "a block of zeros": (b"\0", "a zero byte"),
    "Latin-1": (b"caf\xe9", "utf-8"),
    "UTF-16": ("cat".encode("utf-16"), "utf-8"),
}


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("ending", [".cls", ".txt"])
def test_a_label_that_names_no_class_is_refused_by_its_member(tmp_path: Path, name: str, ending: str) -> None:
    content, words = LABELS[name]
    write_tar(tmp_path / "a.tar", samples(["0", "1"]) | {"2.png": png(2), f"2{ending}": content})
    refused(tmp_path, f"a.tar: 2{ending}", words)


ROWS = {
    "ones and zeros": ["[1, 0, 0]", "[0, 1, 0]", "[0, 0, 1]"],
    "several ones": ["[1, 0, 1]", "[0, 1, 1]"],
    "of two classes": ["[1, 0]", "[0, 1]"],
    "as numbers with a fraction": ["[1.0, 0.0]", "[0.0, 1.0]"],
    "shares": ["[0.9, 0.1]", "[0.2, 0.8]"],
    "as truth values": ["[true, false]", "[false, true]"],
    "as texts": ['["1", "0", "0"]', '["0", "1", "0"]'],
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_with_a_place_for_each_class_is_no_list_of_classes(tmp_path: Path, name: str) -> None:
    members: Members = {}
    for number, row in enumerate(ROWS[name]):
        members |= {f"{number}.json": f'{{"label": {row}}}'.encode(), f"{number}.png": png(number)}
    write_tar(tmp_path / "a.tar", members)
    refused(tmp_path, "ones")


@pytest.mark.parametrize("numbers", [[5_000_123, 5_000_124], [204_523, 100_234], [1000, 1]])
def test_numbers_of_another_list_make_no_class_for_each_number_below(tmp_path: Path, numbers: list[int]) -> None:
    members: Members = {}
    for number in numbers:
        members |= {f"{number}.png": png(1), f"{number}.cls": str(number).encode()}
    write_tar(tmp_path / "a.tar", members)
    refused(tmp_path, str(max(numbers)), "classes.txt", "data.task=regression")


def test_numbers_from_one_on_are_said(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar",
        {
            f"{number}.{ending}": png(1) if ending == "png" else b"%d" % number
            for number in (1, 2, 3)
            for ending in ("png", "cls")
        },
    )
    index, printed = indexed(tmp_path)
    assert index.labels.classes == ("0", "1", "2", "3")
    assert "1 of 4 classes have no image: 0. The first class has the number 0" in printed


def test_a_class_for_each_image_is_said(tmp_path: Path) -> None:
    write_tar(
        tmp_path / "a.tar",
        {
            f"{number}.{ending}": png(1) if ending == "png" else b"a photo of %d cats" % number
            for number in range(20)
            for ending in ("png", "txt")
        },
    )
    assert "20 classes for 20 images: are the labels captions" in indexed(tmp_path)[1]


@pytest.mark.parametrize("text", ["a\n\nb\n", "\na\nb\n", "a\n \nb", ""])
def test_an_empty_line_among_the_class_names_is_refused(tmp_path: Path, text: str) -> None:
    write_tar(tmp_path / "a.tar", samples(["0", "1"]))
    (tmp_path / "classes.txt").write_text(text)
    refused(tmp_path, "classes.txt has an empty line")


@pytest.mark.parametrize("content", [b"a\nb\n\n\n", b"a\r\nb\r\n", b"\xef\xbb\xbfa\nb"])
def test_empty_lines_at_the_end_and_marks_of_windows_are_no_names(tmp_path: Path, content: bytes) -> None:
    write_tar(tmp_path / "a.tar", samples(["0", "1"]))
    (tmp_path / "classes.txt").write_bytes(content)
    assert indexed(tmp_path)[0].labels.classes == ("a", "b")


# Archives that follow each other, members twice, and zeros where members were.
def large_samples() -> Members:
    """Eight samples, each of which is longer than the zeros with which tar fills its last record."""
    noise = np.random.default_rng(0)
    members: Members = {}
    for number in range(8):
        content = png(number) + noise.bytes(11_000)
        members |= {f"{number}.png": content, f"{number}.cls": str(number).encode()}
    return members


@pytest.mark.parametrize("names", [["a", "b", "c", "d"], ["0", "1", "2", "3"]])
@pytest.mark.parametrize("zeros", ["record", "two blocks"])
def test_an_archive_behind_another_is_read_too(tmp_path: Path, names: list[str], zeros: str) -> None:
    first = write_tar(tmp_path / "x", samples(["0", "1", "2", "3"])).read_bytes()
    if zeros == "two blocks":  # as Go and Rust write them
        first = first.rstrip(bytes(1))
        first += bytes(-len(first) % 512 + 1024)
    second = write_tar(tmp_path / "x", samples(names)).read_bytes()
    (tmp_path / "a.tar").write_bytes(first + second)
    index, printed = indexed(tmp_path)
    assert (len(index.entries), printed) == (8, "")
    assert contents(tmp_path) == sorted(2 * EXPECTED)


def test_of_a_member_twice_the_later_counts_and_it_is_said(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", samples(["0", "1", "2", "3"]) | {"3.png": png(99), "3.cls": b"0"})
    with tarfile.open(tmp_path / "a.tar", "a") as archive:
        for name, content in {"3.png": png(3), "3.cls": b"3"}.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    assert "members that a later one of the same name replaces (2, such as a.tar:3.png)" in indexed(tmp_path)[1]
    assert contents(tmp_path) == EXPECTED


def test_no_page_of_zeros_loses_an_image_without_a_word(tmp_path: Path) -> None:
    """Whatever block or page of the file was never written: a refusal, or as many images as before."""
    content = write_tar(tmp_path / "a.tar", large_samples()).read_bytes()
    end = content.rindex(b"7.cls") // 512 * 512 + 1024
    for length in (512, 4096):
        for begin in range(0, end, length):
            result = labels_or_code(content[:begin] + bytes(length) + content[begin + length :])
            assert result in (65, [*"01234567"]), (begin, length)


def test_zeros_at_the_end_of_a_shard_are_refused(tmp_path: Path) -> None:
    content = write_tar(tmp_path / "a.tar", large_samples()).read_bytes()
    end = content.rindex(b"7.cls") // 512 * 512 + 1024
    for begin in range(0, end, 512):
        assert labels_or_code(content[:begin] + bytes(len(content) - begin)) == 65
    assert labels_or_code(content) == [*"01234567"]


def test_more_zeros_than_tar_writes_are_refused_with_the_way_to_keep_the_shard(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", samples(["0", "1", "2", "3"]))
    size = path.stat().st_size
    os.truncate(path, size + 10_240)
    refused(tmp_path, "a shard is damaged", f"truncate -s {size} {path}")
    os.truncate(path, size)
    assert len(indexed(tmp_path)[0].entries) == 4


def test_an_empty_file_is_refused_and_an_empty_tar_is_said(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", samples(["0", "1"]))
    write_tar(tmp_path / "b.tar", {})
    assert indexed(tmp_path)[1] == "warning: 1 shards hold no image: b.tar"
    (tmp_path / "b.tar").write_bytes(b"")
    (tmp_path / "index.json").unlink()
    refused(tmp_path, "a shard is damaged", "b.tar")


def test_a_stream_of_members_with_times_to_the_microsecond_holds_all_images(tmp_path: Path) -> None:
    """As WebDataset's writer makes it: each member has a second header for its time."""
    with open(tmp_path / "a.tar", "wb") as stream, tarfile.open(fileobj=stream, mode="w|") as archive:
        for name, content in samples([f"n0144/{number}" for number in range(4)], ".JPEG").items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), 1_700_000_000.123456
            archive.addfile(member, io.BytesIO(content))
        folder = tarfile.TarInfo("n0144")
        folder.type, folder.mtime = tarfile.DIRTYPE, 1_700_000_000.123456
        archive.addfile(folder)
    assert indexed(tmp_path)[1] == "passed over    1 member: folders (1, such as a.tar:n0144)"
    assert contents(tmp_path) == EXPECTED


def test_something_else_behind_an_archive_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", samples(["0", "1"]))
    path.write_bytes(path.read_bytes() + b"signature" * 100)
    refused(tmp_path, "a shard is damaged")


# Real programs. `files` are written to disk, and the program packs them.
@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, content in (samples(["0", "1.a", "2", "long" * 40])).items():
        (tmp_path / "files" / "sub").mkdir(parents=True, exist_ok=True)
        (tmp_path / "files" / "sub" / name).write_bytes(content)
    return tmp_path / "files"


def call(program: str, *words: str | Path, cwd: Path) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"machine: no {program}")
    subprocess.run([program, *map(str, words)], cwd=cwd, check=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)


WRITERS = {
    "tar": ("tar", "-cf"),
    "tar, unsorted": ("tar", "--sort=none", "-cf"),
    "tar, pax": ("tar", "--format=pax", "-cf"),
    "tar, old": ("tar", "--format=oldgnu", "-cf"),
    "tar, one block a record": ("tar", "-b", "1", "-cf"),
    "tar, sparse": ("tar", "-S", "-cf"),
    "bsdtar": ("bsdtar", "-cf"),
    "bsdtar, pax": ("bsdtar", "--format=pax", "-cf"),
    "bsdtar, GNU": ("bsdtar", "--format=gnutar", "-cf"),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_tars_of_other_programs_hold_all_images(files: Path, tmp_path: Path, writer: str) -> None:
    program, *options = WRITERS[writer]
    (tmp_path / "shards").mkdir()
    call(program, *options, tmp_path / "shards" / "a.tar", ".", cwd=files)
    printed = indexed(tmp_path / "shards")[1]
    assert contents(tmp_path / "shards") == EXPECTED
    assert printed == "passed over    2 members: folders (2, such as a.tar:.)"


@pytest.mark.parametrize("program", ["tar", "bsdtar"])
def test_what_these_programs_append_replaces_what_was_there(files: Path, tmp_path: Path, program: str) -> None:
    (tmp_path / "shards").mkdir()
    (files / "sub" / "0.cls").write_text("3")
    call(program, "-cf", tmp_path / "shards" / "a.tar", "sub", cwd=files)
    (files / "sub" / "0.cls").write_text("0")
    call(program, "-rf", tmp_path / "shards" / "a.tar", "sub/0.cls", cwd=files)
    assert "members that a later one of the same name replaces (1," in indexed(tmp_path / "shards")[1]
    assert contents(tmp_path / "shards") == EXPECTED


def test_hard_links_of_tar_are_counted(files: Path, tmp_path: Path) -> None:
    for ending in (".png", ".cls"):
        os.link(files / "sub" / f"0{ending}", files / "sub" / f"9{ending}")
    (tmp_path / "shards").mkdir()
    call("tar", "--sort=name", "-cf", tmp_path / "shards" / "a.tar", "sub", cwd=files)
    assert "hard links, which tar --hard-dereference packs as files (2," in indexed(tmp_path / "shards")[1]
    call("tar", "--hard-dereference", "-cf", tmp_path / "shards" / "a.tar", "sub", cwd=files)
    assert len(indexed(tmp_path / "shards")[0].entries) == 5


def test_image_names_of_any_depth_are_those_of_the_shard(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", samples(["x/y.z/0.1"]) | samples(["b"]))
    indexed(tmp_path)
    source = registry.open_splits(data_of(tmp_path, val_fraction=0.0)).training
    assert isinstance(source, ShardSource)
    assert source.paths[0] == "a.tar:x/y.z/0.1.png"
